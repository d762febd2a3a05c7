"""A store of small records, and the indexes that one job after the other has over it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.saved_index import SavedFile
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.container.record_states import set_entries
from tests.support.lab import noise
from tests.support.stores import Records

KINDS = {"table": TableIndex, "bloom": BloomIndex}


class Indexed:
    """A store, and the indexes that one job after the other has over it."""

    def __init__(
        self, directory: Path, kind: str = "table", container_bytes_max: int = 20_000
    ) -> None:
        self.store = Records(directory, container_bytes_max=container_bytes_max)
        self.directory = self.store.opened()
        self.kind = KINDS[kind]
        name = f"saved.{kind}"
        self.saved = SavedFile(
            self.store.disk, self.directory.fd, name.encode(), lambda: self.directory.room
        )
        self.file = directory / name

    def open(self, page_entries: int = 10, cache_entries: int = 40) -> TableIndex | BloomIndex:
        """What the next job begins with."""
        containers = self.store.reopen()
        index: TableIndex | BloomIndex = self.kind(
            self.directory,
            self.saved,
            capacity=len(self.store.contents),
            page_entries=page_entries,
            cache_entries=cache_entries,
            saved_entries_min=1,
        )
        for container in containers:
            index.load(container)
        return index

    def append(self, index: TableIndex | BloomIndex, content: bytes) -> int:
        """As ingest does: reserve, insert, append."""
        (chunk_id,) = self.store.append(content)
        index.insert(native.hashing.fingerprint(content), [chunk_id])
        return chunk_id

    def fill(self, count: int, first: int = 0) -> None:
        """Append chunks in one job, with no index at all."""
        for at in range(0, count, 50):
            self.store.append(*(noise(300, first + n) for n in range(at, min(at + 50, count))))
        self.store.writer.sync()

    def expect_all(self, index: TableIndex | BloomIndex) -> None:
        asked = b"".join(native.hashing.fingerprint(one) for one in self.store.contents.values())
        assert list(index.lookup(asked)) == list(self.store.contents)
        assert not any(
            index.lookup(b"".join(native.hashing.fingerprint(b"not %d" % n) for n in range(99)))
        )

    def change(self, chunk_id: int, state: tbl.State) -> None:
        """What a job between two others does to a record."""
        number, ordinal = chunk_id >> 32, chunk_id & 0xFFFFFFFF
        self.store.writer.sync()
        entry = self.store.recover_one(number).entries[ordinal]
        header = self.store.recovered_header(number)
        changed = entry._replace(state=state)
        set_entries(self.directory, header, {ordinal: changed})


@contextmanager
def indexed(kind: str = "table", container_bytes_max: int = 20_000) -> Iterator[Indexed]:
    with TemporaryDirectory() as directory:
        made = Indexed(Path(directory), kind, container_bytes_max)
        try:
            yield made
        finally:
            made.store.writer.close()
            made.directory.close()


def ask(index: TableIndex | BloomIndex, content: bytes) -> int:
    return index.lookup(native.hashing.fingerprint(content))[0]
