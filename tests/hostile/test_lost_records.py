"""What is lost for now is not given up: the other jobs where a container, or a record, cannot be
read, and something else still has the bytes."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupd_core.errors import DamagedChunk
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import container_of
from dedupd_core.format.table import State
from dedupd_core.units import KIB
from jobs.frame.run import JobRun
from jobs.reconcile.reconcile_job import Reconcile
from jobs.scrub.scrub_job import Depth
from tests.support.lab import Lab, flip_bit, lab_in, new_lab, noise, stop_at
from tests.support.upkeep import chunks_of, damage_record, entry, scrub

POLICY = 'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\n'
SHARED = noise(20 * KIB, 5)


class Merged(NamedTuple):
    """A chunk of two partitions: ``own`` leads to ``into``; the files that name the two."""

    own: int
    into: int
    file: str
    other: str


def two_partitions(lab: Lab) -> dict[str, bytes]:
    """Files of two partitions, one chunk each, of which both have one."""
    lab.set_policy(POLICY + "partitions = 2\n")
    contents = {"a.t0": SHARED, "b.t1": SHARED}
    contents |= {"x.t0": noise(20 * KIB, 6), "y.t1": noise(20 * KIB, 7)}
    for name, content in contents.items():
        lab.put(name, content)
    lab.optimize()
    return contents


def merged(lab: Lab) -> Merged:
    """Two partitions, reconciled."""
    two_partitions(lab)
    with lab.opened() as volume, volume.job_lock():
        Reconcile(volume, JobRun("reconcile")).run()
    named = {name: chunks_of(lab, name)[0][0] for name in ("a.t0", "b.t1")}
    (name, own), *_ = [
        pair for pair in named.items() if entry(lab, Kind.CHUNKS, pair[1]).state == State.MERGED
    ]
    other = "b.t1" if name == "a.t0" else "a.t0"
    return Merged(own, named[other], name, other)


def lose(path: Path, how: str) -> None:
    """Make a container one that cannot be opened."""
    if how == "header":
        flip_bit(path, 20)
    elif how == "missing":
        path.unlink()
    else:
        os.truncate(path, 140)


# --- garbage collection -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["header", "missing", "short"])
def test_the_target_of_a_lost_merged_record_is_not_collected(tmp_path: Path, how: str) -> None:
    lab = new_lab(tmp_path / "volume")
    own, _, name, other = merged(lab)
    lab.compact()
    (lab.data / other).unlink()
    lose(lab.container(Kind.CHUNKS, container_of(own)), how)
    report = lab.collect()
    assert report.errors and not report.orphaned_chunks, report
    assert "run scrub" in report.messages[0]
    lab.compact()
    scrub(lab.root)
    assert lab.read(name) == SHARED
    assert lab.collect().errors == 0
    lab.compact()
    assert lab.read(name) == SHARED


@pytest.mark.parametrize("is_own_table", [True, False])
def test_what_has_the_bytes_of_a_lost_record_is_not_collected(
    tmp_path: Path, is_own_table: bool
) -> None:
    """Tables are derived: where one says that a record leads to another, and is lost, that other
    one is still what the record is made up for with."""
    with lab_in(tmp_path) as lab:
        lab.set_policy(POLICY)
        content = noise(400 * KIB)
        lab.put("hurt", content)
        lab.optimize()
        (chunk, start, end), *_ = chunks_of(lab, "hurt")
        damage_record(lab, Kind.CHUNKS, chunk)
        assert scrub(lab.root).losses
        lab.put("again", content[start:end])
        lab.optimize()
        assert lab.read("hurt") == content
        (lab.data / "again").unlink()
        if is_own_table:
            lab.table(Kind.CHUNKS, container_of(chunk)).unlink()
        else:
            for path in (lab.base / "store").glob("*/*.dir"):
                path.unlink()
        lab.collect()
        lab.compact()
        assert scrub(lab.root).losses == []
        assert lab.read("hurt") == content


# --- compaction -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["header", "missing", "short", "rot", "quarantined"])
def test_the_last_bytes_of_a_merged_record_are_not_dropped(tmp_path: Path, how: str) -> None:
    lab = new_lab(tmp_path / "volume")
    _, into, name, other = merged(lab)
    if how in ("rot", "quarantined"):
        damage_record(lab, Kind.CHUNKS, into)
        if how == "quarantined":
            lab.table(Kind.CHUNKS, container_of(into)).unlink()
            lab.collect()
            assert entry(lab, Kind.CHUNKS, into).state == State.QUARANTINED
    else:
        lose(lab.container(Kind.CHUNKS, container_of(into)), how)
    assert lab.read(name) == SHARED
    report = lab.compact()
    assert any("run scrub" in message for message in report.messages), report
    assert lab.read(name) == SHARED
    # Also a quick scrub looks at what the compaction met.
    assert other not in {loss.path for loss in scrub(lab.root, Depth.QUICK).losses}
    assert [lab.read(one) for one in (name, other)] == [SHARED, SHARED]
    lab.collect()
    lab.compact()
    assert [lab.read(one) for one in (name, other)] == [SHARED, SHARED]


def test_damage_that_a_compaction_meets_is_known_to_the_next_scrub(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(POLICY)
        content = noise(400 * KIB)
        lab.put("hurt", content)
        lab.put("gone", noise(400 * KIB, 1))
        lab.optimize()
        (lab.data / "gone").unlink()
        lab.collect()
        chunk, start, end = chunks_of(lab, "hurt")[1]
        damage_record(lab, Kind.CHUNKS, chunk)
        assert "run scrub" in lab.compact().messages[0]
        assert scrub(lab.root, Depth.QUICK).quarantined == 1
        lab.put("again", content[start:end])
        lab.optimize()
        assert lab.read("hurt") == content


# --- scrub ------------------------------------------------------------------------------------


def test_the_second_copies_of_a_container_that_is_another_one_stay(tmp_path: Path) -> None:
    """Somebody put the wrong file there: users read the copies until the right one is back."""
    lab, foreign = new_lab(tmp_path / "volume"), new_lab(tmp_path / "foreign")
    content = noise(400 * KIB)
    for one, seed in ((lab, 0), (foreign, 1)):
        one.put("file", noise(400 * KIB, seed))
        one.optimize()
    container = lab.container(Kind.RECIPES)
    kept = container.rename(tmp_path / "kept")
    shutil.copy(foreign.container(Kind.RECIPES), container)
    assert lab.read("file") == content
    report = scrub(lab.root)
    assert (report.copies_dropped, report.losses) == (0, [])
    assert lab.read("file") == content
    kept.replace(container)
    scrub(lab.root)
    assert lab.read("file") == content
    lab.verify_clean()


def test_merged_bytes_make_up_for_a_container_that_is_gone_with_its_table(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    _, into, name, other = merged(lab)
    lab.container(Kind.CHUNKS, container_of(into)).unlink()
    lab.table(Kind.CHUNKS, container_of(into)).unlink()
    assert lab.read(name) == SHARED
    assert {name, other}.isdisjoint(loss.path for loss in scrub(lab.root).losses)
    assert [lab.read(one) for one in (name, other)] == [SHARED, SHARED]
    lab.collect()
    lab.compact()
    assert [lab.read(one) for one in (name, other)] == [SHARED, SHARED]


@pytest.mark.usefixtures("kept_extents")
def test_an_orphan_makes_up_for_a_lost_record(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        two_partitions(lab)
        (lab.data / "b.t1").unlink()
        assert lab.collect().orphaned_chunks == 1
        damage_record(lab, Kind.CHUNKS, chunks_of(lab, "a.t0")[0][0])
        assert scrub(lab.root).losses == []
        # What it was repaired with is needed from then on.
        lab.compact()
        assert lab.read("a.t0") == SHARED
        lab.collect()
        lab.compact()
        assert lab.read("a.t0") == SHARED


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_catalogue_lost", [False, True])
def test_the_number_of_a_container_that_is_gone_is_not_given_out_again(
    tmp_path: Path, is_catalogue_lost: bool
) -> None:
    """Its second copies name it: users read them, and must go on to."""
    with lab_in(tmp_path) as lab:
        lab.set_policy(POLICY)
        contents = {"old": noise(400 * KIB), "new": noise(300 * KIB, 1)}
        lab.put("old", contents["old"])
        lab.optimize()
        lab.container(Kind.RECIPES).unlink()
        lab.table(Kind.RECIPES).unlink()
        if is_catalogue_lost:
            shutil.rmtree(lab.base / "catalog")
        assert lab.read("old") == contents["old"]
        lab.put("new", contents["new"])
        lab.optimize()
        assert {name: lab.read(name) for name in contents} == contents
        assert scrub(lab.root).losses == []
        assert {name: lab.read(name) for name in contents} == contents


def test_what_is_stored_later_does_not_keep_a_lost_chunk_from_its_repair(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(POLICY)
        content = noise(20 * KIB)
        lab.put("old", content)
        lab.optimize()
        lab.container(Kind.CHUNKS).unlink()
        lab.table(Kind.CHUNKS).unlink()
        lab.put("new", noise(20 * KIB, 1))
        lab.optimize()
        # The bytes come back: somebody had the file elsewhere.
        lab.put("again", content)
        lab.set_policy(POLICY + 'exclude = ["again"]\n')
        assert scrub(lab.root).losses == []
        assert lab.read("old") == content


# --- optimize ---------------------------------------------------------------------------------


def test_a_restored_file_is_not_given_up_for_a_damaged_chunk(
    tmp_path: Path,
) -> None:
    """Somebody reads an error, and brings the file back from a backup; then optimize comes by."""
    with lab_in(tmp_path) as lab:
        lab.set_policy(POLICY)
        content = noise(400 * KIB)
        for name in ("hurt", "same"):
            lab.put(name, content)
        lab.optimize()
        damage_record(lab, Kind.CHUNKS, chunks_of(lab, "hurt")[1][0])
        with pytest.raises(DamagedChunk):
            lab.read("hurt")
        (lab.data / "hurt").unlink()
        lab.put("hurt", content)
        lab.optimize()
        assert lab.stub("hurt") is not None
        # The others that need the chunk have it back, too.
        assert lab.read("hurt") == lab.read("same") == content


def test_a_noted_record_is_no_duplicate_after_a_stopped_compaction(
    tmp_path: Path,
) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(POLICY)
        content = noise(20 * KIB, 1)
        lab.put("garbage", noise(300 * KIB, 2))
        lab.put("file", content)
        lab.optimize()
        [(chunk, _, _)] = chunks_of(lab, "file")
        (lab.data / "garbage").unlink()
        lab.collect()
        with stop_at("compact.data-switched"):
            lab.compact()
        damage_record(lab, Kind.CHUNKS, chunk)
        with pytest.raises(DamagedChunk):
            lab.read("file")
        (lab.data / "file").unlink()
        lab.put("file", content)
        assert lab.optimize().sums.new_chunks == 1
        assert lab.read("file") == content
        scrub(lab.root)
