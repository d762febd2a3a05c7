"""A drill damages a copy, says what that costs, and leaves the volume as it is."""

import json
from pathlib import Path

from dedupd_core.units import KIB
from jobs.backup.drill import DamagedStore, Drill, DrillReport
from jobs.frame.run import JobRun
from tests.support.lab import Lab, new_lab, noise, prose, run_cli, store_files


def drilled(lab: Lab, bits: int = 0, containers: int = 0, seed: int = 1) -> DrillReport:
    with DamagedStore.open(str(lab.root)) as volume, volume.job_lock():
        run = JobRun("drill")
        return Drill(volume, run, bits=bits, containers=containers, seed=seed).run()


def filled(root: Path) -> Lab:
    lab = new_lab(root)
    for number in range(30):
        lab.put(f"file-{number}", noise(120 * KIB, number) + prose(50 * KIB, number))
    lab.optimize()
    return lab


def test_an_undamaged_copy_loses_nothing(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    report = drilled(lab)
    assert (report.stubs, report.lost, report.healed, report.copied_bytes) == (30, 0, 0, 0)


def test_what_is_hit_is_named_and_the_volume_stays_as_it_is(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    before = store_files(lab)
    report = drilled(lab, bits=12)
    assert 0 < report.lost == report.errors <= 12
    assert report.records > 0
    again = drilled(lab, bits=12)
    assert again.messages == report.messages
    assert store_files(lab) == before
    assert not (lab.base / "drill").exists()
    lab.verify_clean()


def test_recipes_are_healed_and_a_lost_container_costs_all_of_its_chunks(tmp_path: Path) -> None:
    lab = filled(tmp_path / "volume")
    assert drilled(lab, containers=1).lost == 30
    found = [drilled(lab, bits=40, seed=seed) for seed in range(4)]
    assert all(one.lost < 30 for one in found)
    done = run_cli("drill", "--bits", "5", "--seed", "3", "--json", lab.root)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["seed"] == 3
    lab.verify_clean()
