"""The files that the policy wants optimized, and why others are passed over."""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from dedupd_core import native
from dedupd_core.config.policy import Decision, DedupDomain, Policy, decided
from dedupd_core.errors import Damaged, DamagedStub
from dedupd_core.format.stub import Flag, StubAttribute, attribute_seed, decode_stub
from dedupd_core.native.tree import DirectoryCandidates, Unreadable
from dedupd_core.stub.transition import (
    CAPABILITY,
    FULL_OF_ATTRIBUTES,
    LENGTH_BYTES_MAX,
    FileIdentity,
)
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.system.processes import cores
from dedupd_core.volume.volume import Volume
from jobs.frame.run import checked
from jobs.tree.linked_files import LinkedFiles
from jobs.tree.marked_directories import MarkedDirectories
from jobs.tree.rewrite_cost import WRITTEN_LITTLE, costs_more
from jobs.tree.walk import (
    SafePoint,
    TreeFile,
    each_directory,
    is_readable,
    single_file,
    unreadable,
)

OPTIMIZED = "already optimized"
EXCLUDED = "excluded"
SMALL = "below the minimum size"
YOUNG = "too young"
LONG = "too long"
LINKED = "linked from elsewhere"
"""A name outside of the volume shows the blocks alone: those of a stub are gone."""
SHARED_BELOW = "shared with snapshots or copies below"
"""The blocks of a file stay for the others, whatever becomes of it."""
SAVES_LITTLE = "would save too little"
"""By the policy's ``min_file_saving``."""
LOCAL_SHARE_MAX = 0.5
"""A stub in use with a larger share in local blocks is expanded: it no longer saves enough."""

CAPABLE = "has capabilities"
"""The kernel takes them from a file whose blocks are punched."""

_REASONS: "dict[native.tree.Reason, str]" = {
    "optimized": OPTIMIZED,
    "empty": "empty",
    "small": SMALL,
    "judged": SAVES_LITTLE,
    "full": FULL_OF_ATTRIBUTES,
    "young": YOUNG,
}
"""What native code passes over, as users are told."""

_EVER_NS = (1 << 63) - 2
"""A file that was changed later, after 2262, becomes no stub, which has no room for such a time."""


@dataclass(slots=True)
class SkippedFiles:
    """Why files were not candidates: counts of files and bytes by reason.

    ``unsettled`` are stubs that an interrupted job left in the middle of a transition,
    ``mostly_local`` those that are in use and would be better off plain.
    """

    files: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    unsettled: list[bytes] = field(default_factory=list)
    mostly_local: list[bytes] = field(default_factory=list)

    def add(self, reason: str, size_bytes: int, count: int = 1) -> None:
        self.files[reason] = self.files.get(reason, 0) + count
        self.size_bytes[reason] = self.size_bytes.get(reason, 0) + size_bytes


class Candidate(NamedTuple):
    """A file to optimize, as it was when it was found.

    ``attribute`` is None for a plain file, else that of a stub which was written to;
    ``work_bytes`` is about how much of it has to be read. ``owner`` is a user by number; of plain
    files it is 0 where domains do not depend on it.
    """

    path: bytes
    identity: FileIdentity
    attribute: bytes | None
    work_bytes: int
    owner: int = 0

    @classmethod
    def plain(cls, path: bytes, fields: "native.tree.Identity", owner: int = 0) -> Self:
        """A plain file, all of which has to be read."""
        identity = FileIdentity._make(fields)
        return cls(path, identity, None, identity.size, owner)


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Some plain files of one directory that the policy takes: candidates, and as yet no objects.

    ``directory`` is what their paths begin with, ``packed`` what native code found. ``chunks`` says
    how many chunks they have, about, by what follows the last dot of their names, ``files`` how
    many they are. ``owner`` as in :class:`Candidate`.
    """

    directory: bytes
    packed: bytes
    count: int
    size_bytes: int
    chunks: Sequence[tuple[bytes, int]]
    files: Sequence[tuple[bytes, int]]
    owner: int = 0

    def candidates(self) -> Iterator[Candidate]:
        """One by one, in the order of their inodes."""
        for path, identity, _ in native.ingest.FileList(self.directory, self.packed):
            yield Candidate.plain(path, identity, self.owner)


@dataclass(frozen=True, slots=True)
class JudgedFiles:
    """What is known of files that would save too little: those of the ledger are passed over, and
    with ``recall`` all files but those."""

    ledger: native.admission.Ledger | None = None
    recall: native.admission.Recall | None = None


NONE_JUDGED = JudgedFiles()


def candidates(
    volume: Volume,
    policy: Policy,
    below: bytes,
    skipped: SkippedFiles,
    errors: list[str],
    safe_point: SafePoint | None = None,
    judged: JudgedFiles = NONE_JUDGED,
) -> Iterator[Candidate]:
    """The files that the policy wants optimized and that are not yet, one by one."""
    for found in found_candidates(volume, policy, below, skipped, errors, safe_point, judged):
        if isinstance(found, Candidate):
            yield found
        else:
            yield from found.candidates()


def found_candidates(
    volume: Volume,
    policy: Policy,
    below: bytes,
    skipped: SkippedFiles,
    errors: list[str],
    safe_point: SafePoint | None = None,
    judged: JudgedFiles = NONE_JUDGED,
) -> Iterator[PlainFiles | Candidate]:
    """The files that the policy wants optimized and that are not yet.

    Native code looks at many directories at once, on all cores, and sorts out the files of which
    there are many. ``safe_point`` is called every few milliseconds, also where no file is a
    candidate.
    """
    check = safe_point or (lambda: None)
    return _Search(volume, policy, skipped, errors, check, judged).below(below)


class _Search:
    """One walk for candidates."""

    def __init__(
        self,
        volume: Volume,
        policy: Policy,
        skipped: SkippedFiles,
        errors: list[str],
        safe_point: SafePoint,
        judged: JudgedFiles,
    ) -> None:
        self._volume = volume
        self._policy = policy
        self._skipped = skipped
        self._errors = errors
        self._safe_point = safe_point
        self._threads = policy.cores or cores()
        self._linked = LinkedFiles(volume.data_fd, safe_point)
        self._marked = MarkedDirectories(volume, policy.markers)
        self._known = judged
        self._now_ns = time.time_ns()
        self._rules_of: dict[tuple[float, int], native.tree.Rules] = {}
        self._loosest = self._rules(*policy.loosest)

    def _rules(self, age_s: float, size_bytes: int) -> "native.tree.Rules":
        """What is asked of a file for which these two hold."""
        found = self._rules_of.get((age_s, size_bytes))
        if found is None:
            age_ns = int(age_s * 1e9)
            found = self._rules_of[age_s, size_bytes] = native.tree.Rules(
                seed=attribute_seed(self._volume.space.volume_id),
                size_min=size_bytes,
                newest_ns=self._now_ns - age_ns if age_ns > 0 else _EVER_NS,
                chunk_bytes=self._volume.parameters.chunking.average_bytes,
                ledger=self._known.ledger,
                recall=self._known.recall,
                by_owner=self._policy.dedup_domain is DedupDomain.OWNER,
            )
        return found

    def below(self, path: bytes) -> Iterator[PlainFiles | Candidate]:
        self._marked.begin(path)
        for directory, prefix, here in each_directory(self._find, self._safe_point, path):
            if isinstance(here, DirectoryCandidates):
                yield from self._found_in(directory, prefix, here)
            elif here.errno == errno.ENOTDIR:
                yield from self._single(directory)
            else:
                self._errors.append(unreadable(directory, here.errno))
        for size_bytes in self._linked.incomplete_sizes:
            self._skipped.add(LINKED, size_bytes)

    def _find(self, directories: Sequence[bytes]) -> list[DirectoryCandidates | Unreadable]:
        volume, threads = self._volume, self._threads
        return native.tree.find_candidates(
            volume.data_fd, directories, volume.space.name, threads, self._safe_point, self._loosest
        )

    def _found_in(
        self, directory: bytes, prefix: bytes, here: DirectoryCandidates
    ) -> Iterator[PlainFiles | Candidate]:
        for reason, (count, size_bytes) in here.passed.items():
            self._skipped.add(_REASONS[reason], size_bytes, count)
        is_marked = self._marked.meet(directory, here.markers)
        for files in here.plain:
            if is_marked:
                self._skipped.add(EXCLUDED, files.size_bytes, files.count)
                continue
            figures = files.count, files.size_bytes, files.chunks, files.files, files.owner
            yield from self._plain(PlainFiles(prefix, files.packed, *figures))
        for file in self._linked.judged(directory, here.files):
            yield from self._judged(TreeFile.of(prefix, file))

    def _single(self, path: bytes) -> Iterator[Candidate]:
        """A file, where the job was given one."""
        for file in single_file(self._volume, path, self._errors):
            if not file.is_stub and self._has_links(path):
                self._skipped.add(LINKED, file.identity.size)
            else:
                yield from self._judged(file)

    def _has_links(self, path: bytes) -> bool:
        try:
            with opened(open_beneath(self._volume.data_fd, path, os.O_PATH)) as fd:
                return os.fstat(fd).st_nlink > 1
        except OSError:
            return False  # it is gone

    def _plain(self, files: PlainFiles) -> Iterator[PlainFiles | Candidate]:
        if self._policy.is_uniform:
            yield files
            return
        for candidate in checked(files.candidates(), self._safe_point):
            if reason := self._reason(candidate.path, candidate.identity):
                self._skipped.add(reason, candidate.work_bytes)
            else:
                yield candidate

    def _reason(self, path: bytes, identity: FileIdentity) -> str:
        """Why a plain file is no candidate, as far as the policy goes, or nothing."""
        decision = decided(self._policy, path)
        if (reason := self._asked(decision).reason(identity)) is not None:
            return _REASONS[reason]
        return EXCLUDED if decision.excluded or self._marked.has(path) else ""

    def _asked(self, decision: Decision) -> "native.tree.Rules":
        return self._rules(decision.min_age_s, decision.min_size_bytes)

    def _judged(self, file: TreeFile) -> Iterator[Candidate]:
        """A file that native code has left, if it is a candidate."""
        size = file.identity.size
        if size > LENGTH_BYTES_MAX:
            reason, work_bytes = LONG, 0
        elif file.attribute is None:
            reason = self._reason(file.path, file.identity)
            size = work_bytes = min(size, file.allocated_bytes)
        else:
            reason, work_bytes = self._stub_reason(file, file.attribute), file.allocated_bytes
        if not reason and _has_capabilities(self._volume, file.path):
            reason = CAPABLE
        if reason:
            self._skipped.add(reason, size)
        else:
            yield Candidate(file.path, file.identity, file.attribute, work_bytes, file.owner)

    def _stub_reason(self, file: TreeFile, attribute: bytes) -> str:
        """Why a stub is no candidate, or nothing; notes a stub that needs a repair of its state."""
        volume, policy, size = self._volume, self._policy, file.identity.size
        try:
            stub = self._decoded(file.path, attribute)
        except OSError:
            return ""  # gone, or not to be opened: reading it will show
        except DamagedStub as error:
            if not attribute and not is_readable(volume, file.path):
                return ""  # neither is its content, as reading it will show
            self._errors.append(str(error))
            return "has a damaged attribute"
        if stub.flags.transient:
            self._skipped.unsettled.append(file.path)
            return OPTIMIZED
        if file.allocated_bytes == 0 and stub.covered >= size:
            return OPTIMIZED
        decision = decided(policy, file.path)
        is_young = self._asked(decision).is_young(file.identity)
        is_mostly_local = file.allocated_bytes > LOCAL_SHARE_MAX * size
        if is_young and is_mostly_local and not stub.flags & Flag.PARTIAL:
            self._skipped.mostly_local.append(file.path)
            return "mostly its own blocks again"
        if is_young:
            return "written to since"
        if decision.excluded or self._marked.has(file.path):
            return "written to since"
        return WRITTEN_LITTLE if self._costs_more(file, stub) else ""

    def _costs_more(self, file: TreeFile, stub: StubAttribute) -> bool:
        """Whether the store would grow by more than a stub gives up, by a policy that minds."""
        if not self._policy.min_file_saving:
            return False
        volume, where = self._volume, show_path(file.path)
        try:
            with opened(open_beneath(volume.data_fd, file.path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
                return costs_more(volume, fd, file.identity.size, stub, where)
        except (Damaged, OSError):
            return False  # reading it will show

    def _decoded(self, path: bytes, attribute: bytes) -> StubAttribute:
        """The attribute of a stub, if it is bound to that file. Raises DamagedStub, OSError."""
        volume, where = self._volume, show_path(path)
        if not attribute:
            return decode_stub(attribute, volume.space.volume_id, where)
        with opened(open_beneath(volume.data_fd, path, os.O_PATH)) as fd:
            return volume.space.decode_met(attribute, fd, where)


def _has_capabilities(volume: Volume, path: bytes) -> bool:
    try:
        with opened(open_beneath(volume.data_fd, path, os.O_PATH)) as fd:
            os.getxattr(b"/proc/self/fd/%d" % fd, CAPABILITY)
    except OSError:
        return False
    return True
