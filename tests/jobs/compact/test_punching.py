"""Punching: dead payloads give their blocks back in place, and nobody takes a hole for data."""

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.errors import DamagedChunk, DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import make_id
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.table import State
from dedupd_core.store.container.container import has_hole
from dedupd_core.store.container.punching import BLOCK_BYTES, dead_payloads, punch
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.table_file import load_table
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB, MIB
from jobs.check.invariants import Invariant
from jobs.scrub.scrub_job import Depth
from tests.conftest import MakeFileSystem
from tests.jobs.compact.test_compact import become
from tests.jobs.test_rebuild import lose_tables, rebuild
from tests.support.lab import (
    Lab,
    fill_to_the_brim,
    lab_in,
    new_lab,
    noise,
    run_cli,
    stop_at,
    write_out,
)
from tests.support.stores import LazyDisk, Records
from tests.support.stub_chunks import StubOfChunks
from tests.support.upkeep import PLAIN, chunks_of, damage_record, entry, reconcile, scrub

STEPS = ["states.written", "states.durable", "punch.told", "punch.counted", "punch.punched"]


def free_now(lab: Lab) -> int:
    """What ``statfs`` has, the part that is root's included."""
    write_out(lab.root)
    space = os.statvfs(lab.root)
    return space.f_bfree * space.f_frsize


def filled(directory: Path, count: int = 8, disk: Disk | None = None) -> tuple[Records, list[int]]:
    """Records of 30 KB, none of which is needed less than another."""
    store = Records(directory, disk=disk)
    ids = store.append(*(noise(30_000, seed) for seed in range(count)))
    store.writer.sync()
    store.writer.close()
    return store, ids


def run_punch(store: Records, number: int = 1) -> int:
    with store.opened() as directory:
        state = store.recover_one(number)
        return punch(directory, state, dead_payloads(directory, state))


def allocated(path: Path) -> int:
    return path.stat().st_blocks * BLOCK_BYTES


def collected(store: Records, ids: Sequence[int]) -> None:
    """Expect an error of each of these, and never zeros."""
    reader = store.reader()
    for one in ids:
        with pytest.raises(DamagedChunk, match="was collected"):
            reader.read(one)
    reader.close()


def test_whole_blocks_of_dead_payloads_come_back_and_the_rest_stays(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    become(store, {1: (State.ORPHANED, 1), 4: (State.TOMBSTONE, 0)})
    before, size = allocated(store.data()), store.data().stat().st_size
    freed = run_punch(store)
    assert freed == before - allocated(store.data()) >= 2 * (30_000 - 4096 - 4095)
    assert store.data().stat().st_size == size
    dead = [ids[1], ids[4]]
    store.contents = {one: data for one, data in store.contents.items() if one not in dead}
    store.expect_all()
    collected(store, dead)
    states = [store.recover_one().entries[at].state for at in (1, 4)]
    assert states == [State.TOMBSTONE, State.TOMBSTONE]
    assert run_punch(store) == 0, "there is nothing left"
    assert store.recovered_header().punches == 1
    store.writer, _ = store._writer()
    store.append(noise(30_000, 99))
    store.writer.sync()
    store.expect_all()


def test_an_orphan_without_a_whole_block_stays_one_that_may_come_back(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(3000), noise(4000, 1))
    store.writer.sync()
    become(store, {0: (State.ORPHANED, 1)})
    assert run_punch(store) == 0
    assert store.recover_one().entries[0].state == State.ORPHANED
    assert store.recovered_header().punches == 0


def test_a_reader_that_has_the_container_open_goes_on(tmp_path: Path) -> None:
    store, ids = filled(tmp_path / "s")
    reader = store.reader()
    assert reader.read(ids[1])[1] == noise(30_000, 1)
    become(store, {1: (State.ORPHANED, 1)})
    run_punch(store)
    assert reader.read(ids[0])[1] == noise(30_000)
    check = fingerprint_check(native.hashing.fingerprint(noise(30_000, 1), "blake3"))
    assert StubOfChunks(reader, [(ids[1], 30_000, check)]).reasons() == ["not live"]
    with pytest.raises(DamagedChunk, match="was collected"):
        reader.read(ids[1])
    reader.close()


@pytest.mark.parametrize("point", STEPS)
def test_a_death_leaves_nothing_that_may_be_named_without_its_bytes(
    tmp_path: Path, point: str
) -> None:
    store, ids = filled(tmp_path / "s")
    become(store, {1: (State.ORPHANED, 1), 4: (State.MERGED, ids[0])})
    store.contents[ids[4]] = store.contents[ids[0]]
    with stop_at(point):
        run_punch(store)
    orphan = store.recover_one().entries[1]
    with open(store.data(), "rb") as data:
        assert (
            not has_hole(data.fileno(), orphan.offset, orphan.stored_length)
            or orphan.state == State.TOMBSTONE
        )
    del store.contents[ids[1]]
    store.expect_all()
    run_punch(store)
    collected(store, [ids[1]])
    store.expect_all()


class UnsyncedTables(Disk):
    """Counts what is synced before anything is punched."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def sync_data(self, fd: int) -> None:
        self.steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))

    def punch(self, fd: int, offset: int, length: int) -> None:
        self.steps.append("punch")
        super().punch(fd, offset, length)


def test_tombstones_that_a_dead_job_left_in_memory_are_synced_before_a_punch(
    tmp_path: Path,
) -> None:
    disk = UnsyncedTables()
    store, _ = filled(tmp_path / "s", disk=disk)
    with stop_at("states.written"):
        become(store, {1: (State.TOMBSTONE, 0)})
    disk.steps.clear()
    run_punch(store)
    assert disk.steps == ["00000001.dir", "00000001.dat", "punch"]


def test_the_bytes_of_another_record_are_never_punched(tmp_path: Path) -> None:
    """Blocks of a table that a disk has exchanged: each entry is valid, and of another ordinal."""
    store, _ = filled(tmp_path / "s")
    state = become(store, {1: (State.ORPHANED, 1)})
    with store.opened() as directory:
        one, other = state.entries[1], state.entries[2]
        wrong = {1: other._replace(state=State.ORPHANED), 2: one._replace(state=State.LIVE)}
        set_entries(directory, state.header, wrong)
    assert run_punch(store) == 0
    store.expect_all()


def test_an_older_copy_of_a_table_does_not_count_once_anything_was_punched(
    tmp_path: Path,
) -> None:
    """It says that records are live whose bytes are gone: a file would be committed for them."""
    store, ids = filled(tmp_path / "s")
    older = store.table().read_bytes()
    become(store, {1: (State.ORPHANED, 1)})
    run_punch(store)
    store.table().write_bytes(older)
    with store.opened() as directory, pytest.raises(DamagedTable):
        load_table(directory.fd, store.recovered_header())
    assert store.recover_one().entries[1].state == State.QUARANTINED
    del store.contents[ids[1]]
    store.expect_all()


def test_a_container_that_was_punched_as_often_as_counts_waits_for_its_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fmt, "PUNCHES_MAX", 2)
    store, _ = filled(tmp_path / "s")
    for at in range(3):
        become(store, {at: (State.ORPHANED, 1)})
        assert (run_punch(store) > 0) == (at < 2)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(State)), st.integers(1, 40_000)), min_size=1, max_size=12
    )
)
@settings(max_examples=40, deadline=None)
def test_any_mixture_of_states_keeps_what_is_live(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[State, int]]
) -> None:
    """Against a model: which whole blocks go, and that all others keep every byte."""
    store = Records(tmp_path_factory.mktemp("c") / "s", disk=LazyDisk())
    ids = store.append(noise(500, 1000), *(noise(size, n) for n, (_, size) in enumerate(wanted)))
    store.writer.sync()
    store.writer.close()
    become(store, {at + 1: (state, ids[0]) for at, (state, _) in enumerate(wanted)})
    entries, before = store.recover_one().entries, store.data().read_bytes()
    run_punch(store)
    expected = bytearray(before)
    block = os.statvfs(store.directory).f_frsize
    for entry_of in entries:
        if entry_of.state in (State.ORPHANED, State.MERGED, State.TOMBSTONE):
            start = -(-(entry_of.offset + fmt.RECORD_HEADER_BYTES) // block) * block
            end = entry_of.offset + fmt.RECORD_HEADER_BYTES + entry_of.stored_length
            end = end // block * block
            if start < end:
                expected[start:end] = bytes(end - start)
    found = store.data().read_bytes()
    header = fmt.FILE_HEADER_BYTES
    assert found[header:] == expected[header:]


# --- the jobs ---------------------------------------------------------------------------------


def half_deleted(lab: Lab, count: int = 12, size: int = 500 * KIB) -> dict[str, bytes]:
    """Optimize, then delete half of the files; returns what is left."""
    files = {f"f{n}": noise(size, n) for n in range(count)}
    for name, content in files.items():
        lab.put(name, content)
    lab.optimize()
    for name in random.Random(1).sample(sorted(files), count // 2):
        (lab.data / name).unlink()
        del files[name]
    return files


def live(lab: Lab) -> set[tuple[Kind, int]]:
    """The ids of the records that are live, by the tables."""
    found = set[tuple[Kind, int]]()
    with lab.opened() as volume:
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            with volume.containers(kind) as directory:
                for number in directory.numbers():
                    for at, one in enumerate(directory.entries(number)):
                        if one is not None and one.state == State.LIVE:
                            found.add((kind, make_id(number, at)))
    return found


def test_a_collection_gives_the_space_of_what_was_deleted_back(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        files = half_deleted(lab)
        before = allocated(lab.container(Kind.CHUNKS))
        report = lab.collect()
        freed = before - allocated(lab.container(Kind.CHUNKS))
        assert report.freed_bytes >= freed >= 0.9 * 6 * 500 * KIB
        assert report.punched > 0
        assert {name: lab.read(name) for name in files} == files
        assert lab.collect().freed_bytes == 0
        verified = lab.verify_clean()
        assert (verified.quarantined, verified.collected) == (0, 0)
        assert scrub(lab.root).outcome == scrub(lab.root, Depth.QUICK).outcome == "clean"
        # What is left is about a block a record: not worth a copy under this policy.
        lab.set_policy(PLAIN.replace("compaction_min_dead = 0", "compaction_min_dead = 0.2"))
        compacted = lab.compact()
        assert (compacted.rewritten, compacted.copied_bytes) == (0, 0)


@pytest.mark.parametrize("compacted", [False, True])
def test_the_containers_alone_tell_what_is_live(tmp_path: Path, compacted: bool) -> None:
    with lab_in(tmp_path) as lab:
        files = half_deleted(lab)
        lab.collect()
        if compacted:
            lab.set_policy(PLAIN)
            assert lab.compact().rewritten
        before = live(lab)
        shutil.rmtree(lab.base / "catalog")
        lose_tables(lab)
        report = rebuild(lab)
        assert report.losses == []
        assert before <= live(lab)
        verified = lab.verify_clean()
        assert verified.quarantined == 0
        assert (verified.collected > 0) == (not compacted)
        assert {name: lab.read(name) for name in files} == files
        lab.collect()
        assert live(lab) == before
        assert lab.verify_clean().collected == 0


def test_the_same_bytes_are_stored_again_and_not_named(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        gone = noise(400 * KIB, 1)
        lab.put("gone", gone)
        lab.put("kept", noise(400 * KIB, 2))
        lab.optimize()
        (lab.data / "gone").unlink()
        lab.collect()
        lab.put("again", gone)
        assert lab.optimize().sums.new_chunks > 0
        assert lab.read("again") == gone


def test_a_tombstone_that_lies_is_found(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(400 * KIB))
    lab.optimize()
    [(chunk, *_), *_] = chunks_of(lab, "file")
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        said = directory.entry(chunk)
        assert said is not None
        wrong = said._replace(state=State.TOMBSTONE)
        set_entries(directory, directory.header(1), {chunk & 0xFFFF_FFFF: wrong})
    assert Invariant.RECIPE_CHUNKS in lab.verify().by_invariant


def test_a_live_record_that_was_punched_is_found(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(400 * KIB))
    lab.optimize()
    [(chunk, *_), *_] = chunks_of(lab, "file")
    said = entry(lab, Kind.CHUNKS, chunk)
    with open(lab.container(Kind.CHUNKS), "r+b") as file:
        start = -(-(said.offset + 80) // 4096) * 4096
        Disk().punch(file.fileno(), start, 4096)
    assert Invariant.RECORD_PAYLOAD in lab.verify().by_invariant
    with pytest.raises(DamagedChunk):
        lab.read("file")
    assert run_cli("run", "scrub", "--full", lab.root).returncode == 4


def merged_volume(lab: Lab) -> bytes:
    """The same bytes in two partitions, merged; the second name's chunks lead to the first's."""
    lab.set_policy(PLAIN + "partitions = 3\n")
    content = noise(300 * KIB, 7)
    for name in ("a.t1", "b.t2"):
        lab.put(name, content)
    lab.optimize()
    assert reconcile(lab).merged.chunks > 0
    return content


def states_of(lab: Lab, state: State) -> list[tbl.TableEntry]:
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        return [
            one
            for number in directory.numbers()
            for one in directory.entries(number)
            if one is not None and one.state == state
        ]


def test_merged_records_give_their_own_bytes_back_and_stay_merged(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = merged_volume(lab)
        merged = len(states_of(lab, State.MERGED))
        assert lab.collect().punched == merged > 0
        assert len(states_of(lab, State.MERGED)) == merged
        assert lab.read("a.t1") == lab.read("b.t2") == content
        lose_tables(lab)
        assert rebuild(lab).losses == []
        assert lab.read("a.t1") == lab.read("b.t2") == content
        assert lab.verify_clean().quarantined == 0


def test_the_last_bytes_of_a_merged_record_stay(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = merged_volume(lab)
        target = states_of(lab, State.MERGED)[0].target
        damage_record(lab, Kind.CHUNKS, target)
        chunks = {name: chunks_of(lab, name)[0][0] for name in ("a.t1", "b.t2")}
        [merged] = [name for name, one in chunks.items() if one != target]
        lab.collect()
        assert lab.read(merged) == content
        assert scrub(lab.root).lost_bytes == 0
        assert lab.read("a.t1") == lab.read("b.t2") == content


# --- file systems -----------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_space_comes_back_with_the_disk_full(loop_fs: MakeFileSystem, kind: str) -> None:
    lab = new_lab(loop_fs(kind, "320M") / "volume")
    files = half_deleted(lab, 40, MIB)
    stored = {one.fingerprint: one.stored_length for one in states_of(lab, State.LIVE)}
    fill_to_the_brim(lab.root / "theirs")
    before = free_now(lab)
    done = run_cli("run", "gc", lab.root)
    assert done.returncode == 0, done.stderr
    for left in states_of(lab, State.LIVE):
        del stored[left.fingerprint]
    ideal = sum(max(0, length - 4 * KIB) for length in stored.values())
    assert free_now(lab) - before >= 0.9 * ideal >= 15 * MIB
    assert {name: lab.read(name) for name in files} == files
    lab.verify_clean()


@pytest.mark.root
def test_where_nothing_comes_back_nothing_is_punched_and_compaction_copies(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs("btrfs", "320M") / "volume")
    files = half_deleted(lab, 40, MIB)
    assert lab.collect().punched == 0
    compacted = lab.compact()
    assert compacted.punched == 0 < compacted.rewritten
    assert compacted.freed_bytes >= 0.9 * 20 * MIB
    assert {name: lab.read(name) for name in files} == files
    lab.verify_clean()
