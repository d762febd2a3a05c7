"""What flows through the ingest pipeline: files, segments of them, and their buffers."""

import mmap
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from dedupd_core import native
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.store.recipe.recipe_writer import Growth, RecipeBuilder
from dedupd_core.store.writer import NewRecords
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.commit_requests import CommitRequest
from jobs.tree.candidates import Candidate

PREFIXES_BYTES_MAX = 1 << 20
"""Of a file of 10 GiB. The rest of a larger one is found again by its beginning."""


PREFIX_BYTES = 8


class Taking(Enum):
    """What is done with the chunks of a file that is read in several buffers."""

    UNDECIDED = 0
    """Its beginning, if there was any, is zeros."""
    STORED = 1
    """Its beginning pays, or is in the store already."""
    NOTED = 2
    """Its beginning does not pay: the rest is only looked at, and nothing of it stored."""


@dataclass(slots=True)
class FileTask:
    """One file on its way through the pipeline. ``failure`` is set where it must be given up."""

    candidate: Candidate
    identity: FileIdentity
    compress: bool
    carry: bytes = b""
    failure: str = ""
    builder: RecipeBuilder | None = None
    resumed: Growth | None = None
    need_bytes: int = 0
    """How much its chunks take at most."""
    freed_bytes: int = 0
    """Of its blocks, which it gives up."""
    short_hole_bytes: int = 0
    """In holes that are too short to be skipped: cut as zeros, and not counted as read."""
    cost_bytes: int = 0
    """What it has added to the store so far, or would have."""
    new_bytes: int = 0
    unique_chunks: int = 0
    """How many chunks of it, so far, nobody else had."""
    taking: Taking = Taking.UNDECIDED
    prefixes: bytes = b""
    """Of the fingerprints of chunks of it: to be noted where it does not pay."""
    shared_bytes: int = 0
    """How much of it lies in blocks that snapshots, or copies below, have as well."""
    is_in_parts: bool = False
    """Whether it is a busy file, of which the mount has offered quiet ranges."""
    is_certain_in_parts: bool = False
    """Whether all of these are to be stored whatever the first of them save."""
    is_admitted: bool = False
    """Whether there was room for it when it was begun."""
    is_measured: bool = False
    """Whether it was read before for what it would add, which is ``need_bytes``."""
    adds_nothing: bool = False
    """Whether its chunks were all in the store then."""
    is_looked_at: bool = False
    """Whether it does not fit as far as is known, and is only read for what it would add."""
    seen: set[int] = field(default_factory=set)
    seen_chunks: int = 0
    """How many new chunks such a file has; ``seen`` has each of them once."""

    def note(self, prefixes: bytes) -> None:
        """Keep prefixes of fingerprints, as long as there are few."""
        if self.is_looked_at and len(self.seen) < PREFIXES_BYTES_MAX // PREFIX_BYTES:
            seen = memoryview(prefixes).cast("Q")
            self.seen.update(seen)
            self.seen_chunks += len(seen)
        if len(self.prefixes) < PREFIXES_BYTES_MAX and not self.is_in_parts:
            self.prefixes += prefixes

    def take_notes(self) -> bytes:
        """The prefixes that were kept, which are not here any more."""
        taken, self.prefixes = self.prefixes, b""
        return taken

    def request(self, recipe: RecipeRef) -> CommitRequest:
        """What makes it a stub of this recipe."""
        candidate = self.candidate
        named = candidate.path, self.identity, recipe, candidate.attribute
        return CommitRequest(*named, in_parts=self.is_in_parts)

    @property
    def keeps_chunks(self) -> bool:
        """Whether its recipe takes over what is not read."""
        return self.candidate.attribute is not None or self.is_in_parts

    @property
    def is_certain(self) -> bool:
        """Whether it becomes a stub, or stays one, whatever that saves: a part of it is in the
        store."""
        is_stub = self.candidate.attribute is not None or self.resumed is not None
        return is_stub or self.is_certain_in_parts

    def only_look(self) -> None:
        """Have it read for what it would add, with nothing of it stored."""
        self.is_admitted = self.is_looked_at = True
        self.taking = Taking.NOTED

    @property
    def distinct_share(self) -> float:
        """Of a file that is only looked at: which part of its new chunks is distinct."""
        return len(self.seen) / self.seen_chunks if self.seen_chunks else 1.0

    @property
    def takes_room(self) -> bool:
        """Whether what is read of it now may be stored."""
        return self.is_admitted and not self.is_looked_at

    @classmethod
    def plain(cls, path: bytes, fields: tuple[int, int, int, int], as_is: bool) -> Self:
        """A plain file of a ``native.ingest.FileList``, to go its way by itself."""
        candidate = Candidate.plain(path, fields)
        return cls(candidate, candidate.identity, not as_is)


@dataclass(slots=True)
class Ready:
    """Files that have gone through the pipeline; requests where nothing is left to be done."""

    requests: native.commit.PlainRequests = field(default_factory=native.commit.PlainRequests)
    tasks: list[FileTask] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.requests) + len(self.tasks)

    def take(self, other: "Ready") -> None:
        """Add what ``other`` has, which has nothing afterwards."""
        self.requests.take(other.requests)
        self.tasks += other.tasks
        other.tasks = []


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
class Cut:
    """A buffer of which the chunks are known, and which of them were new then: ``inserted`` counts
    the chunks that the index was given until then."""

    found: native.chunker.Chunks
    placed: native.ingest.Placed
    groups: list[Group]
    inserted: int


@dataclass(slots=True)
class InFlight:
    """A batch whose new chunks are not all appended yet.

    It has either ``files``, or ``segments`` with ``zeros`` that follow the last of them. ``cut`` is
    None as soon as it is decided what is stored: ``parts`` are to be appended then.
    """

    buffer: mmap.mmap | None
    cut: Cut | None = None
    files: native.ingest.FileList | None = None
    segments: Sequence[Segment] = ()
    zeros: int = 0
    parts: list[Part] = field(default_factory=list)
    finished: Ready = field(default_factory=Ready)

    @property
    def is_encoded(self) -> bool:
        groups = [] if self.cut is None else self.cut.groups
        return all(group.encoded is None or group.encoded.done() for group in groups)

    @property
    def pending_bytes(self) -> int:
        """Of chunks that may be stored, and are not yet."""
        groups = [] if self.cut is None else self.cut.groups
        return sum(group.new.raw_bytes for group in groups) + sum(p.raw_bytes for p in self.parts)
