"""Reading many records of one container in order, in large pieces that pass the page cache by."""

from contextlib import suppress

from dedupd import native
from dedupd.format import container as fmt
from dedupd.format import table as tbl
from dedupd.system.page_cache import new_buffer, read_uncached_readable
from dedupd.units import MIB

WINDOW_BYTES = 8 * MIB
"""Read at once: long sequential runs, and little memory."""


class SequentialReader:
    """Reads records of a container in the order of their offsets, in large pieces."""

    def __init__(self, fd: int, seed: int) -> None:
        self.fd = fd
        self._seed = seed
        self._buffer = new_buffer(WINDOW_BYTES)
        self._view = memoryview(self._buffer)
        self._base = self._filled = 0

    def __enter__(self) -> "SequentialReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._view.release()
        # A payload that was handed out may still be looked at: then the collector closes it.
        with suppress(BufferError):
            self._buffer.close()

    def read(self, ordinal: int, entry: tbl.TableEntry) -> tuple[fmt.Record, memoryview] | None:
        """The record of an entry and its payload; None where they are not intact."""
        size = fmt.RECORD_HEADER_BYTES + entry.stored_length
        at = entry.offset - self._base
        if at < 0 or at + size > self._filled:
            if size > len(self._view):
                return None
            self._base, at = entry.offset, 0
            self._filled = read_uncached_readable(self.fd, self._view, entry.offset)
            if self._filled < size:
                return None
        record = fmt.unpack_record(self._view, at, self._seed)
        if (
            record is None
            or (record.ordinal, record.stored_length) != (ordinal, entry.stored_length)
            or (record.fingerprint, record.raw_length) != (entry.fingerprint, entry.raw_length)
        ):
            return None
        payload = self._view[at + fmt.RECORD_HEADER_BYTES : at + size]
        return (record, payload) if native.hashing.xxh3_64(payload) == record.checksum else None
