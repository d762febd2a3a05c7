"""Partitions: as few as the budget allows, each type in one, and nothing lost on the way."""

import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedupd_core.config.memory_budget import capacity, planned
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import PartitionKey
from dedupd_core.store.container.table_totals import entries_by_partition
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.partition_map import PartitionMap, plan, type_of
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.batch_reader import BATCHES_MIN
from jobs.optimize.optimize_job import Optimize
from jobs.optimize.store_session import StoreSession
from tests.support.lab import Lab, fill, lab_in, noise

PLAIN = 'min_age = "0s"\nmin_size = "1"\n'

types = st.sampled_from([f"t{n}" for n in range(12)])
work = st.dictionaries(types, st.integers(1, 100), max_size=12)
known = st.dictionaries(st.integers(0, 5), st.integers(0, 200), max_size=4)
maps = st.builds(
    lambda rest, by_type: PartitionMap(rest, max(rest, *by_type.values(), 0), by_type),
    st.integers(0, 3),
    st.dictionaries(types, st.integers(0, 5), max_size=5),
)


def by_partition(lab: Lab, kind: Kind = Kind.CHUNKS) -> dict[int, int]:
    """How many entries the containers of each partition have."""
    with lab.opened() as volume, opened(volume.store.open_directory(kind)) as dir_fd:
        return {key.number: entries for key, entries in entries_by_partition(dir_fd).items()}


# --- planning ---------------------------------------------------------------------------------


@given(work, st.integers(1200, 5000))
def test_what_fits_into_the_budget_has_one_partition(work: dict[str, int], room: int) -> None:
    planned = plan(PartitionMap(), work, {}, room, 1)
    assert planned.open == [0]


@given(maps, work, known, st.integers(100, 300))
@example(PartitionMap(0, 0, {"t0": 0}), {"t0": 1, "t1": 1, "t2": 1, "t3": 98}, {0: 100, 1: 0}, 100)
def test_no_partition_is_planned_larger_than_the_budget(
    before: PartitionMap, work: dict[str, int], known: dict[int, int], room: int
) -> None:
    planned = plan(before, work, known, room, 1)
    fresh = [t for t in work if t not in before.by_type]
    for number in {planned.of_type(t) for t in fresh} - set(before.by_type.values()):
        load = sum(work[t] for t in work if planned.of_type(t) == number)
        assert known.get(number, 0) + load <= room


@given(maps, work, known, st.integers(100, 300), st.integers(1, 8))
def test_a_full_partition_gets_nothing_and_no_number_is_given_out_twice(
    before: PartitionMap, work: dict[str, int], known: dict[int, int], room: int, count: int
) -> None:
    planned = plan(before, work, known, room, count)
    for number in planned.open:
        assert known.get(number, 0) < room
        assert number in before.open or number > max(before.last, *known, 0)
    assert planned.last >= max(planned.open)


@given(maps, work, known)
def test_a_type_keeps_its_partition_while_there_is_room(
    before: PartitionMap, work: dict[str, int], known: dict[int, int]
) -> None:
    planned = plan(before, work, known, 10_000, 5)
    assert {t: planned.of_type(t) for t in before.by_type} == before.by_type


@given(work, st.integers(1, 16))
def test_a_number_that_is_asked_for_is_reached_where_there_are_types(
    work: dict[str, int], count: int
) -> None:
    planned = plan(PartitionMap(), work, {}, 1 << 40, count)
    assert len({planned.of_type(t) for t in work} | {planned.rest}) >= min(count, len(work))
    assert len(planned.open) <= count


@given(maps)
def test_a_map_comes_back_from_the_catalogue(one: PartitionMap) -> None:
    assert PartitionMap.from_json(one.to_json()) == one


@pytest.mark.parametrize("value", [None, [], {}, {"rest": 1}, {"rest": "x", "last": 0}, 7])
def test_a_damaged_map_is_a_new_one(value: object) -> None:
    assert PartitionMap.from_json(value) == PartitionMap()


def test_the_type_of_a_file_is_the_end_of_its_name() -> None:
    names = [b"a/b.TXT", b"a.d/b", b".profile", b"x.tar.gz", b"odd.\xff"]
    assert [type_of(name) for name in names] == ["txt", "", "", "gz", "\udcff"]


def test_a_quarter_of_the_memory_is_for_the_index() -> None:
    assert capacity(IndexChoice.TABLE, 256 * MIB) == pytest.approx(60 * MIB / 6.5, rel=0.01)
    assert capacity(IndexChoice.TABLE, 64 * MIB) < capacity(IndexChoice.BLOOM, 64 * MIB)


# --- optimizing -------------------------------------------------------------------------------


def put_types(lab: Lab, count: int = 4) -> dict[str, bytes]:
    """Files of several types: two equal ones of each, and one that all types share."""
    shared = noise(300 * KIB, 99)
    contents: dict[str, bytes] = {}
    for n in range(count):
        own = noise(200 * KIB, n)
        contents |= {f"a{n}.t{n}": own, f"d/b{n}.t{n}": own, f"shared.t{n}": shared}
    for name, content in contents.items():
        lab.put(name, content)
    return contents


def test_a_small_volume_has_one_partition(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        put_types(lab)
        report = lab.optimize()
        assert report.partitions == 1
        assert list(by_partition(lab)) == [0]


def test_types_have_partitions_of_their_own_where_the_policy_asks(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 4\n")
        contents = put_types(lab)
        report = lab.optimize()
        assert report.partitions == 4
        assert report.files_optimized == len(contents)
        chunks = by_partition(lab)
        # What is shared is there once in each, and nothing else is there twice.
        assert len(chunks) == 4 and len(set(chunks.values())) <= 4
        assert set(by_partition(lab, Kind.RECIPES)) == set(chunks)
        assert {name: lab.read(name) for name in contents} == contents


def test_files_of_more_types_than_are_counted_are_taken_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("dedupd_core.volume.partition_map", "jobs.optimize.partitioning"):
        monkeypatch.setattr(f"{module}.TYPES_MAX", 3)
    with lab_in(tmp_path) as lab:
        lab.put("large.first", noise(5 * MIB))
        lab.set_policy(PLAIN)
        lab.optimize()
        lab.set_policy(PLAIN + "partitions = 3\n")
        names = ["no type", "file.t1", "file.t2", "below/file.t3", "below/file.t4"]
        for name in names:
            lab.put(name, name.encode())
        assert lab.optimize().files_optimized == len(names)


def test_later_files_go_to_the_containers_of_their_partition(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 3\n")
        contents = put_types(lab, 3)
        lab.optimize()
        before = by_partition(lab)
        containers = sorted(lab.container(Kind.CHUNKS).parent.glob("*.dat"))
        lab.put("again.t1", contents["a1.t1"])
        lab.put("more.t2", noise(100 * KIB, 77))
        report = lab.optimize()
        assert report.partitions == 2
        after = by_partition(lab)
        assert sum(after[n] > before[n] for n in after) == 1
        assert sorted(lab.container(Kind.CHUNKS).parent.glob("*.dat")) == containers
        assert lab.read("again.t1") == contents["a1.t1"]


def test_without_a_catalogue_no_number_is_given_out_again(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 3\n")
        put_types(lab, 3)
        lab.optimize()
        before = set(by_partition(lab))
        shutil.rmtree(lab.base / "catalog")
        put_types(lab, 6)
        lab.optimize()
        new = set(by_partition(lab)) - before
        assert new and min(new) > max(before)


def test_a_full_partition_is_closed_also_in_the_middle_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.optimize.partitioning.capacity", lambda *_: 40)
    monkeypatch.setattr("jobs.optimize.optimize_job.batches_within", lambda *_: (MIB, BATCHES_MIN))
    with lab_in(tmp_path, "4k") as lab:
        lab.set_policy(PLAIN)
        contents = fill(lab) | {"large.img": noise(12 * MIB, 5)}
        lab.put("large.img", contents["large.img"])
        report = lab.optimize()
        assert report.partitions > 2
        assert {name: lab.read(name) for name in contents} == contents
        # The chunks of batches that are under way come on top of what fills it.
        most = 40 + BATCHES_MIN * MIB // (2 * KIB) + 4
        assert max(by_partition(lab).values()) < most < sum(by_partition(lab).values())


def test_a_table_that_is_full_becomes_filters_and_the_partition_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.optimize.store_session.capacity", lambda *_: 40)
    monkeypatch.setattr("jobs.optimize.batch_reader.BATCH_BYTES", 1 * MIB)
    with lab_in(tmp_path, "4k") as lab:
        lab.set_policy(PLAIN)
        # What comes last is also in what came when the index was a table.
        contents = {"1.img": noise(3 * MIB, 5), "2.img": noise(3 * MIB, 6) + noise(3 * MIB, 5)}
        for name, content in contents.items():
            lab.put(name, content)
        made: list[StoreSession] = []
        use_filters = StoreSession.use_filters

        def count(store: StoreSession) -> None:
            made.append(store)
            use_filters(store)

        monkeypatch.setattr(StoreSession, "use_filters", count)
        report = lab.optimize()
        assert report.partitions == len(made) == 1
        chunks = sum(by_partition(lab).values())
        lab.put("3.img", contents["2.img"])
        lab.optimize()
        assert sum(by_partition(lab).values()) == chunks
        contents["3.img"] = contents["2.img"]
        assert {name: lab.read(name) for name in contents} == contents
        assert lab.container(Kind.CHUNKS).stat().st_size < 6.6 * MIB


def test_partitions_are_as_large_as_filters_allow_where_no_disk_rotates() -> None:
    assert planned(IndexChoice.TABLE, rotates=True) is IndexChoice.TABLE
    assert planned(IndexChoice.TABLE, rotates=False) is IndexChoice.BLOOM
    # 2.3 TiB of chunks of 80 KiB at the default memory.
    assert capacity(IndexChoice.BLOOM, 256 * MIB) * 80 * KIB > 2.2 * (1 << 40)


def test_a_cancelled_run_leaves_every_partition_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 4\n")
        contents = put_types(lab)
        with lab.opened() as volume, volume.job_lock(), monkeypatch.context() as patch:
            run = JobRun("optimize")
            use_partition = StoreSession.use_partition

            def cancel_at_the_third(store: StoreSession, partition: PartitionKey) -> None:
                if partition.number == 2:
                    run.cancel()
                use_partition(store, partition)

            patch.setattr(StoreSession, "use_partition", cancel_at_the_third)
            with pytest.raises(Cancelled):
                Optimize(volume, run).run()
        # It may end before anything of the third is there.
        assert {0, 1} <= set(by_partition(lab)) <= {0, 1, 2}
        lab.optimize()
        assert set(by_partition(lab)) == {0, 1, 2, 3}
        assert {name: lab.read(name) for name in contents} == contents
