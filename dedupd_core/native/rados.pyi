"""Chunks of a store in a Ceph cluster, read by Ceph's own library without Python's part of it."""

from collections.abc import Sequence
from typing import Self, final

from typing_extensions import Buffer

@final
class ChunkReader:
    """A connection of its own to a cluster, which only reads. Safe to use from several threads."""

    def __new__(
        cls,
        *,
        conf: str,
        user: str,
        keyring: str | None,
        pool: str,
        namespace: str,
        timeout_s: float,
        algorithm: str,
    ) -> Self:
        """Connects; ``user`` is written ``client.NAME``, ``algorithm`` is that of fingerprints.

        Raises OSError with the library's errno, ImportError where ``librados.so.2`` is not there.
        """
    def read(
        self,
        objects: Sequence[str],
        fingerprints: Buffer,
        lengths: Sequence[int],
        *,
        at_once: int,
        with_frames: bool,
    ) -> tuple[list[bytes | None], list[bytes | None], int]:
        """The raw bytes of chunks, up to ``at_once`` reads in flight; their frames, where
        ``with_frames`` says so; and the first errno of a read, or 0.

        Each chunk is read from its object, and has a fingerprint (32 bytes each, one after the
        other) and a raw length. None of one that is missing or not what it should be, and of one
        whose read fails. Raises ValueError where the columns differ in length, or after
        :meth:`close`.
        """
    def close(self) -> None:
        """Disconnect, once all reads that were begun have ended."""

@final
class ChunkNumbers:
    """Numbers of chunks in this process: of those that are taken, and of up to ``idle_max`` that
    were given back lately. Safe to use from several threads."""

    def __new__(cls, idle_max: int) -> Self: ...
    def take(self, fingerprints: Buffer) -> list[int]:
        """A number for each (32 bytes each, one after the other), the same one for equal ones."""
    def give_back(self, numbers: Sequence[int]) -> None: ...
    def fingerprint(self, number: int) -> bytes | None:
        """None of a number that nobody has."""
    def __len__(self) -> int: ...

@final
class KeptFrame:
    """A frame on its way to the disk."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class FrameCache:
    """Where frames lie on this host's disk, and those that are to be written there: frames of
    chunks by their fingerprints, and recipes by their versions. Safe to use from several threads.

    Frames of more than ``frame_bytes_max`` are not kept.
    """

    def __new__(cls, frame_bytes_max: int) -> Self: ...
    def add_segment(self, number: int, fd: int, rows: Buffer) -> None:
        """The segment that ``fd`` is open on, and the list beside it. Raises OSError."""
    def drop_segment(self, number: int) -> None: ...
    def get(self, name: bytes) -> bytes | None:
        """A frame as it is on the disk: not verified."""
    def forget(self, name: bytes) -> None: ...
    def keep(self, name: bytes, frame: bytes) -> None:
        """A frame to be written, unless it is there, or too many wait."""
    def next(
        self, segment: int, offset: int, room: int, wait_s: float
    ) -> tuple[list[KeptFrame], bytes] | None:
        """The frames to be written next into a segment at ``offset``, up to ``room`` bytes, and
        their rows. Both are empty where the next frame does not fit. None where none comes for so
        long, or after :meth:`close`."""
    def settle(self, segment: int, rows: Buffer, are_written: bool) -> None:
        """Whether the frames of :meth:`next` are where their rows say."""
    def give_up_waiting(self) -> None:
        """Let go of the frames that are to be written."""
    def close(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def expected(self) -> int:
        """How many frames are to be written."""
    def __len__(self) -> int:
        """How many frames can be read."""

@final
class ClusterContent:
    """Reads recipes and chunks for a mount: from ``cache``, and from the cluster once it is
    connected. ``algorithm`` is that of fingerprints. Safe to use from several threads."""

    def __new__(cls, numbers: ChunkNumbers, cache: FrameCache | None, algorithm: str) -> Self: ...
    def connect(self, reader: ChunkReader | None) -> None:
        """By which it reads from now on; None: not from the cluster. The connection ends when
        nobody has it any more. Raises ValueError where the reader is closed."""
    @property
    def recent_failure(self) -> int:
        """The errno by which it could not read anything a moment ago; 0 where it could."""
    def take_failure(self, names: Sequence[bytes]) -> int:
        """The errno by which it could not read any of these a moment ago, which is forgotten; 0
        where it could. Names as in :class:`FrameCache`."""

def keep_freed_memory() -> None:
    """Let the process keep some of the memory that it has let go of: every page of a chunk that is
    stored or read would be new otherwise. For processes that connect to a cluster."""
