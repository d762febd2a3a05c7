"""What is on its way through the pipeline: batches that are cut, and not all appended yet."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from mmap import mmap

from dedupd import native
from dedupd.store.writer import NewRecords
from jobs.optimize.buffers import Ready, Segment


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

    buffer: mmap | None
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
