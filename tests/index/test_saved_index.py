"""What becomes of an index in little RAM between two jobs."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import make_id
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.system.disk import Disk
from tests.support.indexes import KINDS, Indexed, ask, indexed
from tests.support.lab import flip_bit, noise
from tests.support.stores import VOLUME, FullDisk, Records


def load_factor(index: TableIndex) -> float:
    return native.testing.load_factor(index._native)


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest) -> Iterator[Indexed]:
    with indexed(request.param) as made:
        yield made


@pytest.fixture
def table() -> Iterator[Indexed]:
    with indexed("table") as made:
        yield made


def test_a_saved_index_is_used_and_knows_what_was_appended_since(lab: Indexed) -> None:
    lab.fill(100)
    lab.open().save()
    lab.fill(100, first=100)
    index = lab.open()
    assert index.was_restored
    lab.expect_all(index)
    assert len(index) == 200


@pytest.mark.parametrize("cut", [1, 100, 10_000])
def test_a_short_file_is_noticed(lab: Indexed, cut: int) -> None:
    lab.fill(100)
    lab.open().save()
    os.truncate(lab.file, max(0, lab.file.stat().st_size - cut))
    assert not lab.open().was_restored


def test_the_file_of_another_volume_is_noticed(lab: Indexed) -> None:
    lab.fill(100)
    lab.open().save()
    stranger = ContainerDirectory(lab.directory.fd, Kind.CHUNKS, bytes(16), lab.store.disk)
    other = lab.kind(stranger, lab.saved, capacity=0)
    assert not other.was_restored


def test_a_store_that_replaced_another_is_indexed_from_scratch(lab: Indexed) -> None:
    lab.fill(100)
    lab.open().save()
    lab.store.writer.close()
    for path in (*lab.store.directory.glob("*.da*"), *lab.store.directory.glob("*.dir")):
        path.unlink()
    lab.store = Records(lab.store.directory, container_bytes_max=20_000)
    lab.fill(100, first=1000)
    index = lab.open()
    lab.expect_all(index)
    assert not any(ask(index, noise(300, n)) for n in range(100))


def test_chunks_that_are_whole_again_are_offered_again(lab: Indexed) -> None:
    lab.fill(10)
    lab.change(make_id(1, 3), tbl.State.QUARANTINED)
    lab.open().save()
    lab.change(make_id(1, 3), tbl.State.LIVE)
    index = lab.open()
    assert index.was_restored
    lab.expect_all(index)


def test_an_index_of_too_much_that_is_no_more_is_not_saved(lab: Indexed) -> None:
    lab.fill(40)
    lab.open().save()
    assert lab.file.exists()
    for n in range(20):
        lab.change(make_id(1, n), tbl.State.TOMBSTONE)
    lab.open().save()
    assert not lab.file.exists()
    assert len(lab.open()) == 20


def test_where_there_is_no_room_nothing_is_saved_and_nothing_fails(lab: Indexed) -> None:
    lab.fill(100)
    disk = FullDisk()
    disk.room = 1000
    lab.saved = lab.saved._replace(disk=disk)
    lab.open().save()
    assert not list(lab.store.directory.glob("saved.table*"))


def test_what_was_never_appended_is_forgotten(lab: Indexed) -> None:
    index = lab.open()
    lab.append(index, noise(300, 0))
    index.insert(native.hashing.fingerprint(b"reserved"), [make_id(1, 1)])
    index.save()
    index = lab.open()
    assert index.was_restored and ask(index, b"reserved") == 0
    assert lab.append(index, noise(300, 1)) == make_id(1, 1)
    assert ask(index, noise(300, 1)) == make_id(1, 1)
    assert ask(index, b"reserved") == 0


class Crash(BaseException):
    """A job ends here."""


class CrashingDisk(Disk):
    """Ends the job before the so-manieth effect on the index's file."""

    def __init__(self, effects: int) -> None:
        self.effects_left = effects

    def __getattribute__(self, name: str) -> Any:
        if name in ("create", "open_write", "write_at", "sync_data", "rename", "unlink"):
            self.effects_left -= 1
            if self.effects_left < 0:
                raise Crash(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("effects", range(9))
def test_a_job_that_ends_anywhere_leaves_a_whole_index_or_an_unused_one(
    lab: Indexed, effects: int
) -> None:
    lab.fill(60)
    lab.open().save()
    lab.fill(60, first=60)
    whole, lab.saved = lab.saved, lab.saved._replace(disk=CrashingDisk(effects))
    with suppress(Crash):
        index = lab.open()
        for n in range(120, 180):
            lab.append(index, noise(300, n))
        lab.store.writer.sync()
        index.save()
    lab.saved = whole
    lab.store.writer.sync()
    lab.expect_all(lab.open())
    lab.open().save()
    index = lab.open()
    assert index.was_restored
    lab.expect_all(index)


def test_the_table_stays_full_while_it_grows(table: Indexed) -> None:
    index = table.open()
    rows = b"".join(native.hashing.fingerprint(b"%d" % n) for n in range(60_000))
    for at in range(0, 60_000, 1000):
        index.insert(rows[at * 32 : (at + 1000) * 32], range((9 << 32) + at, (9 << 32) + at + 1000))
    assert isinstance(index, TableIndex) and load_factor(index) > 0.93


@pytest.mark.parametrize("part", [0, 0.1, 0.3, 0.6, 0.999])
def test_a_damaged_table_is_noticed(table: Indexed, part: float) -> None:
    table.fill(100)
    table.open().save()
    flip_bit(table.file, int(part * table.file.stat().st_size))
    index = table.open()
    assert not index.was_restored
    table.expect_all(index)


def test_a_table_of_another_format_is_made_again(table: Indexed) -> None:
    """Format 1 had its entries in other buckets."""
    table.fill(100)
    table.open().save()
    data = bytearray(table.file.read_bytes())
    data[8:10] = (1).to_bytes(2, "little")
    data[56:64] = native.hashing.xxh3_64(bytes(data[:56])).to_bytes(8, "little")
    table.file.write_bytes(data)
    index = table.open()
    assert not index.was_restored
    table.expect_all(index)


@pytest.mark.parametrize("count", [4_500, 9_000, 14_000])
def test_a_table_that_has_grown_is_saved_at_its_width(count: int) -> None:
    """Groups that have just grown, and groups that have not yet, come back as they were."""
    with indexed("table", container_bytes_max=1 << 20) as lab:
        before = lab.open()
        for at in range(0, count, 500):
            contents = [noise(64, n) for n in range(at, at + 500)]
            ids = lab.store.append(*contents)
            before.insert(b"".join(map(native.hashing.fingerprint, contents)), ids)
        lab.store.writer.sync()
        before.save()
        after = lab.open()
        assert isinstance(before, TableIndex) and isinstance(after, TableIndex)
        assert after.was_restored and load_factor(after) == load_factor(before)
        lab.expect_all(after)


@pytest.mark.parametrize(
    "call",
    [
        lambda index: index.lookup(b"short"),
        lambda index: index.insert(bytes(32), b""),
        lambda index: index.insert(bytes(32), bytes(8)),
        lambda index: index.insert(bytes(31), bytes(8)),
    ],
)
def test_wrong_arguments_are_refused(
    table: Indexed, call: Callable[[native.index.TableIndex], object]
) -> None:
    index = native.index.TableIndex(
        table.directory.fd, VOLUME, 1, capacity=0, page_entries=1, cache_entries=1
    )
    with pytest.raises(ValueError):
        call(index)
