"""The records of a container, read in the order of their offsets: found by their headers, or led to
by the entries of its table."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from dedupd_core import native
from dedupd_core.errors import DamagedContainer
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.volume_parameters import FINGERPRINTS
from dedupd_core.store.container.bases import Bases, raw_bytes
from dedupd_core.system.files import read_readable
from dedupd_core.system.page_cache import new_buffer, read_uncached_readable
from dedupd_core.units import MIB

WINDOW_BYTES = 8 * MIB
"""Read at once: long sequential runs, and little memory."""


@dataclass(frozen=True, slots=True)
class ScannedRecord:
    """A record header with the offset where it begins.

    One that ``is_implied`` takes no bytes: it stands for those that were collected before the
    record there. One that ``is_searched`` was found by a search for its header, or comes after one
    that was: its bytes may be the payload of a record that has lost its own header. One that
    ``is_inside`` begins within the bytes of another record.
    """

    offset: int
    record: fmt.Record
    is_implied: bool = False
    is_searched: bool = False
    is_inside: bool = False

    @property
    def end(self) -> int:
        """The offset after it."""
        size = 0 if self.is_implied else fmt.record_size(self.record.stored_length)
        return self.offset + size

    def ordinals(self) -> range:
        """The ordinals that it stands for: its own, or those of a run of tombstones."""
        first = self.record.ordinal
        return range(first, min(self.record.next_ordinal, max(first + 1, fmt.ORDINALS_MAX)))


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of a container, [offset, end), that holds no valid record."""

    offset: int
    end: int


def scan(fd: int, seed: int, start: int, end: int) -> Iterator[ScannedRecord | Gap]:
    """All record headers between ``start`` and ``end``, those that they imply before them, and the
    gaps between them.

    After damage it searches for the next valid header at every aligned offset. If users cannot know
    the seed, a false one is as good as impossible; else see :func:`believed`.
    """
    for offset, stop, header, is_searched in native.store.HeaderScan(fd, seed, start, end):
        record = fmt.unpack_record(header, 0, seed)
        if record is None:
            yield Gap(offset, stop)
            continue
        if (before := record.before) is not None:
            yield ScannedRecord(offset, before, is_implied=True, is_searched=is_searched)
        yield ScannedRecord(offset, record, is_searched=is_searched)


def believed(
    fd: int, header: fmt.FileHeader, items: Iterator[ScannedRecord | Gap], bases: Bases | None
) -> Iterator[ScannedRecord | Gap]:
    """What a scan of the container ``fd`` from its beginning found, without what a user may have
    forged.

    If users can know the seed, a record that was searched counts only if its bytes have their
    fingerprint, no other record has its ordinal, and it is not the record whose header is lost.
    Such records come last.
    """
    if not header.is_forgeable:
        yield from items
        return
    in_order: set[int] = set()
    claims: dict[int, list[ScannedRecord]] = {}
    expected = 0
    for item in items:
        if isinstance(item, Gap):
            yield item
        elif not item.is_searched:
            expected = item.record.next_ordinal
            in_order.update(item.ordinals())
            yield item
        elif not item.is_implied:
            claims.setdefault(item.record.ordinal, []).append(item)
    for ordinal, found in claims.items():
        if ordinal <= expected or ordinal in in_order:
            continue
        proved = [item for item in found if is_proved(fd, item, bases)]
        if len({item.record.fingerprint for item in proved}) == 1:
            yield proved[0]


def scan_inside(fd: int, seed: int, start: int, stop: int, end: int) -> Iterator[ScannedRecord]:
    """Records that begin within the payload of the record from ``start`` to ``stop``, which is
    damaged: a write that went astray may have put them there, or its header in front of them.
    ``end`` is that of the container."""
    for item in scan(fd, seed, start + fmt.RECORD_HEADER_BYTES, end):
        if item.offset >= stop:
            return
        if isinstance(item, ScannedRecord) and not item.is_implied:
            yield replace(item, is_inside=True)


def payload_is_intact(fd: int, found: ScannedRecord) -> bool:
    """Whether the stored bytes of a record match its checksum."""
    record = found.record
    stored = read_readable(fd, record.stored_length, found.offset + fmt.RECORD_HEADER_BYTES)
    return len(stored) == record.stored_length and native.hashing.xxh3_64(stored) == record.checksum


def is_proved(fd: int, found: ScannedRecord, bases: Bases | None) -> bool:
    """Whether a record has bytes, and their fingerprint is the one that its header states."""
    record = found.record
    if record.kind not in (fmt.RecordKind.DATA, fmt.RecordKind.COPY):
        return False
    stored = read_readable(fd, record.stored_length, found.offset + fmt.RECORD_HEADER_BYTES)
    if len(stored) != record.stored_length:
        return False
    try:
        raw = raw_bytes(record, memoryview(stored), bases)
    except DamagedContainer:
        return False
    return raw is not None and is_right(record, raw)


def is_right(record: fmt.Record, raw: bytes) -> bool:
    """Whether bytes have the fingerprint that their record states, of whichever algorithm."""
    return record.fingerprint in (
        native.hashing.fingerprint(raw, algorithm) for algorithm in FINGERPRINTS
    )


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
