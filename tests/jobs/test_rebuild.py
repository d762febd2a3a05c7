"""Everything that is derived may be lost at once: containers and stubs bring it back."""

import json
import shutil
from pathlib import Path

import pytest

from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.units import KIB
from jobs.frame.run import JobRun
from jobs.rebuild import Rebuild, RebuildReport
from tests.support.lab import Lab, fill, flip_bit, lab_in, new_lab, noise, run_cli
from tests.support.upkeep import chunks_of, damage_record, scrub


def rebuild(lab: Lab) -> RebuildReport:
    with lab.opened() as volume, volume.job_lock():
        return Rebuild(volume, JobRun("rebuild")).run()


def lose_tables(lab: Lab) -> int:
    tables = list((lab.base / "store").rglob("*.dir"))
    for path in tables:
        path.unlink()
    return len(tables)


def test_a_volume_without_tables_and_catalogue_is_whole_again(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        before = lab.verify_clean()
        shutil.rmtree(lab.base / "catalog")
        assert lose_tables(lab) == 3
        report = rebuild(lab)
        assert (report.tables, report.tables_rebuilt) == (3, 3)
        assert report.catalogue_is_new
        assert "the history of jobs" in report.not_rebuilt[0]
        after = lab.verify_clean()
        assert (after.records, after.copies) == (before.records, before.copies)
        assert {name: lab.read(name) for name in contents} == contents
        lab.put("again", contents["base"])
        assert lab.optimize().sums.new_chunks == 0


def test_a_sound_volume_is_left_as_it_is(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        fill(lab)
        lab.optimize()
        assert run_cli("run", "scrub", lab.root).returncode == 0
        before = {path: path.read_bytes() for path in (lab.base / "store").rglob("*.d??")}
        report = rebuild(lab)
        assert (report.tables_rebuilt, report.not_rebuilt) == (0, [])
        assert {path: path.read_bytes() for path in (lab.base / "store").rglob("*.d??")} == before


@pytest.mark.parametrize("kind", list(COPIES_OF))
def test_repairs_outlive_the_tables(tmp_path: Path, kind: Kind) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
        contents = fill(lab)
        lab.optimize()
        scrub(lab.root)
        stub = lab.stub("base")
        assert stub is not None
        record_id = stub.recipe if kind is Kind.RECIPES else chunks_of(lab, "base")[0][0]
        damage_record(lab, kind, record_id)
        assert scrub(lab.root).repaired["from the second copy"] == 1
        lose_tables(lab)
        for of in COPIES_OF.values():
            for path in (lab.base / STORE_DIRS[of]).glob("*.dat"):
                path.unlink()
        assert rebuild(lab).repaired["from another record"] == 1
        assert {name: lab.read(name) for name in contents} == contents


@pytest.mark.usefixtures("kept_extents")
def test_what_an_old_table_calls_garbage_is_not_compacted_away(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\n')
        contents = fill(lab)
        lab.optimize()
        for name in ("base", "copy", "edited"):
            (lab.data / name).unlink()
        assert lab.collect().orphaned_chunks
        old = {path: path.read_bytes() for path in (lab.base / "store").rglob("*.dir")}
        for name, content in contents.items():
            lab.put(name, content)
        assert lab.optimize().sums.new_chunks == 0
        for path, table in old.items():
            path.write_bytes(table)
        report = rebuild(lab)
        assert report.orphans_released
        assert any("garbage" in what for what in report.not_rebuilt)
        assert lab.compact().freed_bytes == 0
        assert {name: lab.read(name) for name in contents} == contents
        assert rebuild(lab).orphans_released == 0


@pytest.mark.usefixtures("kept_extents")
def test_second_copies_of_records_that_live_again_are_found_again(
    tmp_path: Path,
) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("f", noise(400 * KIB))
        lab.optimize()
        (lab.data / "f").unlink()
        first = lab.collect()
        assert first.orphaned_copies == 1
        assert rebuild(lab).orphans_released == first.orphaned_chunks + 2
        again = lab.collect()
        assert (again.orphaned_chunks, again.orphaned_copies) == (first.orphaned_chunks, 1)


def test_what_is_gone_from_the_containers_is_named(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    fill(lab)
    lab.optimize()
    lose_tables(lab)
    lab.lose(Kind.RECIPES)
    result = run_cli("run", "rebuild", lab.root, "--json")
    assert result.returncode == 4
    report = json.loads(result.stdout)
    named = {loss["path"] for loss in report["losses"]}
    assert named == {"base", "copy", "edited", "prose", "zeros"}
    assert sum(line.startswith("base: bytes 0 to ") for line in report["not_rebuilt"]) == 1
    assert lab.read("one-chunk")


def test_a_damaged_catalogue_is_made_again(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        fill(lab)
        assert run_cli("run", "optimize", lab.root).returncode == 0
        flip_bit(lab.base / "catalog" / "data.mdb", 16)
        (lab.base / "catalog" / "data.mdb").write_bytes(b"garbage" * 4000)
        assert run_cli("run", "rebuild", lab.root).returncode == 0
        assert run_cli("jobs", lab.root).returncode == 0
