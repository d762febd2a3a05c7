"""Records that were appended in vain are taken back, and nothing else is."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.errors import NoSpace
from dedupd_core.store.unkept_records import Position
from tests.support.lab import noise, stop_at
from tests.support.stores import LazyDisk, Records

POINTS = ["cut.lowered", "cut.cut", "cut.removed"]


def forget(store: Records, ids: list[int]) -> None:
    for one in ids:
        del store.contents[one]


def state(store: Records) -> dict[str, bytes]:
    """The containers and tables, but for those that hold nothing."""
    files = {path.name: path.read_bytes() for path in store.directory.iterdir()}
    return {n: data for n, data in files.items() if len(data) > 128}


@pytest.mark.parametrize("is_synced", [False, True])
def test_what_was_not_kept_goes_and_the_containers_are_as_they_were(
    tmp_path: Path, is_synced: bool
) -> None:
    store = Records(tmp_path / "s", container_bytes_max=20_000)
    store.append(noise(3000))
    store.writer.sync()
    store.writer.keep()
    before = state(store)
    for seed in range(1, 12):
        forget(store, store.append(noise(3000, seed)))
        if is_synced:
            store.writer.sync()
    store.writer.cut_back()
    store.writer.remove_emptied()
    assert store.writer.cut_bytes >= 11 * 3000
    store.reopen()
    assert state(store) == before
    store.append(noise(500, 99))
    store.writer.sync()
    store.expect_all()
    store.writer.close()


def test_a_position_divides_what_is_kept_from_what_goes(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=8000)
    for seed in range(4):
        store.append(noise(3000, seed))
    position = store.writer.position
    gone = [one for seed in range(4, 9) for one in store.append(noise(3000, seed))]
    store.writer.sync()
    forget(store, gone)
    store.writer.keep(position)
    store.writer.cut_back()
    store.reopen()
    store.expect_all()
    assert sum(len(one.entries) for one in store.recovered) == 4
    store.writer.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_death_while_records_are_taken_back_costs_none_that_was_kept(
    tmp_path: Path, point: str
) -> None:
    store = Records(tmp_path / "s", container_bytes_max=8000)
    store.append(noise(3000))
    store.writer.sync()
    store.writer.keep()
    for seed in range(1, 9):
        forget(store, store.append(noise(3000, seed)))
        store.writer.sync()
    with stop_at(point):
        store.writer.cut_back()
        store.writer.remove_emptied()
    store.reopen()
    store.append(noise(700, 50), noise(800, 51))
    store.writer.sync()
    store.expect_all()
    store.reopen()
    store.expect_all()
    store.writer.close()


class NoMark(LazyDisk):
    """Has no space to write the header of a table, once it is ``full``."""

    full = False

    def write_at(self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int) -> int:
        if self.full and offset == 0:
            raise NoSpace("no space left to write")
        return super().write_at(fd, data, offset)


def test_where_no_mark_can_be_written_what_was_synced_stays_and_the_rest_goes(
    tmp_path: Path,
) -> None:
    """A file system that takes new blocks for each write (btrfs) has none for the mark."""
    disk = NoMark()
    store = Records(tmp_path / "s", disk=disk)
    store.append(noise(3000))
    store.writer.sync()
    store.writer.keep()
    store.append(noise(3000, 1))
    store.writer.sync()
    forget(store, store.append(noise(3000, 2)))
    disk.full = True
    store.writer.cut_back()
    disk.full = False
    assert store.writer.cut_bytes >= 3000
    store.writer.sync()  # of what is there, and no more
    store.expect_all()
    store.reopen()
    store.expect_all()
    assert sum(len(one.entries) for one in store.recovered) == 2
    store.writer.close()


steps = st.lists(st.sampled_from(["append", "append", "sync", "keep", "mark", "keep to"]))


@settings(max_examples=60)
@given(steps=steps, container_bytes_max=st.sampled_from([3000, 9000, 1 << 30]))
def test_whatever_was_kept_is_there_and_nothing_is_lost_with_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], container_bytes_max: int
) -> None:
    directory = tmp_path_factory.mktemp("s")
    store = Records(directory, disk=LazyDisk(), container_bytes_max=container_bytes_max)
    marked, before, kept = Position(), dict[int, bytes](), dict[int, bytes]()
    for seed, step in enumerate(steps):
        if step == "append":
            store.append(noise(700 + 13 * seed, seed), noise(300, seed + 1000))
        elif step == "sync":
            store.writer.sync()
        elif step == "mark":
            marked, before = store.writer.position, dict(store.contents)
        elif step == "keep":
            store.writer.keep()
            kept = dict(store.contents)
        else:
            store.writer.keep(marked)
            kept |= before
    store.writer.cut_back()
    store.writer.remove_emptied()
    store.contents = kept
    store.reopen()
    store.expect_all()
    assert sum(len(one.entries) for one in store.recovered) == len(kept)
    store.append(noise(2000, 5000))
    store.writer.sync()
    store.expect_all()
    store.writer.close()
