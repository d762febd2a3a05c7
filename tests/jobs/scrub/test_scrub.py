"""Scrub finds damage, repairs what has a second source, and names exactly what is lost."""

import os
import shutil
from pathlib import Path

import pytest

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import ordinal_of
from dedupd_core.units import KIB
from jobs.frame.pace import BURST_S, Throttle
from jobs.frame.run import Cancelled, JobRun
from jobs.scrub.progress import ScrubProgress
from jobs.scrub.scrub_job import Depth, Scrub, ScrubReport
from tests.support import upkeep
from tests.support.lab import Lab, fill, flip_bit, lab_in, new_lab, noise
from tests.support.upkeep import chunks_of, damage_record, entry


def scrub(lab: Lab, depth: Depth = Depth.FULL) -> ScrubReport:
    return upkeep.scrub(lab.root, depth)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """An optimized volume: nothing is checked at the end, it is to be damaged."""
    lab = new_lab(tmp_path / "volume")
    fill(lab)
    lab.optimize()
    return lab


@pytest.mark.parametrize("depth", list(Depth))
def test_a_sound_volume_is_clean(lab: Lab, depth: Depth) -> None:
    report = scrub(lab, depth)
    assert (report.outcome, report.findings, report.losses) == ("clean", [], [])
    assert (report.containers, report.stubs) == (3, 6)
    lab.verify_clean()


def test_a_full_run_reads_every_byte_of_the_store(lab: Lab) -> None:
    size = sum(p.stat().st_size for p in (lab.base / "store").rglob("*.dat"))
    assert scrub(lab).read_bytes == size - 3 * fmt.FILE_HEADER_BYTES


def test_a_damaged_recipe_is_repaired_from_its_copy(lab: Lab) -> None:
    contents = {path.name: lab.read(path.name) for path in lab.data.iterdir()}
    stub = lab.stub("prose")
    assert stub is not None
    damage_record(lab, Kind.RECIPES, stub.recipe)
    assert {name: lab.read(name) for name in contents} == contents
    report = scrub(lab)
    assert report.outcome == "repaired"
    assert report.by_invariant == {"record-payload": 1}
    assert report.repaired["from the second copy"] == 1
    assert entry(lab, Kind.RECIPES, stub.recipe).state == tbl.State.MERGED
    lab.verify_clean()
    assert scrub(lab).outcome == "clean"
    shutil.rmtree(lab.base / "store/copies")
    assert {name: lab.read(name) for name in contents} == contents


def test_a_chunk_without_a_second_source_is_quarantined_and_its_ranges_named(lab: Lab) -> None:
    chunk, start, end = chunks_of(lab, "base")[0]
    damage_record(lab, Kind.CHUNKS, chunk)
    report = scrub(lab)
    assert report.outcome == "damaged"
    assert {(loss.path, loss.start, loss.end) for loss in report.losses} == {
        (name, start, end) for name in ("base", "copy", "edited")
    }
    assert report.quarantined == 1
    assert entry(lab, Kind.CHUNKS, chunk).state == tbl.State.QUARANTINED
    assert set(lab.verify().by_invariant) == {"recipe-chunks"}


def test_the_next_arrival_of_the_same_bytes_brings_a_lost_chunk_back(lab: Lab) -> None:
    content = lab.read("base")
    chunk, _, _ = chunks_of(lab, "base")[0]
    damage_record(lab, Kind.CHUNKS, chunk)
    scrub(lab)
    lab.put("again", content)
    lab.optimize()
    assert entry(lab, Kind.CHUNKS, chunk).state == tbl.State.MERGED
    assert lab.read("base") == content
    lab.verify_clean()
    assert scrub(lab).outcome == "clean"


def test_a_chunk_that_a_plain_file_still_holds_is_repaired_from_it(lab: Lab) -> None:
    content = lab.read("base")
    damage_record(lab, Kind.CHUNKS, chunks_of(lab, "base")[0][0])
    damage_record(lab, Kind.CHUNKS, chunks_of(lab, "base")[2][0])
    lab.put("plain", content + noise(9, 78))
    report = scrub(lab)
    assert report.outcome == "repaired"
    assert report.repaired["from a file"] == 2
    assert lab.read("base") == content
    lab.verify_clean()


def forget_record(lab: Lab, chunk: int) -> None:
    """Lose what a chunk's header and its table entry say, and so its fingerprint."""
    at = entry(lab, Kind.CHUNKS, chunk).offset
    flip_bit(lab.container(Kind.CHUNKS), at + 30)
    flip_bit(lab.table(Kind.CHUNKS), tbl.HEADER_BYTES + ordinal_of(chunk) * tbl.ENTRY_BYTES)


def test_a_chunk_whose_fingerprint_is_lost_is_repaired_from_a_file(lab: Lab) -> None:
    """A recipe, or the stub itself, proves which bytes it was."""
    contents = {name: lab.read(name) for name in ("base", "one-chunk")}
    forget_record(lab, chunks_of(lab, "base")[1][0])
    forget_record(lab, chunks_of(lab, "one-chunk")[0][0])
    for name, content in contents.items():
        lab.put(f"plain {name}", content)
    report = scrub(lab)
    assert report.outcome == "repaired"
    assert report.repaired["from a file"] == 2
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()


def test_two_lost_fingerprints_of_one_leaf_prove_nothing(lab: Lab) -> None:
    content = lab.read("base")
    lost = [chunks_of(lab, "base")[at] for at in (1, 3)]
    for chunk, _, _ in lost:
        forget_record(lab, chunk)
    (lab.data / "edited").unlink()
    lab.put("plain", content)
    report = scrub(lab)
    assert report.outcome == "damaged"
    assert report.repaired["from a file"] == 0
    assert {(loss.start, loss.end) for loss in report.losses if loss.path == "base"} == {
        (start, end) for _, start, end in lost
    }


def test_what_one_leaf_proves_helps_another(lab: Lab) -> None:
    """The edited file has one of the two in common: it tells that one, and that the other."""
    content, edited = lab.read("base"), lab.read("edited")
    own = {chunk for chunk, _, _ in chunks_of(lab, "base")}
    shared = own & {chunk for chunk, _, _ in chunks_of(lab, "edited")}
    forget_record(lab, min(shared))
    forget_record(lab, min(own - shared))
    lab.put("plain", content)
    assert scrub(lab).repaired["from a file"] == 2
    assert (lab.read("base"), lab.read("edited")) == (content, edited)
    lab.verify_clean()


def test_a_chunk_with_many_references_gets_a_copy_and_is_repaired_from_it(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        shared = noise(40 * KIB)
        for number in range(12):
            lab.put(f"{number}", shared)
        lab.put("once", noise(40 * KIB, 1))
        lab.set_policy('min_age = "0s"\nredundancy_threshold = 10\n')
        lab.optimize()
        report = scrub(lab, Depth.QUICK)
        assert report.copies_written == 1
        assert scrub(lab, Depth.QUICK).copies_written == 0
        stub = lab.stub("0")
        assert stub is not None
        damage_record(lab, Kind.CHUNKS, stub.recipe)
        assert lab.read("3") == shared
        report = scrub(lab)
        assert report.repaired["from the second copy"] == 1
        assert report.copies_written == 1
        assert lab.read("3") == shared


def test_a_chunk_that_is_damaged_and_repaired_over_and_over_can_be_read(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
        content = noise(30 * KIB)
        for name in ("one", "two"):
            lab.put(name, content)
        lab.optimize()
        scrub(lab)
        [(first, _, _)] = chunks_of(lab, "one")
        for _ in range(12):
            end = first
            while (found := entry(lab, Kind.CHUNKS, end)).state == tbl.State.MERGED:
                end = found.target
            damage_record(lab, Kind.CHUNKS, end)
            assert scrub(lab).repaired["from the second copy"] == 1
            assert lab.read("one") == content


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_repaired_record_that_comes_back_leads_to_the_repaired_bytes(
    tmp_path: Path, is_damaged: bool
) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy(
            'min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\ncompaction_min_dead = 0\n'
        )
        content = noise(30 * KIB)
        for name in ("one", "two"):
            lab.put(name, content)
        lab.put("three", noise(60 * KIB, 3))
        lab.optimize()
        scrub(lab)
        [(lost, _, _)] = chunks_of(lab, "one")
        offset, path = entry(lab, Kind.CHUNKS, lost).offset, lab.container(Kind.CHUNKS)
        with open(path, "r+b") as file:
            header = os.pread(file.fileno(), fmt.RECORD_HEADER_BYTES, offset)
            os.pwrite(file.fileno(), bytes(len(header)), offset)
            lab.table(Kind.CHUNKS).unlink()
            assert scrub(lab).repaired["from the second copy"] == 1
            os.pwrite(file.fileno(), header, offset)
        if is_damaged:
            flip_bit(path, offset + fmt.RECORD_HEADER_BYTES + 7)
        assert not scrub(lab).losses
        assert lab.read("one") == content
        assert lab.compact().errors == 0
        assert lab.read("one") == content


def test_a_copy_is_given_up_when_nothing_refers_to_what_it_repeats(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("file", noise(500 * KIB))
        lab.optimize()
        (lab.data / "file").unlink()
        assert scrub(lab, Depth.QUICK).copies_dropped == 1


def test_a_copy_stays_while_a_stub_cannot_be_read(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("file", noise(500 * KIB))
        lab.optimize()
        path = lab.data / "file"
        name = next(one for one in os.listxattr(path) if one.endswith(".dedupd"))
        value = os.getxattr(path, name)
        os.setxattr(path, name, value[:-1] + bytes([value[-1] ^ 1]))
        report = scrub(lab, Depth.QUICK)
        assert report.findings and report.copies_dropped == 0
        os.setxattr(path, name, value)
        assert scrub(lab, Depth.QUICK).copies_dropped == 0


def test_a_damaged_copy_is_written_again(lab: Lab) -> None:
    damage_record(lab, Kind.RECIPE_COPIES, 1 << 32)
    report = scrub(lab)
    assert (report.outcome, report.copies_written) == ("repaired", 1)
    assert scrub(lab).outcome == "clean"
    lab.verify_clean()


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("depth", list(Depth))
def test_damaged_tables_cost_nothing(tmp_path: Path, kind: Kind, depth: Depth) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
        lab.optimize()
        scrub(lab)
        for damage in (
            lambda path: path.unlink(),
            lambda path: flip_bit(path, 70),
            lambda path: os.truncate(path, 100),
        ):
            damage(lab.table(kind))
            report = scrub(lab, depth)
            assert report.by_invariant.keys() == {"table-agrees"}
            assert report.outcome == "repaired"
            assert {name: lab.read(name) for name in contents} == contents
            lab.verify_clean()


@pytest.mark.parametrize("with_table", [True, False])
def test_a_lost_container_of_recipes_is_restored_from_the_copies(
    lab: Lab, with_table: bool
) -> None:
    contents = {path.name: lab.read(path.name) for path in lab.data.iterdir()}
    lab.container(Kind.RECIPES).unlink()
    if not with_table:
        lab.table(Kind.RECIPES).unlink()
    assert {name: lab.read(name) for name in contents} == contents
    report = scrub(lab, Depth.QUICK)
    assert report.outcome == "repaired"
    shutil.rmtree(lab.base / "store/copies")
    assert {name: lab.read(name) for name in contents} == contents
    scrub(lab)
    lab.verify_clean()


def test_a_lost_header_and_a_lost_end_cost_no_more_than_what_lay_there(lab: Lab) -> None:
    contents = {path.name: lab.read(path.name) for path in lab.data.iterdir()}
    path = lab.container(Kind.CHUNKS)
    with open(path, "r+b") as file:
        file.write(bytes(fmt.FILE_HEADER_BYTES))
    report = scrub(lab, Depth.QUICK)
    assert report.by_invariant == {"container-header": 1}
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()
    os.truncate(path, path.stat().st_size - 100)
    report = scrub(lab, Depth.QUICK)
    assert report.quarantined == 1
    hit = {loss.path for loss in report.losses}
    assert hit and hit < contents.keys()
    assert {name: lab.read(name) for name in contents if name not in hit} == {
        name: content for name, content in contents.items() if name not in hit
    }


def test_damage_that_a_reader_met_is_repaired_by_the_next_quick_run(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
        contents = fill(lab)
        lab.optimize()
        scrub(lab)
        damage_record(lab, Kind.CHUNKS, chunks_of(lab, "base")[0][0])
        assert scrub(lab, Depth.QUICK).outcome == "clean"
        assert lab.read("base") == contents["base"]
        with lab.opened() as volume:
            assert len(volume.repairs.pending()) == 1
        report = scrub(lab, Depth.QUICK)
        assert report.repaired["from the second copy"] == 1
        with lab.opened() as volume:
            assert volume.repairs.pending() == []


def test_a_record_that_is_right_after_all_is_released(lab: Lab) -> None:
    chunk, _, _ = chunks_of(lab, "base")[0]
    content = lab.read("base")
    damage_record(lab, Kind.CHUNKS, chunk)
    scrub(lab)
    damage_record(lab, Kind.CHUNKS, chunk)
    report = scrub(lab)
    assert report.released == 1
    assert entry(lab, Kind.CHUNKS, chunk).state == tbl.State.LIVE
    assert lab.read("base") == content
    lab.verify_clean()


def test_kinds_have_copies_of_their_own() -> None:
    assert set(COPIES_OF) | set(COPIES_OF.values()) == set(Kind)


def test_an_interrupted_full_run_goes_on_where_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = JobRun("scrub"), ScrubProgress.done

    def done(progress: ScrubProgress, kind: Kind, number: int) -> None:
        whole(progress, kind, number)
        run.cancel()

    with monkeypatch.context() as patch, lab.opened() as volume, volume.job_lock():
        patch.setattr("jobs.scrub.progress.SAVE_EVERY_S", 0.0)
        patch.setattr(ScrubProgress, "done", done)
        with pytest.raises(Cancelled):
            Scrub(volume, run, Depth.FULL).run()
    rest, again = scrub(lab), scrub(lab)
    assert (rest.resumed, again.resumed) == (True, False)
    assert 0 < rest.read_bytes < again.read_bytes


def test_a_rate_is_kept() -> None:
    waits: list[float] = []
    throttle = Throttle(1000, waits.append)
    for _ in range(10):
        throttle.take(500)
    assert 4.5 - BURST_S - 0.1 <= waits[-1] <= 4.5
    assert waits == sorted(waits)
