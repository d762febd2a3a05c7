"""Compaction: space comes back, ids stay, and readers never notice."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.config.room import Room
from dedupd_core.errors import DamagedChunk, DamagedContainer, NoSpace
from dedupd_core.format import container as fmt
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import ordinal_of
from dedupd_core.format.table import State
from dedupd_core.store.container import compaction
from dedupd_core.store.container.compaction import compact, remove, remove_remains
from dedupd_core.store.container.files import container_numbers, remains, table_numbers
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.recovery import recover
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.garbage import Weight, garbage_of, weigh, weights
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.units import KIB, MIB
from tests.conftest import MakeFileSystem
from tests.support.lab import (
    fill_to_the_brim,
    flip_bit,
    lab_in,
    new_lab,
    noise,
    prose,
    run_cli,
    stop_at,
    write_out,
)
from tests.support.stores import FullDisk, LazyDisk, Records

STEPS = ["compact.copied", "compact.written", "compact.data-switched", "compact.switched"]


def become(store: Records, states: dict[int, tuple[State, int]], number: int = 1) -> Recovered:
    """Give entries a state and a target; returns the container as it is then."""
    state = store.recover_one(number)
    changes = {
        at: state.entries[at]._replace(state=new, target=target)
        for at, (new, target) in states.items()
    }
    with store.opened() as directory:
        set_entries(directory, state.header, changes)
    return store.recover_one(number)


def run_compact(store: Records, number: int = 1) -> int:
    with store.opened() as directory:
        return compact(directory, store.recover_one(number))


def weight_of(store: Records, number: int = 1) -> Weight:
    state = store.recover_one(number)
    return weigh(state.entries.data, fmt.seed_of(state.header), state.end)


def filled(directory: Path, disk: LazyDisk | None = None) -> tuple[Records, list[int]]:
    """Six records, of which four are needed once :func:`half_dead` has been here."""
    store = Records(directory, disk=disk)
    ids = store.append(*(noise(3000 + seed, seed) for seed in range(3)), prose(9000))
    ids += store.append(noise(100, 7), noise(200, 8))
    store.writer.sync()
    return store, ids


def half_dead(store: Records, ids: list[int]) -> list[int]:
    """Orphan two, merge one; returns what can still be read."""
    become(
        store,
        {1: (State.ORPHANED, 1), 2: (State.TOMBSTONE, 0), 4: (State.MERGED, ids[0])},
    )
    store.contents[ids[4]] = store.contents[ids[0]]
    dead = {ids[1], ids[2]}
    store.contents = {one: data for one, data in store.contents.items() if one not in dead}
    return sorted(dead)


def test_the_garbage_of_a_store_is_what_compaction_gives_back(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    size = store.data().stat().st_size
    half_dead(store, ids)
    directory = str(store.directory)
    garbage = garbage_of(weights(directory), 0.2)
    assert (garbage.orphaned_records, garbage.quarantined_records) == (1, 0)
    assert garbage.orphaned_bytes == fmt.record_size(3001)
    assert garbage.dead_bytes == garbage.compaction_frees_bytes == size - run_compact(store)
    after = garbage_of(weights(directory), 0.2)
    assert (after.orphaned_records, after.dead_bytes) == (0, 0)


def test_what_is_below_the_threshold_is_garbage_that_stays(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    garbage = garbage_of(weights(str(store.directory)), 0.99)
    assert garbage.dead_bytes > 0 == garbage.compaction_frees_bytes


def test_what_is_needed_keeps_its_id_and_the_rest_is_gone(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    dead = half_dead(store, ids)
    before = store.data().stat().st_size
    weight = weight_of(store)
    size = run_compact(store)
    assert size == store.data().stat().st_size == weight.needed_bytes
    assert before - size == weight.gain_bytes > 5000
    store.expect_all()
    reader = store.reader()
    for one in dead:
        with pytest.raises(DamagedChunk, match="was collected"):
            reader.read(one)
    reader.close()


def test_a_scan_of_the_new_file_alone_rebuilds_its_table(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    run_compact(store)
    entries = list(store.recover_one().entries)
    store.table().unlink()
    store.expect_all()
    assert list(store.recover_one().entries) == entries


def test_each_compaction_is_a_generation_and_the_container_grows_on(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    for generation in (2, 3):
        run_compact(store)
        assert store.recovered_header().generation == generation
        store.reopen()
        (new,) = store.append(noise(5000, generation))
        assert ordinal_of(new) == 6 + generation - 2
        store.writer.sync()
        store.expect_all()


def test_long_rows_of_garbage_take_nothing(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    ids = [one for _ in range(5) for one in store.append(*(noise(50, n) for n in range(100)))]
    store.writer.sync()
    store.writer.close()
    become(store, {ordinal_of(one): (State.ORPHANED, 1) for one in ids[:-1]})
    assert run_compact(store) == fmt.FILE_HEADER_BYTES + fmt.record_size(50)
    assert store.read([ids[-1]]) == [noise(50, 99)]


@pytest.mark.parametrize("point", STEPS)
def test_a_death_leaves_the_old_container_or_the_new_one(tmp_path: Path, point: str) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    with stop_at(point):
        run_compact(store)
    store.expect_all()
    store.recover_one()
    assert {path.name for path in store.directory.iterdir()} == {"00000001.dat", "00000001.dir"}
    store.expect_all()
    run_compact(store)
    store.expect_all()


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("second", ["recovery.switched", "recovery.table-written"])
def test_a_second_death_in_the_recovery_loses_nothing(
    tmp_path: Path, point: str, second: str
) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    with stop_at(point):
        run_compact(store)
    try:
        with stop_at(second):
            store.recover_one()
    except AssertionError:
        pass  # there was nothing to be recovered
    store.expect_all()
    store.recover_one()
    store.expect_all()


def test_readers_go_on_with_the_file_that_they_have_open(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    reader = store.reader()
    assert reader.read(ids[0])[1] == noise(3000)
    half_dead(store, ids)
    run_compact(store)
    for one, content in store.contents.items():
        assert reader.read(one)[1] == content
    reader.close()


def test_a_reader_finds_what_was_appended_after_a_compaction(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    reader = store.reader()
    reader.read(ids[0])
    half_dead(store, ids)
    run_compact(store)
    store.reopen()
    (new,) = store.append(noise(700, 30))
    assert reader.read(new)[1] == noise(700, 30)
    reader.close()


def test_a_reader_that_opens_between_the_two_renames_uses_the_new_table(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    with stop_at("compact.data-switched"):
        run_compact(store)
    reader = store.reader()
    container = reader._acquire(1)
    assert container.entry(0) is not None
    assert reader.read(ids[0])[1] == noise(3000)
    reader.close()


def test_a_damaged_record_that_is_needed_keeps_the_container_as_it_is(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    flip_bit(store.data(), store.recover_one().entries[0].offset + 90)
    before = {path.name: path.read_bytes() for path in store.directory.iterdir()}
    with pytest.raises(DamagedContainer, match="record 00000001:0 is damaged"):
        run_compact(store)
    assert {path.name: path.read_bytes() for path in store.directory.iterdir()} == before


def test_damaged_garbage_is_dropped_unread(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    half_dead(store, ids)
    flip_bit(store.data(), store.recover_one().entries[1].offset + 90)
    run_compact(store)
    store.expect_all()


def test_a_full_disk_leaves_the_old_container(tmp_path: Path) -> None:
    disk = FullDisk()
    store, ids = filled(tmp_path / "s", disk=disk)  # type: ignore[arg-type]
    half_dead(store, ids)
    disk.room = 1000
    with pytest.raises(NoSpace):
        run_compact(store)
    assert len(list(store.directory.iterdir())) == 2
    store.expect_all()


@given(st.lists(st.sampled_from([State.LIVE, State.ORPHANED, State.MERGED, State.TOMBSTONE])))
@settings(max_examples=40)
def test_any_mixture_of_states_survives_any_number_of_compactions(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[State]
) -> None:
    """Against a model: id → what it reads as, or nothing."""
    store = Records(tmp_path_factory.mktemp("c") / "s", disk=LazyDisk())
    count = len(wanted)
    ids = store.append(noise(500, 1000), *(noise(40 + 7 * n, n) for n in range(count)))
    store.writer.sync()
    store.writer.close()
    become(
        store,
        {
            at + 1: (state, ids[0] if state is State.MERGED else 0)
            for at, state in enumerate(wanted)
        },
    )
    for at, state in enumerate(wanted):
        if state is State.MERGED:
            store.contents[ids[at + 1]] = store.contents[ids[0]]
        elif state is not State.LIVE:
            del store.contents[ids[at + 1]]
    for _ in range(2):
        weight = weight_of(store)
        assert run_compact(store) == weight.needed_bytes
        assert store.table().stat().st_size == weight.table_bytes
        store.expect_all()
        entries = list(store.recover_one().entries)
        table = store.table().read_bytes()
        store.table().unlink()
        assert list(store.recover_one().entries) == entries, "from the records alone"
        store.table().write_bytes(table)
    assert weight_of(store).gain_bytes == 0


# --- the job ----------------------------------------------------------------------------------


def test_space_comes_back_when_half_of_the_bytes_are_deleted(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        kept = {f"keep{n}": noise(500 * KIB, n) for n in range(10)}
        for name, content in kept.items():
            lab.put(name, content)
            lab.put(f"drop-{name}", noise(500 * KIB, 100 + len(name) + int(name[4:])))
        lab.optimize()

        def store_bytes() -> int:
            return sum(p.stat().st_blocks * 512 for p in (lab.base / "store").rglob("*.d*"))

        before = store_bytes()
        for name in kept:
            (lab.data / f"drop-{name}").unlink()
        lab.collect()
        report = lab.compact()
        assert before - store_bytes() >= 0.95 * 10 * 500 * KIB
        assert report.rewritten >= 1
        for name, content in kept.items():
            assert lab.read(name) == content


@pytest.mark.usefixtures("kept_extents")
def test_containers_below_the_threshold_stay(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("keep", noise(2 * MIB))
        lab.put("gone", noise(200 * KIB, 1))
        lab.optimize()
        lab.set_policy('min_age = "0s"\nmin_size = 1\ncompaction_min_dead = 0.5\n')
        (lab.data / "gone").unlink()
        lab.collect()
        report = lab.compact()
        assert (report.rewritten, report.below_threshold) == (0, 1)
        lab.set_policy('min_age = "0s"\nmin_size = 1\n')
        assert lab.compact().rewritten == 1


def test_the_last_container_shrinks_to_nothing_and_keeps_its_number(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        first = lab.put("first", noise(900 * KIB))
        lab.optimize()
        first.unlink()
        lab.collect()
        lab.compact()
        assert lab.container(Kind.CHUNKS).stat().st_size < 4 * KIB
        lab.put("second", noise(900 * KIB, 1))
        lab.optimize()
        assert lab.read("second") == noise(900 * KIB, 1)


def _no_space(*_: object) -> None:
    raise NoSpace("no space left")


def test_removing_a_dead_container_survives_a_death_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "compact.collected", "compact.data-removed", "compact.removed"
    for point in (*points, "compact.table-removed"):
        if point not in points:
            monkeypatch.setattr(compaction, "set_entries", _no_space)
        store = Records(tmp_path / point, container_bytes_max=4000)
        ids = [*store.append(noise(3000)), *store.append(noise(3000, 1))]
        store.writer.sync()
        become(store, {0: (State.ORPHANED, 1)})
        with store.opened() as directory, stop_at(point):
            remove(directory, store.recover_one(1))
        assert store.read([ids[1]]) == [noise(3000, 1)]
        store.reopen()
        (new,) = store.append(noise(100, 2))
        assert new >> 32 >= 2
        with store.opened() as directory:
            remove_remains(directory)
            assert remains(directory.fd) == []
            assert table_numbers(directory.fd) == container_numbers(directory.fd)
        store.writer.close()


@pytest.mark.parametrize("point", ["compact.collected", "compact.released", *STEPS])
def test_making_room_in_a_dead_container_survives_a_death_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with lab_in(tmp_path) as lab:
        first = lab.put("first", noise(900 * KIB))
        lab.optimize()
        first.unlink()
        lab.collect()
        with monkeypatch.context() as patch, stop_at(point):
            patch.setattr(Room, "left_bytes", property(lambda _: 0))
            lab.compact()
        lab.verify_clean()
        lab.put("second", noise(900 * KIB))  # the same bytes: its chunks must not be found
        lab.optimize()
        assert lab.read("second") == noise(900 * KIB)
        lab.collect()
        lab.compact()
        assert lab.read("second") == noise(900 * KIB)


def test_a_needed_quarantined_record_keeps_its_container(
    tmp_path: Path,
) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("hurt", noise(300 * KIB))
        lab.put("gone", noise(300 * KIB, 1))
        lab.optimize()
        (lab.data / "gone").unlink()
        lab.collect()
        with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
            state = recover(directory, 1)
            at, needed = next(
                (at, entry) for at, entry in enumerate(state.entries) if entry.state == State.LIVE
            )
            hurt = needed._replace(state=State.QUARANTINED)
            set_entries(directory, state.header, {at: hurt})
            report = lab.compact()
            assert (report.rewritten, report.errors) == (0, 1)
            assert "quarantined" in report.messages[0]
            set_entries(directory, state.header, {at: needed})


# --- full disks -------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_garbage_goes_and_the_history_is_written_with_the_disk_full(
    loop_fs: MakeFileSystem, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lab = new_lab(loop_fs(kind, "320M") / "volume")
    defaults = ContainerWriter.__init__.__kwdefaults__ or {}
    monkeypatch.setitem(defaults, "container_bytes_max", 8 * MIB)
    for at in range(3):
        lab.put(f"old{at}", noise(8 * MIB, at))
        lab.optimize()
    kept = noise(2 * MIB, 9)
    lab.put("kept", kept)
    lab.optimize()
    for at in range(3):
        (lab.data / f"old{at}").unlink()
    if kind == "btrfs":  # which takes new blocks for each write, also of a table
        assert run_cli("run", "gc", lab.root).returncode == 0
    fill_to_the_brim(lab.root / "theirs")
    for job in ("gc", "compact"):
        done = run_cli("run", job, lab.root)
        assert done.returncode in (0, 1), done.stderr
        assert "not in the history" not in done.stderr
    with lab.opened() as volume:
        assert [run["job"] for run in volume.hints.runs(2)] == ["compact", "gc"]
        assert sum(run["removed"] for run in volume.hints.runs(2 + (kind == "btrfs"))) >= 2
    write_out(lab.root)
    assert os.statvfs(lab.root).f_bfree * 4096 >= 16 * MIB
    assert lab.read("kept") == kept
    lab.verify_clean()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_the_last_container_shrinks_with_the_disk_full(loop_fs: MakeFileSystem, kind: str) -> None:
    lab = new_lab(loop_fs(kind, "320M") / "volume")
    lab.put("old", noise(20 * MIB, 1))
    lab.optimize()
    (lab.data / "old").unlink()
    fill_to_the_brim(lab.root / "theirs")
    assert lab.collect().freed_bytes + lab.compact().freed_bytes >= 20 * MIB
    write_out(lab.root)
    assert os.statvfs(lab.root).f_bfree * 4096 >= 19 * MIB
    lab.verify_clean()
    (lab.root / "theirs").unlink()
    lab.put("new", noise(MIB, 2))
    lab.optimize()
    lab.verify_clean()
