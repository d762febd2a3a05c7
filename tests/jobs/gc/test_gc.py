"""Collecting garbage: nothing that is needed goes, and everything else does."""

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.format.container import FILE_HEADER_BYTES as START
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import make_id
from dedupd_core.format.recipe import encode_node
from dedupd_core.format.table import State
from dedupd_core.native.upkeep import Marks, Needs, NodesRead
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.container.recovery import recover
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from jobs.check.verify import Verify
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from tests.conftest import MakeFileSystem
from tests.support.lab import (
    Lab,
    fill,
    flip_bit,
    lab_in,
    mounted_over,
    new_lab,
    noise,
    prose,
    stop_at,
)
from tests.support.recipe_nodes import decode_node
from tests.support.stores import LazyDisk, Records
from tests.support.upkeep import chunks_of, damage_record, scrub


def states(lab: Lab, kind: Kind = Kind.CHUNKS) -> dict[int, int]:
    """How many records of each state a store has."""
    counts: dict[int, int] = {}
    with lab.opened() as volume, volume.containers(kind) as directory:
        for number in directory.numbers():
            for entry in recover(directory, number).entries:
                counts[entry.state] = counts.get(entry.state, 0) + 1
    return counts


def test_what_stubs_name_stays_live(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        report = lab.collect()
        assert (report.outcome, report.orphaned_chunks, report.orphaned_recipes) == ("done", 0, 0)
        assert states(lab).keys() == states(lab, Kind.RECIPES).keys() == {State.LIVE}
        assert report.chunks_needed == report.chunks
        for name, content in contents.items():
            assert lab.read(name) == content


@pytest.mark.root
def test_nothing_is_collected_while_a_mount_hides_a_part_of_the_tree(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    content = noise(400 * KIB)
    lab.put("a/deep/f", content)
    lab.optimize()
    with mounted_over(lab.data / "a/deep"):
        report = lab.collect()
        assert report.outcome == "nothing collected: see the messages"
        assert "a/deep: is mounted over files that may need chunks" in report.messages[0]
        assert len(report.messages) == 1
    assert lab.collect().orphaned_chunks == 0
    assert lab.read("a/deep/f") == content


def test_chunks_of_a_removed_file_become_orphans_and_shared_ones_stay(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        shared = noise(400 * KIB)
        lab.put("both", shared)
        lab.put("gone", shared + noise(400 * KIB, 1))
        lab.put("gone-too", noise(20 * KIB, 2))
        lab.optimize()
        (lab.data / "gone").unlink()
        (lab.data / "gone-too").unlink()
        report = lab.collect()
        assert report.orphaned_chunks >= 4
        assert report.orphaned_recipes == 1
        assert 400 * KIB <= report.orphaned_bytes <= 600 * KIB
        assert lab.read("both") == shared


@pytest.mark.usefixtures("kept_extents")
def test_epochs_grow_and_a_second_run_finds_nothing_new(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for seed in range(2):
            lab.put(f"f{seed}", noise(200 * KIB, seed))
        lab.optimize()
        for epoch in (1, 2):
            (lab.data / f"f{epoch - 1}").unlink()
            assert lab.collect().epoch == epoch
            again = lab.collect(full=True)
            assert again.orphaned_chunks == 0
            orphans = sum(states(lab, kind).get(State.ORPHANED, 0) for kind in Kind)
            assert again.orphans_before == orphans > 2


def test_a_run_on_a_quiet_volume_reads_no_recipe(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for seed, name in enumerate(("one", "two", "three")):
            lab.put(name, noise(200 * KIB, seed))
        lab.optimize()
        assert lab.collect().recipes == 3
        for _ in range(2):
            report = lab.collect()
            assert (report.recipes, report.outcome) == (
                0,
                "nothing has changed since the last run",
            )
            lab.compact()  # and a compaction is no change
        assert lab.collect(full=True).recipes == 3
        (lab.data / "two").unlink()
        report = lab.collect()
        assert (report.recipes, report.orphaned_recipes, report.outcome) == (2, 1, "done")
        lab.put("four", noise(200 * KIB, 9))
        lab.optimize()
        report = lab.collect()
        assert (report.recipes, report.resumed) == (1, True)
        report = lab.collect(full=True)
        assert (report.recipes, report.resumed) == (3, False)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("gone", noise(200 * KIB))
        lab.optimize()
        (lab.data / "gone").unlink()
        with lab.opened() as volume, volume.job_lock():
            report = Gc(volume, JobRun("gc"), dry_run=True).run()
        assert report.orphaned_chunks > 0
        assert states(lab).keys() == {State.LIVE}


def test_nodes_and_chunks_of_a_file_of_several_nodes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupd_core.format.recipe.FANOUT_MAX", 4)
    with lab_in(tmp_path, chunk_size="4k") as lab:
        large = noise(600 * KIB)
        lab.put("large", large)
        lab.put("gone", noise(600 * KIB, 1))
        lab.optimize()
        (lab.data / "gone").unlink()
        assert lab.collect().orphaned_recipes > 4
        lab.compact()
        assert lab.read("large") == large


@pytest.mark.parametrize("fanout", [4, 4096])
def test_what_a_file_was_cut_by_is_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fanout: int
) -> None:
    """The recipe stays as it was: only its beginning is needed."""
    monkeypatch.setattr("dedupd_core.format.recipe.FANOUT_MAX", fanout)
    with lab_in(tmp_path, chunk_size="4k") as lab:
        content = noise(400 * KIB)
        for name in ("cut", "cut-more", "whole"):
            lab.put(name, content if name != "whole" else content[:80_000] + noise(9000, 1))
        lab.optimize()
        for name, length in (("cut", 200_001), ("cut-more", 100_000)):
            with lab.opened() as volume, opened(os.open(lab.data / name, os.O_RDWR)) as fd:
                stub = volume.space.read(fd, name)
                assert stub is not None
                sparse = SparseStub(
                    fd,
                    stub,
                    volume.stub_files,
                    partial(volume.content, where=name),
                )
                sparse.truncate(length)
        before = lab.container(Kind.CHUNKS).stat().st_size
        assert lab.collect().orphaned_chunks > 0
        lab.compact()
        freed = before - lab.container(Kind.CHUNKS).stat().st_size
        assert 200_000 < freed < 215_000
        assert lab.read("cut") == content[:200_001]
        assert lab.read("cut-more") == content[:100_000]


@pytest.mark.usefixtures("kept_extents")
def test_an_orphan_that_is_met_again_is_live_before_a_file_names_it(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(400 * KIB)
        lab.put("first", content)
        lab.optimize()
        (lab.data / "first").unlink()
        lab.collect()
        assert states(lab).keys() == states(lab, Kind.RECIPES).keys() == {State.ORPHANED}
        lab.put("second", content)
        report = lab.optimize()
        assert report.sums.new_chunks == 0
        assert states(lab).keys() == states(lab, Kind.RECIPES).keys() == {State.LIVE}
        lab.compact()
        assert lab.read("second") == content


@pytest.mark.root
def test_files_of_a_nested_subvolume_stay_plain(loop_fs: MakeFileSystem) -> None:
    """What gc does not find, it takes for garbage."""
    lab, content = new_lab(loop_fs("btrfs") / "volume"), noise(400 * KIB)
    subprocess.run(["btrfs", "subvolume", "create", lab.data / "nested"], check=True)
    lab.put("nested/deep/f", content)
    lab.put("g", content)
    report = lab.optimize()
    assert (report.files_optimized, report.errors) == (1, 1)
    assert report.messages[0].startswith("nested: another file system or subvolume")
    (lab.data / "g").unlink()
    assert lab.collect().orphaned_chunks > 0
    lab.compact()
    assert lab.stub("nested/deep/f") is None and lab.read("nested/deep/f") == content
    with lab.opened() as volume, volume.job_lock(), volume.mount_lock():
        found = Verify(volume, JobRun("verify")).run()
    assert [finding.where for finding in found.findings] == ["nested"]
    subprocess.run(["btrfs", "subvolume", "delete", lab.data / "nested"], check=True)
    lab.verify_clean()


@pytest.mark.usefixtures("kept_extents")
@pytest.mark.parametrize("point", ["states.durable", "commit.begun", "commit.durable"])
def test_a_death_while_orphans_come_back_loses_nothing(tmp_path: Path, point: str) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(400 * KIB)
        lab.put("first", content)
        lab.put("other", noise(40 * KIB, 9))
        lab.optimize()
        (lab.data / "first").unlink()
        lab.collect()
        lab.put("second", content)
        with stop_at(point):
            lab.optimize()
        lab.collect()
        lab.compact()
        assert lab.read("second") == content


@pytest.mark.usefixtures("kept_extents")
def test_a_lost_table_makes_orphans_live_until_the_next_run(
    tmp_path: Path,
) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("kept", noise(200 * KIB))
        lab.put("gone", noise(200 * KIB, 1))
        lab.optimize()
        (lab.data / "gone").unlink()
        first = lab.collect().orphaned_chunks
        lab.table(Kind.CHUNKS).unlink()
        assert lab.collect().orphaned_chunks == first


@pytest.mark.parametrize("damage", ["attribute", "recipe", "stream container"])
def test_where_anything_cannot_be_read_nothing_is_collected(tmp_path: Path, damage: str) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.store({"hurt": noise(400 * KIB), "gone": noise(400 * KIB, 1)})
    (lab.data / "gone").unlink()
    if damage == "attribute":
        value = os.getxattr(lab.data / "hurt", "trusted.dedupd")
        os.setxattr(lab.data / "hurt", "trusted.dedupd", value[:-1] + b"\xff")
    elif damage == "recipe":
        for kind in (Kind.RECIPES, Kind.RECIPE_COPIES):
            flip_bit(lab.container(kind), 128 + 80 + 4)
    else:
        os.truncate(lab.container(Kind.RECIPES), 100)
    report = lab.collect()
    assert report.errors > 0
    assert report.orphaned_chunks == 0
    assert states(lab).keys() == {State.LIVE}


def test_a_damaged_recipe_is_read_from_its_second_copy(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    content = noise(400 * KIB)
    lab.put("hurt", content)
    lab.put("gone", noise(400 * KIB, 1))
    lab.optimize()
    (lab.data / "gone").unlink()
    flip_bit(lab.container(Kind.RECIPES), 128 + 80 + 4)
    report = lab.collect()
    assert (report.errors, report.orphaned_recipes, report.orphaned_copies) == (0, 1, 1)
    lab.compact()
    assert lab.read("hurt") == content


def test_the_copy_of_a_lost_record_is_kept(tmp_path: Path) -> None:
    """Nobody can tell any more whether it is needed, and it is all that there is."""
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(400 * KIB))
    lab.optimize()
    (lab.data / "file").unlink()
    lab.container(Kind.RECIPES).unlink()
    lab.collect()
    assert states(lab, Kind.RECIPE_COPIES).keys() == {State.LIVE}


def test_a_repaired_chunk_is_kept_when_the_table_that_leads_to_it_is_lost(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(400 * KIB)
        lab.put("hurt", content)
        lab.optimize()
        (chunk, start, end), *_ = chunks_of(lab, "hurt")
        damage_record(lab, Kind.CHUNKS, chunk)
        lab.put("again", content[start:end])
        report = scrub(lab.root)
        assert report.losses == [] and sum(report.repaired.values()) == 1, report
        (lab.data / "again").unlink()
        lab.table(Kind.CHUNKS).unlink()
        assert lab.collect(full=True).errors == 0
        lab.compact()
        assert scrub(lab.root).losses == []
        assert lab.read("hurt") == content


@pytest.mark.usefixtures("kept_extents")
@pytest.mark.parametrize(
    "point", ["gc.marked", "gc.synced", "states.written", "states.durable", "gc.swept"]
)
def test_an_interrupted_sweep_is_finished_by_the_next_run(tmp_path: Path, point: str) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("kept", noise(200 * KIB))
        lab.put("gone", noise(200 * KIB, 1))
        lab.optimize()
        (lab.data / "gone").unlink()
        with stop_at(point):
            lab.collect()
        assert lab.read("kept") == noise(200 * KIB)
        lab.collect()
        assert states(lab)[State.ORPHANED] > 1
        lab.compact()
        assert lab.read("kept") == noise(200 * KIB)


def read_nodes(
    store: Records, nodes: Needs, chunks: Marks
) -> tuple[NodesRead, list[tuple[int, str]]]:
    """Read all fresh nodes once: the result, and which could not be read, and why."""
    store.writer.sync()
    store.recover_one()
    with store.opened() as directory:
        read = nodes.read_fresh(directory.bases.native, chunks, 10)
    return read, [(one.id, one.why) for one in read.unreadable]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(1, 300),
    st.integers(0, 2),
)
@settings(max_examples=40)
def test_a_node_marks_what_its_needed_part_names(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]], end: int, level: int
) -> None:
    pieces = [(make_id(1, at - 1) if at else 0, length, bytes(32)) for at, length in rows]
    payload = encode_node(level, bytes(16), pieces)
    directory = tmp_path_factory.mktemp("streams") / "store"
    store = Records(directory, kind=Kind.RECIPES, disk=LazyDisk())
    store.append(noise(100), payload, prose(500))
    chunks, nodes = Marks({1: 30}), Needs({1: 3})
    for ordinal in range(3):
        nodes.need(make_id(1, ordinal), end)
    before = nodes.copy()
    read, unreadable = read_nodes(store, nodes, chunks)
    store.writer.close()
    decoded = decode_node(payload, "")
    named = [one for one, at in zip(decoded.ids, decoded.offsets, strict=True) if at < end]
    assert (read.taken, read.nodes, read.rows) == (3, 1, len(named))
    assert unreadable == [(make_id(1, 0), "damaged"), (make_id(1, 2), "damaged")]
    marks, others = (nodes, chunks) if level else (chunks, before)
    there = {one for one in named if one and marks.knows(one)} | {
        make_id(1, at) for at in range(3) if level
    }
    assert {i for i in (make_id(1, at) for at in range(30)) if i in marks} == there
    assert set(marks.strays) == {i for i in named if i} - there
    assert others.strays == []


def test_a_recipe_with_any_bit_flipped_is_not_marked_by(tmp_path: Path) -> None:
    store = Records(tmp_path / "store", kind=Kind.RECIPES)
    store.append(encode_node(0, bytes(16), [(make_id(1, 3), 100, noise(32))]))
    size = store.data().stat().st_size
    for bit in range(START * 8, size * 8, 3):
        flip_bit(store.data(), bit // 8, bit % 8)
        chunks, nodes = Marks({1: 30}), Needs({1: 1})
        nodes.need(make_id(1, 0), 1)
        with store.opened() as directory:
            read = nodes.read_fresh(directory.bases.native, chunks, 10)
        flip_bit(store.data(), bit // 8, bit % 8)
        assert chunks.count() == (0 if read.unreadable else 1)
        assert read.unreadable or bit // 8 >= size - 8, bit  # only padding may be anything
    store.writer.close()


def test_a_merged_node_marks_what_the_node_that_it_leads_to_names(tmp_path: Path) -> None:
    store = Records(tmp_path / "store", kind=Kind.RECIPES)
    rows = [(make_id(1, at), 100, noise(32)) for at in (3, 5)]
    own, into = store.append(noise(200), encode_node(0, bytes(16), rows))
    store.writer.sync()
    for target, why in ((into, None), (own, "merged"), (make_id(7, 0), "not open")):
        with store.opened() as directory:
            entry = directory.entry(own)
            assert entry is not None
            set_states(directory, {own: entry._replace(state=State.MERGED, target=target)})
            chunks, nodes = Marks({1: 30}), Needs({1: 2})
            nodes.need(own, 150)
            read = nodes.read_fresh(directory.bases.native, chunks, 10)
        assert [one.why for one in read.unreadable] == ([] if why is None else [why])
        assert chunks.count() == (2 if why is None else 0)
    store.writer.close()
