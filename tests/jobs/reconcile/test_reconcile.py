"""Reconciliation: what partitions have in common is there once, and no file notices."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.errors import DamagedTable
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.ids import PackedPairs, container_of, make_id, ordinal_of
from dedupd_core.store.container.record_states import join_set, set_states
from dedupd_core.store.container.table_file import load_table
from dedupd_core.store.container.table_scan import TableShape
from dedupd_core.store.merge_log import MergeLog, MergeLogWriter
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from jobs.reconcile.join import rounds, unreconciled
from jobs.reconcile.reconcile_job import Strategy
from tests.support.lab import Lab, lab_in, new_lab, noise, stop_at
from tests.support.upkeep import PLAIN, chunks_of, damage_record, entry, reconcile, scrub


def put_types(lab: Lab, count: int = 4) -> dict[str, bytes]:
    """Files of several types, each with content of its own, and some that all of them share."""
    shared = noise(500 * KIB, 99)
    contents: dict[str, bytes] = {}
    for n in range(count):
        own = noise(200 * KIB, n)
        contents |= {f"own.t{n}": own, f"again.t{n}": own}
        contents |= {f"shared.t{n}": shared, f"part.t{n}": own[: 90 * KIB] + shared}
    for name, content in contents.items():
        lab.put(name, content)
    return contents


def partitioned(lab: Lab, count: int, more: str = "") -> dict[str, bytes]:
    """A volume optimized in partitions: what its files hold."""
    lab.set_policy(PLAIN + f"partitions = {count}\n" + more)
    contents = put_types(lab)
    lab.optimize()
    return contents


def read_all(lab: Lab, contents: dict[str, bytes]) -> dict[str, bytes]:
    return {name: lab.read(name) for name in contents}


def stored_bytes(lab: Lab) -> int:
    return sum(path.stat().st_size for path in (lab.base / "store/chunks").glob("*.dat"))


def states(lab: Lab) -> dict[int, tbl.TableEntry]:
    """What the tables say of every chunk."""
    found: dict[int, tbl.TableEntry] = {}
    with lab.opened() as volume:
        directory = volume.containers(Kind.CHUNKS)
        for path in (lab.base / "store/chunks").glob("*.dat"):
            number = int(path.stem)
            for ordinal, one in enumerate(directory.entries(number)):
                assert one is not None
                found[make_id(number, ordinal)] = one
        directory.close()
    return found


def reconciled(lab: Lab) -> dict[int, tuple[int, int]]:
    """Of each container, how many of its chunks are in the reconciled set, and of how many."""
    counts: dict[int, tuple[int, int]] = {}
    with lab.opened() as volume:
        directory = volume.containers(Kind.CHUNKS)
        for path in (lab.base / "store/chunks").glob("*.dat"):
            table, entries = load_table(directory.fd, directory.header(int(path.stem)))
            counts[int(path.stem)] = table.reconciled, len(entries)
        directory.close()
    return counts


# --- what it does -----------------------------------------------------------------------------


def test_after_a_reconciliation_no_chunk_is_there_twice(
    tmp_path: Path,
) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        report = reconcile(lab)
        assert report.merged.chunks > 0 and report.merged.left == report.errors == 0
        live = [one.fingerprint for one in states(lab).values() if one.state == tbl.State.LIVE]
        assert len(live) == len(set(live))
        assert all(done == count for done, count in reconciled(lab).values())
        assert read_all(lab, contents) == contents
        lab.verify_clean()
        lab.collect()
        lab.compact()
        assert read_all(lab, contents) == contents
        assert not list((lab.base / "store/merge").iterdir())


@pytest.mark.parametrize("count", [1, 3, 16])
def test_reconciled_and_compacted_it_stores_what_one_index_would(
    tmp_path: Path, count: int
) -> None:
    whole = new_lab(tmp_path / "whole")
    whole.set_policy(PLAIN)
    divided = new_lab(tmp_path / "divided")
    divided.set_policy(PLAIN + f"partitions = {count}\n")
    for lab in (whole, divided):
        contents = put_types(lab, 20)
        lab.optimize()
    before = stored_bytes(divided)
    report = reconcile(divided)
    divided.collect()
    divided.compact()
    assert read_all(divided, contents) == contents
    assert stored_bytes(divided) == pytest.approx(stored_bytes(whole), rel=0.005)
    assert (before > 1.05 * stored_bytes(whole)) == (count > 1)
    assert len(report.partitions) == count
    divided.verify_clean()


def test_the_loss_is_told_by_partition_before_anything_is_merged(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        partitioned(lab, 4)
        before = states(lab)
        dry = reconcile(lab, dry_run=True)
        assert states(lab) == before and dry.merged.chunks == 0
        assert {row.types for row in dry.partitions} == {"all others", "t1", "t2", "t3"} or len(
            {row.types for row in dry.partitions}
        ) == 4
        real = reconcile(lab)
        assert [row.duplicate_raw_bytes for row in dry.partitions] == [
            row.duplicate_raw_bytes for row in real.partitions
        ]
        assert real.merged.raw_bytes == sum(row.duplicate_raw_bytes for row in dry.partitions)
        assert sum(row.logical_bytes for row in dry.partitions) == dry.logical_bytes
        assert dry.savings_partitioned < dry.savings_global
        again = reconcile(lab, dry_run=True)
        assert again.savings_partitioned == pytest.approx(again.savings_global)
        assert again.savings_global == pytest.approx(dry.savings_global)


def test_what_is_new_is_compared_with_all_that_was_there(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        reconcile(lab)
        contents["late.t1"] = contents["own.t2"] + noise(100 * KIB, 55)
        lab.put("late.t1", contents["late.t1"])
        lab.optimize()
        report = reconcile(lab)
        assert 0 < report.compared_records < 20
        assert 0 < report.merged.chunks < report.compared_records
        assert read_all(lab, contents) == contents
        assert reconcile(lab).compared_records == 0


@pytest.mark.parametrize("capacity", [1, 3, 7, 1000])
def test_however_little_memory_there_is_the_result_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    monkeypatch.setattr("dedupd_core.config.memory_budget.JOIN_BYTES_MIN", 14 * capacity)
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4, 'memory = "64 MiB"\n')
        count = len(states(lab))
        report = reconcile(lab)
        assert report.rounds == -(-count // capacity)
        left = [one for one in states(lab).values() if one.state == tbl.State.LIVE]
        assert len(left) == len({one.fingerprint for one in left})
        assert read_all(lab, contents) == contents


shapes = st.dictionaries(
    st.integers(1, 9), st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30))
)


@given(shapes, st.integers(1, 40))
def test_rounds_hold_everything_once_in_the_order_of_partitions(
    given_shapes: dict[int, tuple[int, int, int]], capacity: int
) -> None:
    class Header:
        def __init__(self, partition: int) -> None:
            self.partition_key = PartitionKey(number=partition)

    known = {
        number: TableShape(Header(partition), max(a, b), min(a, b))  # type: ignore[arg-type]
        for number, (partition, a, b) in given_shapes.items()
    }
    groups = list(rounds(unreconciled(known), capacity))
    assert all(sum(one.end - one.first for one in group) <= capacity for group in groups)
    seen = [(one.container, at) for group in groups for one in group
            for at in range(one.first, one.end)]  # fmt: skip
    order = sorted(known, key=lambda number: (known[number].header.partition_key, number))
    assert seen == [
        (number, at)
        for number in order
        for at in range(known[number].reconciled, known[number].count)
    ]


# --- strategies -------------------------------------------------------------------------------


def test_selective_leaves_partitions_that_have_nothing_in_common(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 3\n")
        shared = noise(1 * MIB, 9)
        for name in ("a.t0", "b.t1"):
            lab.put(name, shared + noise(100 * KIB, len(name)))
        lab.put("c.t2", noise(900 * KIB, 4))
        lab.optimize()
        report = reconcile(lab, Strategy.SELECTIVE)
        assert report.merged.chunks > 5
        gains = {row.partition: row.expected_gain for row in report.partitions}
        assert sum(gain == 0 for gain in gains.values()) >= 1
        untouched = [n for n, (done, _) in reconciled(lab).items() if done == 0]
        assert untouched
        assert lab.read("a.t0").startswith(shared) and lab.read("b.t1").startswith(shared)
        assert reconcile(lab).compared_records > 0


def test_delayed_waits_for_a_machine_that_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 3)
        monkeypatch.setattr(
            "jobs.reconcile.reconcile_job.busy_with", lambda: "io (50 % of the time)"
        )
        report = reconcile(lab, Strategy.DELAYED)
        assert (report.rounds, report.rounds_left) == (0, 1)
        assert report.outcome == "postponed: other programs wait for io (50 % of the time)"
        monkeypatch.setattr("jobs.reconcile.reconcile_job.busy_with", lambda: "")
        report = reconcile(lab, Strategy.DELAYED)
        assert report.merged.chunks > 0 and report.outcome == "done"
        assert read_all(lab, contents) == contents


# --- the log ----------------------------------------------------------------------------------


def test_a_log_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab, lab.opened() as volume:
        fd = volume.store.open_merge_directory()
        with opened(fd):
            writer = MergeLogWriter(fd, volume.space.volume_id, volume.disk, volume.room())
            writer.add(PackedPairs(struct.pack("<QQ", 1, 2)))
            with pytest.raises(FileNotFoundError):
                MergeLog(fd, volume.space.volume_id)
            writer.complete()
            writer.close()
            log = MergeLog(fd, volume.space.volume_id)
            assert list(log.pairs()) == [[(1, 2)]]
            log.close()
            with pytest.raises(DamagedTable, match="another volume"):
                MergeLog(fd, bytes(16))


@pytest.mark.parametrize("at", [0, 20, 60, 64, 70, -1])
def test_a_damaged_log_is_made_again(tmp_path: Path, at: int) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 3)
        with stop_at("reconcile.logged"):
            reconcile(lab)
        path = lab.base / "store/merge/merge.log"
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        report = reconcile(lab)
        assert not report.resumed and report.errors == 1
        assert report.merged.chunks > 0
        assert read_all(lab, contents) == contents


def test_a_log_that_is_older_than_much_else_is_still_right(tmp_path: Path) -> None:
    """Between the log and its being carried out: files go, and come, and space comes back."""
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        with stop_at("reconcile.logged"):
            reconcile(lab)
        for name in ("shared.t0", "part.t0", "own.t1", "again.t1"):
            (lab.data / name).unlink()
            del contents[name]
        lab.collect()
        lab.compact()
        contents["new.t3"] = noise(300 * KIB, 123)
        lab.put("new.t3", contents["new.t3"])
        lab.optimize()
        report = reconcile(lab)
        assert report.resumed
        assert read_all(lab, contents) == contents
        live = [one.fingerprint for one in states(lab).values() if one.state == tbl.State.LIVE]
        assert len(live) == len(set(live))


# --- what verify says of it -------------------------------------------------------------------


def test_a_log_is_carried_out_also_where_a_compaction_was_stopped(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        with stop_at("reconcile.logged"):
            reconcile(lab)
        for name in ("own.t3", "again.t3", "part.t3"):
            (lab.data / name).unlink()
            del contents[name]
        lab.collect()
        with stop_at("compact.data-switched"):
            lab.compact()
        report = reconcile(lab)
        assert report.resumed and report.merged.chunks > 0 and not report.errors
        assert read_all(lab, contents) == contents


def test_verify_finds_a_chunk_that_is_in_the_set_twice(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    partitioned(lab, 4)
    for number, (_, count) in reconciled(lab).items():
        with lab.opened() as volume:
            directory = volume.containers(Kind.CHUNKS)
            assert join_set(directory, directory.header(number), 0, count)
            directory.close()
    assert lab.broken() == {"set-distinct"}


def test_verify_finds_merges_without_an_end(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    partitioned(lab, 4)
    reconcile(lab)
    own, into = first_merge(lab)
    with lab.opened() as volume:
        directory = volume.containers(Kind.CHUNKS)
        before = {into: entry(lab, Kind.CHUNKS, into)}
        set_states(directory, {into: before[into]._replace(state=tbl.State.MERGED, target=own)})
        directory.close()
    assert "merge-ends" in lab.broken()


def test_verify_finds_a_table_of_another_partition_and_a_damaged_log(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    partitioned(lab, 4)
    with stop_at("reconcile.logged"):
        reconcile(lab)
    lab.verify_clean()
    path = lab.base / "store/merge/merge.log"
    path.write_bytes(path.read_bytes()[:-1])
    assert lab.broken() == {"merge-log"}
    path.unlink()
    table = lab.table(Kind.CHUNKS)
    data = table.read_bytes()
    header = replace(tbl.decode_header(data, ""), partition=9)
    table.write_bytes(tbl.encode_header(header) + data[tbl.HEADER_BYTES :])
    assert lab.broken() == {"partition-agrees"}


# --- damage -----------------------------------------------------------------------------------


def first_merge(lab: Lab) -> tuple[int, int]:
    """A merged chunk, and where it leads."""
    return next((i, one.target) for i, one in states(lab).items() if one.state == tbl.State.MERGED)


def test_nothing_is_merged_into_a_chunk_whose_bytes_are_damaged(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    contents = partitioned(lab, 4)
    damaged = chunks_of(lab, "shared.t0")[2][0]
    damage_record(lab, Kind.CHUNKS, damaged)
    report = reconcile(lab)
    assert report.merged.damaged == report.errors == 1
    assert entry(lab, Kind.CHUNKS, damaged).state == tbl.State.LIVE
    rest = {name: content for name, content in contents.items()
            if name not in ("shared.t0", "part.t0")}  # fmt: skip
    assert read_all(lab, rest) == rest
    # The other partitions still have its bytes, so scrub gives them back.
    scrub(lab.root)
    reconcile(lab)
    assert read_all(lab, contents) == contents
    lab.verify_clean()


def test_until_a_compaction_the_merged_bytes_make_up_for_damaged_ones(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        reconcile(lab)
        own, into = first_merge(lab)
        damage_record(lab, Kind.CHUNKS, into)
        # Files of the partitions whose chunks were merged read their own.
        names = [n for n in contents if own in {chunk for chunk, _, _ in chunks_of(lab, n)}]
        assert names and {n: lab.read(n) for n in names} == {n: contents[n] for n in names}
        report = scrub(lab.root)
        assert report.repaired["from another record"] == 1 and not report.losses, report
        assert read_all(lab, contents) == contents
        lab.collect()
        lab.compact()
        assert read_all(lab, contents) == contents


def test_references_are_counted_for_the_chunk_that_stays(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 2\nredundancy_threshold = 3\n")
        shared = noise(100 * KIB, 5)
        contents = {f"f{n}.t{n % 2}": shared for n in range(4)}
        for name, content in contents.items():
            lab.put(name, content)
        lab.optimize()
        assert scrub(lab.root).copies_written_bytes < 100 * KIB
        reconcile(lab)
        assert scrub(lab.root).copies_written_bytes >= 100 * KIB
        assert read_all(lab, contents) == contents


def test_the_second_copy_of_a_merged_chunk_serves_until_the_next_scrub(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 2\nredundancy_threshold = 2\n")
        shared = noise(20 * KIB, 5)
        contents = {f"f{n}.t0": shared for n in range(2)} | {f"g{n}.t1": shared for n in range(3)}
        for name, content in contents.items():
            lab.put(name, content)
        lab.optimize()
        assert scrub(lab.root).copies_written == 1
        report = reconcile(lab)
        assert report.merged.chunks == 1
        own, into = first_merge(lab)
        lab.collect()
        lab.compact()
        damage_record(lab, Kind.CHUNKS, into)
        holders = [n for n in contents if chunks_of(lab, n)[0][0] == own]
        assert [lab.read(name) for name in holders] == [shared] * len(holders)
        assert not scrub(lab.root).losses
        assert read_all(lab, contents) == contents


def test_a_collected_forward_frees_nothing_that_others_need(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        reconcile(lab)
        own, _ = first_merge(lab)
        # The files whose chunks stayed go; those that lead to them keep them alive.
        for name in [n for n in contents if n.endswith(".t0")]:
            (lab.data / name).unlink()
            del contents[name]
        assert container_of(own) and ordinal_of(own) >= 0
        lab.collect()
        lab.compact()
        assert read_all(lab, contents) == contents
        for name in list(contents):
            (lab.data / name).unlink()
        lab.collect()
        lab.compact()
        assert all(
            one.state in (tbl.State.TOMBSTONE, tbl.State.ORPHANED) for one in states(lab).values()
        )


def test_orphans_that_live_again_are_compared_again(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        path = lab.data / "own.t2"
        gone = contents.pop("own.t2"), contents.pop("again.t2"), contents.pop("part.t2")
        for name in ("own.t2", "again.t2", "part.t2"):
            (lab.data / name).unlink()
        lab.collect()
        reconcile(lab)
        assert all(done == count for done, count in reconciled(lab).values())
        for name, content in (("own.t2", gone[0]), ("x.t3", gone[0])):
            contents[name] = content
            lab.put(name, content)
        lab.optimize()
        assert any(done < count for done, count in reconciled(lab).values())
        assert reconcile(lab).merged.chunks > 0
        live = [one.fingerprint for one in states(lab).values() if one.state == tbl.State.LIVE]
        assert len(live) == len(set(live)) and path.exists()
        assert read_all(lab, contents) == contents


def test_orphans_leave_the_set_also_where_their_container_is_full_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = ContainerWriter.__init__.__kwdefaults__
    monkeypatch.setitem(defaults or {}, "container_bytes_max", 300 * KIB)
    with lab_in(tmp_path) as lab:
        lab.set_policy(PLAIN + "partitions = 2\n")
        shared = noise(90 * KIB, 1)
        contents = {"shared.a": shared, "own.a": noise(90 * KIB, 2), "own.b": noise(50 * KIB, 3)}
        for name, content in contents.items():
            lab.put(name, content)
        lab.optimize()
        reconcile(lab)
        (lab.data / "shared.a").unlink()
        lab.collect()
        contents["shared.b"] = lab.put("shared.b", shared).read_bytes()
        lab.optimize()
        reconcile(lab)
        contents["large.a"] = noise(250 * KIB, 4)
        for name in ("shared.a", "large.a"):
            lab.put(name, contents[name])
        lab.optimize()
        first = chunks_of(lab, "shared.a")[0][0]
        assert reconciled(lab)[container_of(first)][0] == ordinal_of(first)
        assert reconcile(lab).merged.chunks > 0
        assert read_all(lab, contents) == contents


def test_a_lost_table_leaves_the_set_and_is_compared_again(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = partitioned(lab, 4)
        reconcile(lab)
        number = container_of(first_merge(lab)[0])
        lab.table(Kind.CHUNKS, number).unlink()
        lab.put("more.t1", b"more" * 50_000)
        lab.optimize()
        assert reconciled(lab)[number][0] == 0
        assert reconcile(lab).merged.chunks > 0
        assert read_all(lab, contents) == contents


@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), min_size=1, max_size=6)),
        min_size=2,
        max_size=10,
    ),
    st.integers(1, 30),
)
def test_whatever_files_share_the_store_is_what_a_dictionary_holds(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[int, list[int]]], capacity: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, lab_in(tmp_path_factory.mktemp("r"), "4k") as lab:
        patch.setattr("dedupd_core.config.memory_budget.JOIN_BYTES_MIN", 14 * capacity)
        lab.set_policy(PLAIN + 'partitions = 4\nmemory = "64 MiB"\n')
        contents = {}
        for at, (kind, parts) in enumerate(files):
            contents[f"f{at}.t{kind}"] = b"".join(noise(9 * KIB, seed) for seed in parts)
        for at, (name, content) in enumerate(contents.items()):
            lab.put(name, content)
            if at % 4 == 3:
                lab.optimize()
                reconcile(lab)
        lab.optimize()
        reconcile(lab)
        model = {
            one.fingerprint for one in states(lab).values() if one.state != tbl.State.TOMBSTONE
        }
        live = [one.fingerprint for one in states(lab).values() if one.state == tbl.State.LIVE]
        assert sorted(live) == sorted(model)
        assert read_all(lab, contents) == contents
