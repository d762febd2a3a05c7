"""Remembers sent states, to send only changes later and to continue interrupted streams.

All of it is derived: if it is lost, the next stream is a full stream.
"""

import io
import os
import struct
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from dedupd_core.errors import UsageError
from dedupd_core.format.ids import container_of, ordinal_of
from dedupd_core.system.files import opened, read_at, read_file
from dedupd_core.volume.volume import Volume

SENT_DIR = b"sent"
KEPT_MAX = 8
"""Number of states to keep; older states are deleted."""
LOGS_KEPT_MAX = 2
"""Number of logs of possibly interrupted streams. The receiver only knows the last stream."""

NUMBERS_MAX = 1 << 20
"""Number of chunks without ids to remember, by their fingerprints; about 150 bytes per chunk."""

_U64_MAX = (1 << 64) - 1
_ROW = struct.Struct("<Q32s")
_POINT, _LOG = b".point", b".log"


class Numbers:
    """A u32 per record id; 0 if it has no number. Uses 4 bytes per record of a container."""

    def __init__(self) -> None:
        self._tables: dict[int, npt.NDArray[np.uint32]] = {}

    def get(self, record_id: int) -> int:
        table = self._tables.get(container_of(record_id))
        at = ordinal_of(record_id)
        return int(table[at]) if table is not None and at < len(table) else 0

    def put(self, record_id: int, number: int) -> None:
        container, at = container_of(record_id), ordinal_of(record_id)
        table = self._tables.get(container)
        if table is None or at >= len(table):
            grown = np.zeros(max(1024, 2 * (at + 1)), np.uint32)
            if table is not None:
                grown[: len(table)] = table
            table = self._tables[container] = grown
        table[at] = number


class CutNumbers:
    """A u32 per fingerprint, for recently used chunks that have no lasting id."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[bytes, int] = OrderedDict()

    def get(self, fingerprint: bytes) -> int:
        """Return 0 if there is no number, or it was forgotten: then the chunk is sent again."""
        number = self._numbers.get(fingerprint, 0)
        if number:
            self._numbers.move_to_end(fingerprint)
        return number

    def put(self, fingerprint: bytes, number: int) -> None:
        self._numbers[fingerprint] = number
        if len(self._numbers) > NUMBERS_MAX:
            self._numbers.popitem(last=False)


class IdSet:
    """Record ids, one bit per id."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def add(self, record_id: int) -> None:
        at = ordinal_of(record_id)
        bits = self._bits.setdefault(container_of(record_id), bytearray())
        if at >> 3 >= len(bits):
            bits.extend(bytes(max(128, len(bits), (at >> 3) + 1 - len(bits))))
        bits[at >> 3] |= 1 << (at & 7)

    def __contains__(self, record_id: int) -> bool:
        bits, at = self._bits.get(container_of(record_id), b""), ordinal_of(record_id)
        return at >> 3 < len(bits) and bool(bits[at >> 3] >> (at & 7) & 1)

    def columns(self) -> tuple[list[int], list[bytes]]:
        return list(self._bits), [bytes(bits) for bits in self._bits.values()]

    @classmethod
    def of(cls, numbers: Iterable[int], columns: Iterable[bytes]) -> "IdSet":
        made = cls()
        made._bits = {n: bytearray(bits) for n, bits in zip(numbers, columns, strict=True)}
        return made


class FileTable:
    """Change time (ns) and length of files by inode; 24 bytes per file."""

    def __init__(self, rows: npt.NDArray[np.uint64] | None = None) -> None:
        self._new = array("Q")
        self._sorted = np.zeros((0, 3), np.uint64) if rows is None else rows[rows[:, 0].argsort()]

    def add(self, inode: int, ctime_ns: int, size: int) -> None:
        self._new.extend((inode, ctime_ns & _U64_MAX, size))

    def has(self, inode: int, ctime_ns: int, size: int) -> bool:
        """Return whether the table contains this state of a file."""
        at = int(np.searchsorted(self._sorted[:, 0], np.uint64(inode)))
        return at < len(self._sorted) and (
            self._sorted[at].tolist() == [inode, ctime_ns & _U64_MAX, size]
        )

    def rows(self) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._new, np.uint64).reshape(-1, 3)


@dataclass(slots=True)
class Point:
    """A sent state: its files, by inode, and the chunks that they need.

    ``cut``: fingerprints of the chunks of a file that were made for the stream, and are not in the
    store.
    """

    files: FileTable = field(default_factory=FileTable)
    cut: dict[int, bytes] = field(default_factory=dict)
    ids: IdSet = field(default_factory=IdSet)

    def cut_fingerprints(self) -> set[bytes]:
        return {
            joined[at : at + 32] for joined in self.cut.values() for at in range(0, len(joined), 32)
        }

    def encode(self) -> bytes:
        numbers, bits = self.ids.columns()
        columns: dict[str, Any] = {
            "files": self.files.rows(),
            "cut_inodes": np.array(list(self.cut), np.uint64),
            "cut_lengths": np.array([len(v) for v in self.cut.values()], np.uint64),
            "cut": np.frombuffer(b"".join(self.cut.values()), np.uint8),
            "containers": np.array(numbers, np.uint64),
            "bit_lengths": np.array([len(part) for part in bits], np.uint64),
            "bits": np.frombuffer(b"".join(bits), np.uint8),
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **columns)
        data = buffer.getvalue()
        return data + xxhash.xxh3_64_digest(data)

    @classmethod
    def decode(cls, data: bytes) -> "Point":
        """Decode a state. Raises ValueError."""
        if len(data) < 8 or xxhash.xxh3_64_digest(data[:-8]) != data[-8:]:
            raise ValueError("its checksum is wrong")
        with np.load(io.BytesIO(data[:-8]), allow_pickle=False) as columns:
            files = FileTable(columns["files"])
            cut = dict(
                zip(
                    columns["cut_inodes"].tolist(),
                    _parts(columns["cut"].tobytes(), columns["cut_lengths"].tolist()),
                    strict=True,
                )
            )
            bits = _parts(columns["bits"].tobytes(), columns["bit_lengths"].tolist())
            return cls(files, cut, IdSet.of(columns["containers"].tolist(), bits))


def _parts(data: bytes, lengths: Iterable[int]) -> Iterator[bytes]:
    at = 0
    for length in lengths:
        yield data[at : at + length]
        at += length


class SentPoints:
    """The directory for the sent states of a volume."""

    def __init__(self, volume: Volume) -> None:
        self._disk = volume.disk
        self._root = volume.root
        self._room = volume.room()
        with suppress(FileExistsError):
            self._disk.make_dir(volume.base_fd, SENT_DIR)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._fd = os.open(SENT_DIR, flags, dir_fd=volume.base_fd)

    def close(self) -> None:
        os.close(self._fd)

    def load(self, point: str) -> Point:
        """Load a state. Raises UsageError if it is no longer known."""
        try:
            return Point.decode(read_file(self._fd, _name(point, _POINT)))
        except (FileNotFoundError, ValueError) as error:
            raise UsageError(
                f"{self._root}: the sent state {point} is no longer known here ({error}); known"
                " states: "
                + (", ".join(self.points()) or "none")
                + "; use `--negotiate`, or send a full stream"
            ) from None

    def points(self) -> list[str]:
        """Return the states that a stream can build on, the latest first."""
        return [os.fsdecode(name[: -len(_POINT)]) for name in self._names(_POINT)]

    def save(self, point: str, value: Point) -> None:
        """Save a state durably, and delete old states. Raises NoSpace."""
        data = value.encode()
        self._room.require(len(data), "the record of sent states")
        self._disk.replace_file(self._fd, _name(point, _POINT), data)
        disk = self._disk
        for name in self._names(_POINT)[KEPT_MAX:]:
            disk.unlink(self._fd, name)

    def new_log(self, point: str, rows: bytes = b"") -> int:
        """Return a descriptor of a new stream's log of chunks, which starts with ``rows``. Raises
        NoSpace."""
        disk = self._disk
        self._room.require(len(rows), "the log of sent chunks")
        for name in self._names(_LOG)[LOGS_KEPT_MAX - 1 :]:
            disk.unlink(self._fd, name)
        fd = disk.create(self._fd, _name(point, _LOG))
        disk.write_at(fd, [rows], 0)
        return fd

    def log_rows(self, point: str, count: int) -> bytes:
        """Return the first rows of the log of an interrupted stream. Raises UsageError."""
        try:
            fd = os.open(_name(point, _LOG), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            rows = b""
        else:
            with opened(fd):
                rows = read_at(fd, count * _ROW.size, 0)
        if len(rows) != count * _ROW.size:
            raise UsageError(
                f"{self._root}: the stream {point} is not known here, or only a smaller part of"
                " it; send again without --resume, which keeps the received chunks"
            )
        return rows

    def _names(self, suffix: bytes) -> list[bytes]:
        names = [n for n in map(os.fsencode, os.listdir(self._fd)) if n.endswith(suffix)]
        times = {name: os.stat(name, dir_fd=self._fd).st_mtime_ns for name in names}
        return sorted(names, key=lambda name: times[name], reverse=True)


def encode_row(record_id: int, fingerprint: bytes) -> bytes:
    """Return a row of a log: id of a chunk, or 0 if it is not in the store; fingerprint."""
    return _ROW.pack(record_id, fingerprint)


def decode_rows(rows: bytes) -> Iterator[tuple[int, bytes]]:
    return _ROW.iter_unpack(rows)


def _name(point: str, suffix: bytes) -> bytes:
    try:
        return str(uuid.UUID(point)).encode() + suffix
    except ValueError:
        raise UsageError(f"{point!r}: not the ID of a stream") from None
