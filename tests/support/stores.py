"""A chunk store without a volume around it: a writer, what it wrote, and a reader to compare."""

import errno
import os
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.format import container as fmt
from dedupd_core.format.container import Kind
from dedupd_core.format.store_secret import StoreSecret
from dedupd_core.store.container.container import data_name, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.recovery import recover
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.reader import RecordReader
from dedupd_core.store.writer import ContainerWriter, NewRecords
from dedupd_core.system.disk import Disk

VOLUME = bytes(range(16))
SECRET = StoreSecret((bytes(range(32)),))


class LazyDisk(Disk):
    """Waits for no disk: for tests with very many volumes, whose machine does not stop."""

    def sync_data(self, fd: int) -> None:
        pass

    def sync_file(self, fd: int) -> None:
        pass

    def sync_dir(self, dir_fd: int) -> None:
        pass


class FullDisk(Disk):
    """Has no room beyond a number of bytes, and takes part of what does not fit."""

    room = 1 << 40

    def write_at(self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int) -> int:
        joined = b"".join(data)
        if len(joined) > self.room:
            super().write_at(fd, [joined[: self.room]], offset)
            raise NoSpace("no space left to write")
        self.room -= len(joined)
        return super().write_at(fd, [joined], offset)

    def write_out(self, fd: int, data: memoryview, offset: int) -> None:
        self.write_at(fd, [data], offset)

    def write_some(
        self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int
    ) -> int:
        joined = b"".join(data)[: self.room]
        if not joined:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(joined)
        return super().write_some(fd, [joined], offset)


class DictIndex:
    """A ``ChunkIndex`` over a dictionary."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def lookup(self, fingerprints: bytes) -> "memoryview[int]":
        return memoryview(array("Q", (self._ids.get(one, 0) for one in _each(fingerprints))))

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        for fingerprint, chunk_id in zip(_each(fingerprints), ids, strict=True):
            self._ids.setdefault(fingerprint, chunk_id)


def _each(fingerprints: bytes) -> list[bytes]:
    size = native.hashing.HASH_BYTES
    return [fingerprints[at : at + size] for at in range(0, len(fingerprints), size)]


def append_chunks(writer: ContainerWriter, *payloads: bytes, level: int = 3) -> list[int]:
    """Append chunks; returns their ids."""
    lengths = array("I", map(len, payloads))
    first = writer.reserve(len(payloads), sum(lengths))
    encoded = native.codec.encode(
        b"".join(payloads),
        array("I", accumulate(lengths[:-1], initial=0)),
        lengths,
        level=level,
        saving_min=0.05,
        header_bytes=fmt.RECORD_HEADER_BYTES,
        align_bytes=fmt.ALIGN_BYTES,
    )
    fingerprints = b"".join(map(native.hashing.fingerprint, payloads))
    rows = NewRecords(fingerprints, lengths, array("I", [0] * len(payloads)))
    writer.append(first, rows, encoded)
    return [first + at for at in range(len(payloads))]


class Records:
    """A directory of containers, a writer that appends to it, and all that it should hold."""

    def __init__(
        self,
        directory: Path,
        *,
        kind: Kind = Kind.CHUNKS,
        disk: Disk | None = None,
        container_bytes_max: int = fmt.CONTAINER_BYTES_MAX,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.kind = kind
        self.disk = disk or Disk()
        self.container_bytes_max = container_bytes_max
        self.contents: dict[int, bytes] = {}
        self.writer, self.recovered = self._writer()

    def _writer(self) -> tuple[ContainerWriter, list[Recovered]]:
        writer = ContainerWriter(self.opened(), container_bytes_max=self.container_bytes_max)
        recovered: list[Recovered] = []
        writer.recover(recovered.append)
        return writer, recovered

    def append(self, *payloads: bytes, level: int = 3) -> list[int]:
        """Append records; returns their ids."""
        ids = append_chunks(self.writer, *payloads, level=level)
        self.contents.update(zip(ids, payloads, strict=True))
        return ids

    def reopen(self) -> list[Recovered]:
        """What the next job does: recover, and go on."""
        self.writer.close()
        self.writer, self.recovered = self._writer()
        return self.recovered

    def reader(self) -> RecordReader:
        return RecordReader(str(self.directory), self.kind, VOLUME)

    def read(self, ids: Sequence[int]) -> list[bytes]:
        """What a reader that was just opened reads."""
        reader = self.reader()
        try:
            return [reader.read(one)[1] for one in ids]
        finally:
            reader.close()

    def expect_all(self) -> None:
        """Everything that was appended is there."""
        assert self.read(list(self.contents)) == list(self.contents.values())

    def data(self, number: int = 1) -> Path:
        return self.directory / data_name(number).decode()

    def table(self, number: int = 1) -> Path:
        return self.directory / table_name(number).decode()

    def recovered_header(self, number: int = 1) -> fmt.FileHeader:
        """The header of a container as it is now."""
        return fmt.decode_file_header(self.data(number).read_bytes()[: fmt.FILE_HEADER_BYTES], "")

    def recover_one(self, number: int = 1) -> Recovered:
        with self.opened() as directory:
            return recover(directory, number)

    def opened(self) -> ContainerDirectory:
        """The directory of the containers, to be closed by the caller."""
        fd = os.open(self.directory, os.O_RDONLY)
        return ContainerDirectory(fd, self.kind, VOLUME, self.disk, read_secret=lambda: SECRET)
