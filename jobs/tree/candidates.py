"""Finding files: every inode of the tree once, and which of them the policy wants optimised."""

import errno
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Self, TypeAlias

from dedupd import native
from dedupd.config.policy import Policy
from dedupd.errors import DamagedStub
from dedupd.format.stub import attribute_seed, decode_stub
from dedupd.stub.transition import CAPABILITY, LENGTH_BYTES_MAX, FileIdentity
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath, show_path
from dedupd.system.processes import cores
from dedupd.volume.volume import Volume
from jobs.frame.run import checked
from jobs.tree.walk import Check, Found, _File, _files, _Identity, _is_readable, _NativeFile

OPTIMISED = "already optimised"
EMPTY = "empty"
SMALL = "below the minimum size"
YOUNG = "too young"
EXCLUDED = "excluded"
LONG = "too long"
LINKED = "linked from elsewhere"
"""A name outside of the volume shows the blocks alone: those of a stub are gone."""
CAPABLE = "has capabilities"
"""The kernel takes them from a file whose blocks are punched."""

_PASSED = OPTIMISED, EMPTY, SMALL, YOUNG
"""Why native code passes files over, in its order."""

DIRECTORIES_AT_ONCE = 64
"""Looked at by all cores in one call: their candidates are in memory at once."""

_EVER_NS = (1 << 63) - 2
"""A file that was changed later, after 2262, becomes no stub, which has no room for such a time."""

_Here: TypeAlias = "native.tree.CandidatesOf | int"
"""What there is in a directory, or the number of the error."""


@dataclass(slots=True)
class Skipped:
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
    """A file to optimise, as it was when it was found.

    ``attribute`` is None for a plain file, else that of a stub which was written to;
    ``work_bytes`` is about how much of it has to be read.
    """

    path: bytes
    identity: FileIdentity
    attribute: bytes | None
    work_bytes: int

    @classmethod
    def plain(cls, path: bytes, fields: _Identity) -> Self:
        """A plain file, all of which has to be read."""
        identity = FileIdentity._make(fields)
        return cls(path, identity, None, identity.size)


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Some plain files of one directory that the policy takes: candidates, and as yet no objects.

    ``directory`` is what their paths begin with, ``packed`` what native code found. ``chunks`` says
    how many chunks they have, about, by what follows the last dot of their names.
    """

    directory: bytes
    packed: bytes
    count: int
    size_bytes: int
    chunks: Sequence[tuple[bytes, int]]

    def candidates(self) -> Iterator[Candidate]:
        """One by one, in the order of their inodes."""
        for path, identity, _ in native.ingest.FileList(self.directory, self.packed):
            yield Candidate.plain(path, identity)


def candidates(
    volume: Volume,
    policy: Policy,
    below: bytes,
    skipped: Skipped,
    errors: list[str],
    check: Check | None = None,
) -> Iterator[Candidate]:
    """The files that the policy wants optimised and that are not yet, one by one."""
    for found in found_candidates(volume, policy, below, skipped, errors, check):
        if isinstance(found, Candidate):
            yield found
        else:
            yield from found.candidates()


def found_candidates(
    volume: Volume,
    policy: Policy,
    below: bytes,
    skipped: Skipped,
    errors: list[str],
    check: Check | None = None,
) -> Iterator[PlainFiles | Candidate]:
    """The files that the policy wants optimised and that are not yet.

    Native code looks at many directories at once, on all cores, and sorts out the files of which
    there are many. ``check`` is called every few milliseconds, also where no file is a candidate.
    """
    return _Search(volume, policy, skipped, errors, check).below(below)


class _Search:
    """One walk for candidates."""

    def __init__(
        self,
        volume: Volume,
        policy: Policy,
        skipped: Skipped,
        errors: list[str],
        check: Check | None,
    ) -> None:
        self._volume = volume
        self._policy = policy
        self._skipped = skipped
        self._errors = errors
        self._check: Check = check or (lambda: None)
        self._threads = policy.cores or cores()
        age_ns = int(policy.min_age_s * 1e9)
        self._newest_ns = time.time_ns() - age_ns if age_ns > 0 else _EVER_NS
        self._names: dict[tuple[int, int], int] = {}
        """Of files with hard links, as inode and change time have them: how many names were found.
        What is renamed gets a new change time, and its names are counted anew."""
        self._linked_in: set[int] = set()
        """The directories where these names are."""
        self._incomplete: dict[int, int] = {}
        """Those that are plain and have more names: their sizes."""

    def below(self, path: bytes) -> Iterator[PlainFiles | Candidate]:
        """While some directories are judged here, native code looks at the next ones."""
        pending = [path]
        under_way: deque[tuple[list[bytes], Future[list[_Here]]]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="scan") as ahead:
            while pending or under_way:
                self._check()
                while pending and len(under_way) < 2:
                    batch = pending[: -DIRECTORIES_AT_ONCE - 1 : -1]
                    del pending[-len(batch) :]
                    under_way.append((batch, ahead.submit(self._find, batch)))
                batch, found = under_way.popleft()
                for directory, here in zip(batch, found.result(), strict=True):
                    yield from self._found_in(directory, here, pending)
        for size_bytes in self._incomplete.values():
            self._skipped.add(LINKED, size_bytes)

    def _found_in(
        self, directory: bytes, here: _Here, pending: list[bytes]
    ) -> Iterator[PlainFiles | Candidate]:
        if isinstance(here, int):
            yield from self._no_directory(directory, here)
            return
        names, left, passed, plain = here
        for reason, (count, size_bytes) in zip(_PASSED, passed, strict=True):
            if count:
                self._skipped.add(reason, size_bytes, count)
        prefix = directory + b"/" if directory else b""
        for files in plain:
            yield from self._plain(PlainFiles(prefix, *files))
        counting: set[bytes] | None = None
        for name, identity, links, allocated, attribute in checked(left, self._check):
            if links > 1 and counting is None:
                counting = self._counting(directory, left)
            if links == 1 or self._is_once(
                identity, links, attribute is None, counting is not None and name in counting
            ):
                yield from self._judged((prefix + name, identity, allocated, attribute))
        pending.extend(prefix + name for name in sorted(names, reverse=True))

    def _counting(self, directory: bytes, files: Sequence[_NativeFile]) -> set[bytes]:
        """The names of files with several that count: where their directory was not met before.

        What is in a directory does not change where it is moved, and would be found there once
        more. Another one may have its path by now: what that has was not found.
        """
        try:
            with opened(open_beneath(self._volume.data_fd, directory, os.O_PATH)) as fd:
                inode = os.fstat(fd).st_ino
                if inode in self._linked_in:
                    return set()
                self._linked_in.add(inode)
                linked = (
                    (name, identity[0])
                    for name, identity, links, *_ in checked(files, self._check)
                    if links > 1
                )
                return {name for name, inode in linked if _is_at(fd, name, inode)}
        except OSError:
            return set()  # it is elsewhere by now

    def _is_once(self, identity: _Identity, links: int, is_plain: bool, counts: bool) -> bool:
        """Whether this is the name by which a file with several is to be judged: of a plain one the
        last, because it becomes no stub before all its names are known to lie in the tree. The name
        of a plain file that does not count may be one that was found before."""
        inode, size_bytes, _, ctime_ns = identity
        key = inode, ctime_ns if is_plain else 0
        found = self._names[key] = self._names.get(key, 0) + (counts or not is_plain)
        if not is_plain:
            return found == 1
        if found == links and counts:
            self._incomplete.pop(inode, None)
            return True
        if found < links:
            self._incomplete[inode] = size_bytes
        return False

    def _find(self, directories: Sequence[bytes]) -> list[_Here]:
        volume, policy = self._volume, self._policy
        return native.tree.find_candidates(
            volume.data_fd,
            [path or b"." for path in directories],
            volume.space.name,
            self._threads,
            self._check,
            seed=attribute_seed(volume.space.volume_id),
            size_min=policy.min_size_bytes,
            newest_ns=self._newest_ns,
            chunk_bytes=volume.parameters.chunking.average_bytes,
        )

    def _no_directory(self, path: bytes, error: int) -> Iterator[Candidate]:
        """A single file, where the job was given one; or what is gone, or cannot be read."""
        if error == errno.ENOTDIR:
            for file in _files(self._volume, path, self._errors, None):
                if file[3] is None and self._has_links(path):
                    self._skipped.add(LINKED, file[1][1])
                else:
                    yield from self._judged(file)
        elif error not in (errno.ENOENT, errno.EXDEV):
            self._errors.append(f"{show_path(path) or '.'}: {os.strerror(error)}")

    def _has_links(self, path: bytes) -> bool:
        try:
            with opened(open_beneath(self._volume.data_fd, path, os.O_PATH)) as fd:
                return os.fstat(fd).st_nlink > 1
        except OSError:
            return False  # it is gone

    def _plain(self, files: PlainFiles) -> Iterator[PlainFiles | Candidate]:
        if not (self._policy.exclude or self._policy.exclude_types):
            yield files
            return
        for candidate in checked(files.candidates(), self._check):
            if self._policy.excludes(candidate.path):
                self._skipped.add(EXCLUDED, candidate.work_bytes)
            else:
                yield candidate

    def _judged(self, file: _File) -> Iterator[Candidate]:
        """A file that native code has left, if it is a candidate."""
        path, identity, allocated, attribute = file
        _, size, mtime_ns, ctime_ns = identity
        is_young = max(mtime_ns, ctime_ns) > self._newest_ns
        if size > LENGTH_BYTES_MAX:
            reason, work_bytes = LONG, 0
        elif attribute is None:
            reason = _plain_file(path, size, self._policy, is_young)
            work_bytes = size
        else:
            found = Found(path, FileIdentity._make(identity), allocated, attribute)
            reason = _stub(self._volume, found, self._policy, is_young, self._skipped, self._errors)
            work_bytes = allocated
        if not reason and _has_capabilities(self._volume, path):
            reason = CAPABLE
        if reason:
            self._skipped.add(reason, size)
        else:
            yield Candidate(path, FileIdentity._make(identity), attribute, work_bytes)


def _is_at(dir_fd: int, name: bytes, inode: int) -> bool:
    """Whether a name is that of an inode."""
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ino == inode
    except OSError:
        return False


def _plain_file(path: bytes, size: int, policy: Policy, is_young: bool) -> str:
    """Why a plain file is no candidate, or nothing."""
    if size == 0:
        return EMPTY
    if size < policy.min_size_bytes:
        return SMALL
    if is_young:
        return YOUNG
    return EXCLUDED if policy.excludes(path) else ""


def _stub(
    volume: Volume,
    found: Found,
    policy: Policy,
    is_young: bool,
    skipped: Skipped,
    errors: list[str],
) -> str:
    """Why a stub is no candidate, or nothing; notes what has to be done about it."""
    assert found.attribute is not None
    try:
        stub = decode_stub(found.attribute, volume.space.volume_id, show_path(found.path))
    except DamagedStub as error:
        if not found.attribute and not _is_readable(volume, found.path):
            return ""  # so is its content, as whoever tries to read it will say
        errors.append(str(error))
        return "has a damaged attribute"
    if stub.flags.transient:
        skipped.unsettled.append(found.path)
        return OPTIMISED
    size = found.identity.size
    if found.allocated_bytes == 0 and stub.covered >= size:
        return OPTIMISED
    if is_young and found.allocated_bytes > policy.partial_local_max * size:
        skipped.mostly_local.append(found.path)
        return "mostly its own blocks again"
    if is_young or not policy.partial_files or policy.excludes(found.path):
        return "written to since"
    return ""


def _has_capabilities(volume: Volume, path: bytes) -> bool:
    try:
        with opened(open_beneath(volume.data_fd, path, os.O_PATH)) as fd:
            os.getxattr(b"/proc/self/fd/%d" % fd, CAPABILITY)
    except OSError:
        return False
    return True
