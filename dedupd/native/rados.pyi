"""Chunks of a store in a Ceph cluster, read by Ceph's own library without Python's part of it."""

from collections.abc import Sequence

from typing_extensions import Buffer

class ChunkReader:
    """A connection of its own to a cluster, which only reads. Safe to use from several threads."""

    def __init__(
        self,
        *,
        conf: str,
        user: str,
        keyring: str | None,
        pool: str,
        namespace: str,
        timeout_s: float,
        algorithm: str,
    ) -> None:
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

def keep_freed_memory() -> None:
    """Let the process keep some of the memory that it has let go of: every page of a chunk that is
    stored or read would be new otherwise. For processes that connect to a cluster."""
