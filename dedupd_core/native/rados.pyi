"""Reads chunks of a store in a Ceph cluster through Ceph's library, without its Python part."""

from collections.abc import Sequence
from typing import Self, final

from typing_extensions import Buffer

@final
class ChunkReader:
    """A separate read-only connection to a cluster. Safe to use from several threads."""

    def __new__(
        cls,
        *,
        conf: str,
        user: str,
        keyring: str | None,
        pool: str,
        namespace: str,
        timeout_s: float,
    ) -> Self:
        """Connect; ``user`` is written ``client.NAME``. Raises OSError with the library's errno,
        ImportError if ``librados.so.2`` is missing."""
    def close(self) -> None:
        """Disconnect, after all started reads have ended."""

@final
class ChunkNumbers:
    """Numbers of chunks in this process: those in use, and up to ``idle_max`` recently released
    ones. Safe to use from several threads."""

    def __new__(cls, idle_max: int) -> Self: ...
    def take(self, fingerprints: Buffer) -> list[int]:
        """Return a number for each (32 bytes each, one after the other), equal for equal ones."""
    def give_back(self, numbers: Sequence[int]) -> None: ...
    def fingerprint(self, number: int) -> bytes | None:
        """Return None for a number that is not in use."""
    def __len__(self) -> int: ...

@final
class KeptFrame:
    """A frame to be written to the disk."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class FrameCache:
    """The places of frames on this host's disk, and frames to be written there: frames of chunks by
    their fingerprints, and recipes by their versions. Safe to use from several threads.

    Frames of more than ``frame_bytes_max`` are not kept.
    """

    def __new__(cls, frame_bytes_max: int) -> Self: ...
    def add_segment(self, number: int, fd: int, rows: Buffer) -> None:
        """Add the segment that ``fd`` is open on, and its list. Raises OSError."""
    def drop_segment(self, number: int) -> None: ...
    def get(self, name: bytes) -> bytes | None:
        """Return a frame from the disk, without verification."""
    def forget(self, name: bytes) -> None: ...
    def keep(self, name: bytes, frame: bytes) -> None:
        """Queue a frame for writing, unless it exists, or too many are queued."""
    def next(
        self, segment: int, offset: int, room: int, wait_s: float
    ) -> tuple[list[KeptFrame], bytes] | None:
        """Return the next frames to write, up to ``room`` bytes, and their rows. They go into a
        segment at ``offset``. Both are empty if the next frame does not fit. None if no frame comes
        within ``wait_s``, or after :meth:`close`."""
    def settle(self, segment: int, rows: Buffer, are_written: bool) -> None:
        """Record whether the frames of :meth:`next` are at the places of their rows."""
    def give_up_waiting(self) -> None:
        """Drop the frames that are queued for writing."""
    def close(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def expected(self) -> int:
        """Number of frames to be written."""
    def __len__(self) -> int:
        """Number of frames that can be read."""

@final
class ClusterContent:
    """Reads recipes and chunks for a mount: from ``cache``, and from the cluster after it is
    connected. ``algorithm`` is that of fingerprints. Safe to use from several threads."""

    def __new__(cls, numbers: ChunkNumbers, cache: FrameCache | None, algorithm: str) -> Self: ...
    def connect(self, reader: ChunkReader | None) -> None:
        """Read through this connection from now on; None: do not read from the cluster. The
        connection ends when no object uses it. Raises ValueError if the reader is closed."""
    @property
    def recent_failure(self) -> int:
        """The errno of a very recent failed read; 0 if there is none."""
    def take_failure(self, names: Sequence[bytes]) -> int:
        """Return and forget the errno of a very recent failed read of these names, or 0. Names as
        in :class:`FrameCache`."""

def keep_freed_memory() -> None:
    """Make the process retain some freed memory. Otherwise every page of a stored or read chunk
    would be new. For processes that connect to a cluster."""
