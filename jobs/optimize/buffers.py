"""What flows through the ingest pipeline: files, segments of them, and their buffers."""

import mmap
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from dedupd_core import native
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.store.recipe.recipe_writer import RecipeBuilder, RecipeProgress
from dedupd_core.store.writer import NewRecords
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.commit_requests import CommitRequest
from jobs.optimize.busy_files import BusyFile
from jobs.tree.candidates import Candidate

PREFIXES_BYTES_MAX = 1 << 20
"""Of a file of 10 GiB. The rest of a larger one is found again by its beginning."""


PREFIX_BYTES = 8


class Phase(Enum):
    """How far a file has come, and so what is done with its chunks."""

    WAITING = 0
    """Its beginning is read; there may be no room for it."""
    ADMITTED = 1
    """There is room for it. Its beginning, if any came by yet, is zeros."""
    STORED = 2
    """Its beginning pays, or is in the store already: its chunks are stored."""
    NOTED = 3
    """Its beginning does not pay: the rest is only read to note its chunks."""
    MEASURED = 4
    """There is no room for it as far as is known: it is only read for what it would add."""


@dataclass(slots=True)
class Source:
    """What the reader finds of a file when it opens it, in bytes. ``resumed``: the part that an
    interrupted run has stored."""

    need_bytes: int = 0
    """How much its chunks take at most."""
    freed_bytes: int = 0
    """Of its blocks, which it gives up."""
    short_hole_bytes: int = 0
    """In holes that are too short to be skipped: cut as zeros, and not counted as read."""
    shared_bytes: int = 0
    """How much of it lies in blocks that snapshots, or copies below, have as well."""
    resumed: RecipeProgress | None = None


@dataclass(slots=True)
class Ingestion:
    """What the pipeline keeps of a file from batch to batch."""

    carry: bytes = b""
    """The unfinished chunk at the end of a batch, which begins in the next one."""
    builder: RecipeBuilder | None = None
    cost_bytes: int = 0
    """What the file has added to the store so far, or would have."""
    new_bytes: int = 0
    unique_chunks: int = 0
    """How many chunks of it, so far, nobody else had."""
    prefixes: bytes = b""
    """Of the fingerprints of chunks of it: to be noted where it does not pay."""
    distinct: set[int] = field(default_factory=set)
    """Of a file that is only measured: each prefix of a new chunk once, of ``measured_chunks``."""
    measured_chunks: int = 0

    def measure(self, prefixes: bytes) -> None:
        """Count new chunks of a file that is only measured, as long as there are few."""
        if len(self.distinct) < PREFIXES_BYTES_MAX // PREFIX_BYTES:
            words = memoryview(prefixes).cast("Q")
            self.distinct.update(words)
            self.measured_chunks += len(words)

    @property
    def distinct_share(self) -> float:
        """Of a file that is only measured: which part of its new chunks is distinct."""
        return len(self.distinct) / self.measured_chunks if self.measured_chunks else 1.0

    def note(self, prefixes: bytes) -> None:
        """Keep prefixes of fingerprints, as long as there are few."""
        if len(self.prefixes) < PREFIXES_BYTES_MAX:
            self.prefixes += prefixes

    def take_notes(self) -> bytes:
        """The prefixes that were kept, which are not here any more."""
        notes, self.prefixes = self.prefixes, b""
        return notes


@dataclass(slots=True)
class FileTask:
    """One file on its way through the stages. ``failure`` is the reason if it is skipped.

    ``busy`` is what the mount has offered of a file that users write to; all others are taken as a
    whole. The reader fills in ``source``, and only the pipeline uses ``ingestion``.
    """

    candidate: Candidate
    identity: FileIdentity
    compress: bool
    busy: BusyFile | None = None
    phase: Phase = Phase.WAITING
    failure: str = ""
    source: Source = field(default_factory=Source)
    ingestion: Ingestion = field(default_factory=Ingestion)

    @classmethod
    def whole(cls, candidate: Candidate, compress: bool) -> Self:
        """A file as it was found."""
        return cls(candidate, candidate.identity, compress)

    @classmethod
    def plain(cls, path: bytes, fields: tuple[int, int, int, int], as_is: bool) -> Self:
        """A plain file of a ``native.ingest.FileList``, to go its way by itself."""
        return cls.whole(Candidate.plain(path, fields), not as_is)

    @classmethod
    def of_busy(cls, file: BusyFile) -> Self:
        """The ranges of a busy file that the mount has offered."""
        identity = FileIdentity(file.inode, file.size, 0, 0)
        candidate = Candidate(file.path, identity, file.attribute, file.work_bytes)
        source = Source(need_bytes=file.work_bytes, freed_bytes=file.work_bytes)
        return cls(candidate, identity, file.compresses, file, source=source)

    def request(self, recipe: RecipeRef) -> CommitRequest:
        """What makes it a stub of this recipe."""
        return CommitRequest(
            self.candidate.path,
            self.identity,
            recipe,
            self.candidate.attribute,
            in_parts=self.busy is not None,
        )

    @property
    def keeps_chunks(self) -> bool:
        """Whether its recipe takes over what is not read."""
        return self.candidate.attribute is not None or self.busy is not None

    @property
    def is_certain(self) -> bool:
        """Whether it becomes a stub, or stays one, whatever that saves: a part of it is in the
        store."""
        is_stub = self.candidate.attribute is not None or self.source.resumed is not None
        return is_stub or (self.busy is not None and self.busy.is_certain)

    @property
    def takes_room(self) -> bool:
        """Whether what is read of it now may be stored."""
        return self.phase not in (Phase.WAITING, Phase.MEASURED)

    @property
    def is_only_read(self) -> bool:
        """Whether no chunk of it is stored from here on."""
        return self.phase in (Phase.NOTED, Phase.MEASURED)


Work = FileTask | native.ingest.FileList
"""A file that goes its way by itself; or plain files, which are read together if they are small."""


@dataclass(slots=True)
class ReadyFiles:
    """Files after the pipeline; requests for files whose data is complete.

    ``shared_bytes``: how much of small files snapshots, or copies below, have as well.
    """

    requests: native.commit.CommitRequests = field(default_factory=native.commit.CommitRequests)
    tasks: list[FileTask] = field(default_factory=list)
    shared_bytes: int = 0

    def __len__(self) -> int:
        return len(self.requests) + len(self.tasks)

    def take(self, other: "ReadyFiles") -> None:
        """Add what ``other`` has, which has nothing afterwards."""
        self.requests.take(other.requests)
        self.tasks += other.tasks
        self.shared_bytes += other.shared_bytes
        other.tasks, other.shared_bytes = [], 0


class KeptChunk(NamedTuple):
    """A chunk, or a hole, that a recipe takes over from the one before."""

    chunk: int
    length: int
    fingerprint: bytes


@dataclass(slots=True)
class Segment:
    """A range of a batch's buffer that belongs to one file.

    ``final``: the file ends with it. ``cut``: a chunk ends with it, whatever follows. ``kept`` are
    chunks of the old recipe that come before it.
    """

    task: FileTask
    start: int
    end: int
    final: bool
    cut: bool = False
    kept: Sequence[KeptChunk] = ()


@dataclass(slots=True)
class Batch:
    """A buffer of file content; ``zeros`` instead stands for a long hole of one file."""

    buffer: mmap.mmap | None
    segments: list[Segment] = field(default_factory=list)
    zeros: int = 0
    read_s: float = 0.0


@dataclass(slots=True)
class FilesBatch:
    """A buffer of whole small files that are plain, and where each of them lies.

    ``is_part``: the buffer has others, too, and is needed further on.
    """

    buffer: mmap.mmap
    files: native.ingest.FileList
    read_s: float
    is_part: bool = False


@dataclass(slots=True)
class Group:
    """New chunks of a batch that are encoded alike; ``first_id`` once there are ids for those of
    them that are stored."""

    new: native.ingest.NewChunks
    compress: bool
    encoded: "Future[tuple[native.codec.Encoded, float]] | None"
    first_id: int | None = None


@dataclass(slots=True)
class Part:
    """Records that have ids, on their way to the container."""

    first_id: int
    records: NewRecords
    encoded: native.codec.Encoded
    raw_bytes: int


@dataclass(slots=True)
class CutBatch:
    """A buffer of which the chunks are known, and which of them were new then: ``inserted`` counts
    the chunks that the index was given until then."""

    found: native.chunker.Chunks
    placed: native.ingest.Placed
    groups: list[Group]
    inserted: int


@dataclass(slots=True)
class PendingBatch:
    """A batch whose new chunks are not all appended yet.

    It has either ``files``, or ``segments`` with ``zeros`` that follow the last of them. ``cut`` is
    None as soon as it is decided what is stored: ``parts`` are to be appended then.
    """

    buffer: mmap.mmap | None
    cut: CutBatch | None = None
    files: native.ingest.FileList | None = None
    segments: Sequence[Segment] = ()
    zeros: int = 0
    parts: list[Part] = field(default_factory=list)
    finished: ReadyFiles = field(default_factory=ReadyFiles)

    @property
    def is_encoded(self) -> bool:
        groups = [] if self.cut is None else self.cut.groups
        return all(group.encoded is None or group.encoded.done() for group in groups)

    @property
    def pending_bytes(self) -> int:
        """Of chunks that may be stored, and are not yet."""
        groups = [] if self.cut is None else self.cut.groups
        return sum(group.new.raw_bytes for group in groups) + sum(p.raw_bytes for p in self.parts)
