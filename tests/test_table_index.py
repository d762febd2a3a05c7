"""The index in little RAM: a dictionary in all it says, whatever its saved file is worth."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd import native
from dedupd.format import table as tbl
from dedupd.format.container import Kind
from dedupd.format.ids import make_id
from dedupd.index.table import SavedTable, TableIndex
from dedupd.store.states import set_states
from tests.helpers import flip_bit, noise
from tests.store_helpers import VOLUME, FullDisk, Records

fingerprints = st.integers(0, 300).map(lambda n: native.fingerprint(b"%d" % n))
SAVED = b"saved.table"


class Indexed:
    """A store, and the indexes that one job after the other has over it."""

    def __init__(self, directory: Path) -> None:
        self.store = Records(directory, container_bytes_max=20_000)
        self.dir_fd = os.open(directory, os.O_RDONLY)
        self.saved = SavedTable(self.store.disk, self.dir_fd, SAVED)
        self.file = directory / SAVED.decode()

    def open(self, page_entries: int = 10, cache_entries: int = 40) -> TableIndex:
        """What the next job begins with."""
        containers = self.store.reopen()
        index = TableIndex(
            self.dir_fd,
            VOLUME,
            Kind.CHUNKS,
            self.saved,
            page_entries=page_entries,
            cache_entries=cache_entries,
            saved_entries_min=1,
        )
        for container in containers:
            index.load(container)
        return index

    def append(self, index: TableIndex, content: bytes) -> int:
        """As ingest does: reserve, insert, append."""
        (chunk_id,) = self.store.append(content)
        index.insert(native.fingerprint(content), [chunk_id])
        return chunk_id

    def fill(self, count: int, first: int = 0) -> None:
        """Append chunks in one job, with no index at all."""
        for at in range(0, count, 50):
            self.store.append(*(noise(300, first + n) for n in range(at, min(at + 50, count))))
        self.store.writer.sync()

    def expect_all(self, index: TableIndex) -> None:
        asked = b"".join(native.fingerprint(one) for one in self.store.contents.values())
        assert list(index.lookup(asked)) == list(self.store.contents)
        assert not any(index.lookup(b"".join(native.fingerprint(b"not %d" % n) for n in range(99))))

    def change(self, chunk_id: int, state: tbl.State) -> None:
        """What a job between two others does to a record."""
        number, ordinal = chunk_id >> 32, chunk_id & 0xFFFFFFFF
        self.store.writer.sync()
        entry = self.store.recover_one(number).entries[ordinal]
        header = self.store.recovered_header(number)
        changed = entry._replace(state=state)
        set_states(self.store.disk, self.dir_fd, header, {ordinal: changed})


@contextmanager
def indexed() -> Iterator[Indexed]:
    with TemporaryDirectory() as directory:
        made = Indexed(Path(directory))
        try:
            yield made
        finally:
            made.store.writer.close()
            os.close(made.dir_fd)


@pytest.fixture
def lab() -> Iterator[Indexed]:
    with indexed() as made:
        yield made


def ask(index: TableIndex, content: bytes) -> int:
    return index.lookup(native.fingerprint(content))[0]


# --- a dictionary -----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(fingerprints, st.integers(1, 2**64 - 1)), max_size=300),
    st.lists(fingerprints, max_size=50),
)
def test_it_equals_a_dictionary(inserted: list[tuple[bytes, int]], asked: list[bytes]) -> None:
    with indexed() as lab:
        index, oracle = lab.open(), dict[bytes, int]()
        for fingerprint, chunk in inserted:
            index.insert(fingerprint, [chunk])
            oracle.setdefault(fingerprint, chunk)
        assert list(index.lookup(b"".join(asked))) == [oracle.get(one, 0) for one in asked]
        assert len(index) == len(oracle)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40)),
        st.tuples(st.just("lose"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["next job", "crash", "rebuild"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=12, deadline=None)
@given(steps)
def test_through_jobs_crashes_and_changes_of_state_it_equals_a_dictionary(
    done: list[tuple[str, int]],
) -> None:
    with indexed() as lab:
        index, oracle = lab.open(page_entries=3, cache_entries=6), dict[bytes, int]()
        for step, n in done:
            content = noise(100 + n, n)
            if step == "put" and content not in oracle:
                oracle[content] = lab.append(index, content)
            elif step == "lose" and content in oracle:
                lab.change(oracle.pop(content), tbl.State.TOMBSTONE)
                index = lab.open(page_entries=3, cache_entries=6)
            elif step == "rebuild":
                index.rebuild()
            elif step in ("next job", "crash"):
                lab.store.writer.sync()
                if step == "next job":
                    index.save()
                index = lab.open(page_entries=3, cache_entries=6)
            asked = [noise(100 + n, n) for n in range(41)]
            found = index.lookup(b"".join(map(native.fingerprint, asked)))
            assert list(found) == [oracle.get(one, 0) for one in asked]


def test_fingerprints_with_one_hash_are_told_apart(lab: Indexed) -> None:
    index = lab.open()
    alike = [bytes(24) + n.to_bytes(8, "little") for n in range(500)]
    index.insert(b"".join(alike), range(1 << 32, (1 << 32) + 500))
    assert list(index.lookup(b"".join(alike))) == list(range(1 << 32, (1 << 32) + 500))
    assert not any(index.lookup(bytes(24) + bytes.fromhex("ffffffff00000000")))


def test_entries_on_disk_with_equal_signatures_are_told_apart(lab: Indexed) -> None:
    lab.fill(100)
    index = lab.open()
    asked = b"".join(native.fingerprint(one)[:8] + bytes(24) for one in lab.store.contents.values())
    assert not any(index.lookup(asked))
    assert index.counters().false_positives >= 100
    lab.expect_all(index)


@pytest.mark.parametrize("count", [0, 1, 2000])
def test_every_chunk_of_a_store_is_found(lab: Indexed, count: int) -> None:
    lab.fill(count)
    index = lab.open()
    lab.expect_all(index)
    assert len(index) == count


def test_it_grows_with_what_is_inserted(lab: Indexed) -> None:
    index = lab.open()
    rows = [native.fingerprint(b"%d" % n) for n in range(60_000)]
    for at in range(0, len(rows), 1000):
        index.insert(b"".join(rows[at : at + 1000]), range((9 << 32) + at, (9 << 32) + at + 1000))
    assert list(index.lookup(b"".join(rows))) == list(range(9 << 32, (9 << 32) + 60_000))
    assert index.load_factor > 0.9


# --- the log and the cache --------------------------------------------------------------------


def test_a_run_of_duplicates_costs_one_read_for_a_page(lab: Indexed) -> None:
    lab.fill(50)
    index = lab.open(page_entries=1000)
    lab.expect_all(index)
    assert index.counters().disk_reads == 1
    assert index.counters().hits == 50


def test_chunks_that_are_not_known_cost_next_to_no_read(lab: Indexed) -> None:
    lab.fill(50)
    index = lab.open()
    index.lookup(b"".join(native.fingerprint(b"new %d" % n) for n in range(10_000)))
    assert index.counters().disk_reads <= 10


def test_the_cache_keeps_no_more_than_it_may(lab: Indexed) -> None:
    lab.fill(100)
    index = lab.open(page_entries=1, cache_entries=2)
    first, second, third = (native.fingerprint(noise(300, n)) for n in range(3))
    index.lookup(first + second + third + first)
    assert index.counters().disk_reads == 4
    index.lookup(first + third)
    assert index.counters().disk_reads == 4


def test_a_chunk_is_found_before_and_after_its_entry_is_on_disk(lab: Indexed) -> None:
    index = lab.open()
    fingerprint = native.fingerprint(noise(300, 1))
    index.insert(fingerprint, [make_id(1, 0)])
    assert index.lookup(fingerprint)[0] == make_id(1, 0)
    assert lab.store.append(noise(300, 1)) == [make_id(1, 0)]
    # So many that those on disk by now are let go of.
    others = b"".join(native.fingerprint(b"other %d" % n) for n in range(20_000))
    index.insert(others, range(2 << 32, (2 << 32) + 20_000))
    assert index.counters().disk_reads == 0
    assert index.lookup(fingerprint)[0] == make_id(1, 0)
    assert index.counters().disk_reads == 1


@pytest.mark.parametrize("state", [s for s in tbl.State if s not in tbl.USABLE])
def test_a_chunk_that_is_of_no_use_any_more_is_not_offered(lab: Indexed, state: tbl.State) -> None:
    lab.fill(10)
    index = lab.open()
    lab.change(make_id(1, 3), state)
    assert ask(index, noise(300, 3)) == 0
    assert ask(index, noise(300, 4)) == make_id(1, 4)


def test_an_orphan_that_was_found_is_told_of_once(lab: Indexed) -> None:
    lab.fill(10)
    lab.change(make_id(1, 3), tbl.State.ORPHANED)
    index = lab.open()
    assert ask(index, noise(300, 4)) == make_id(1, 4)
    assert index.take_found_orphans() == set()
    assert ask(index, noise(300, 3)) == make_id(1, 3)
    assert index.take_found_orphans() == {make_id(1, 3)}
    assert ask(index, noise(300, 3)) == make_id(1, 3)
    assert index.take_found_orphans() == set()


# --- the saved table --------------------------------------------------------------------------


def test_a_saved_table_is_used_and_knows_what_was_appended_since(lab: Indexed) -> None:
    lab.fill(100)
    lab.open().save()
    lab.fill(100, first=100)
    index = lab.open()
    assert index.was_restored
    lab.expect_all(index)
    assert len(index) == 200


@pytest.mark.parametrize("part", [0, 0.1, 0.3, 0.6, 0.999])
def test_a_damaged_file_is_noticed(lab: Indexed, part: float) -> None:
    lab.fill(100)
    lab.open().save()
    flip_bit(lab.file, int(part * lab.file.stat().st_size))
    index = lab.open()
    assert not index.was_restored
    lab.expect_all(index)


@pytest.mark.parametrize("cut", [1, 100, 10_000])
def test_a_short_file_is_noticed(lab: Indexed, cut: int) -> None:
    lab.fill(100)
    lab.open().save()
    os.truncate(lab.file, max(0, lab.file.stat().st_size - cut))
    assert not lab.open().was_restored


def test_the_file_of_another_volume_is_noticed(lab: Indexed) -> None:
    lab.fill(100)
    lab.open().save()
    other = TableIndex(lab.dir_fd, bytes(16), Kind.CHUNKS, lab.saved)
    assert not other.was_restored


def test_a_store_that_took_the_place_of_another_is_indexed_anew(lab: Indexed) -> None:
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


def test_a_table_with_too_much_in_it_that_is_no_more_is_not_saved(lab: Indexed) -> None:
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
    lab.saved = SavedTable(disk, lab.dir_fd, SAVED)
    lab.open().save()
    assert not list(lab.store.directory.glob("saved*"))


def test_what_was_never_appended_is_forgotten(lab: Indexed) -> None:
    index = lab.open()
    lab.append(index, noise(300, 0))
    index.insert(native.fingerprint(b"reserved"), [make_id(1, 1)])
    index.save()
    index = lab.open()
    assert index.was_restored and ask(index, b"reserved") == 0
    assert lab.append(index, noise(300, 1)) == make_id(1, 1)
    assert ask(index, noise(300, 1)) == make_id(1, 1)
    assert ask(index, b"reserved") == 0


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
    lab: Indexed, call: Callable[[native.TableIndex], object]
) -> None:
    index = native.TableIndex(lab.dir_fd, VOLUME, 1, capacity=0, page_entries=1, cache_entries=1)
    with pytest.raises(ValueError):
        call(index)
