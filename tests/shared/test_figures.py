"""What is told of volumes on a shared store."""

import json
import os
from pathlib import Path

import pytest

from dedupd.service.doctor import Verdict, check_path
from dedupd_core.units import KIB
from tests.support.lab import Lab, noise, run_cli
from tests.support.shared import SharedLab


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Lab, Lab]:
    """Two volumes with one file in common, of 300 KiB, and each with one of its own, of 100."""
    shared = SharedLab(tmp_path)
    labs = shared.volume("a"), shared.volume("b")
    for at, lab in enumerate(labs):
        lab.put("common/file", noise(300 * KIB))
        lab.put("own/file", noise(100 * KIB, at + 1))
        lab.optimize()
    return labs


def test_a_volume_occupies_what_it_needs(pair: tuple[Lab, Lab]) -> None:
    a, _ = pair
    said = json.loads(run_cli("status", "--here", "--json", a.root).stdout)
    assert said["shared_store"] == str(a.root.parent / "store")
    assert 395 * KIB < said["occupied_bytes"] < 450 * KIB
    assert said["store_bytes"]["chunks"] > 495 * KIB
    assert "shared" in run_cli("status", "--here", a.root).stdout


def test_what_another_volume_needs_would_not_be_freed(pair: tuple[Lab, Lab]) -> None:
    a, _ = pair
    (found,) = json.loads(run_cli("du", "--json", a.root, "--by", "folder").stdout)
    freed = {os.path.basename(row["name"]): row["frees_bytes"] for row in found["rows"]}
    assert freed["common"] < 50 * KIB
    assert freed["own"] > 95 * KIB


def test_the_doctor_tells_what_stops_collections(pair: tuple[Lab, Lab]) -> None:
    a, b = pair

    def store(lab: Lab) -> Verdict:
        return next(one.verdict for one in check_path(str(lab.root)) if one.what == "store")

    assert store(a) == store(b) == Verdict.FINE
    b.root.rename(b.root.with_name("moved"))
    assert store(a) == store(Lab(b.root.with_name("moved"))) == Verdict.BAD
    said = json.loads(run_cli("store", "status", "--json", a.root.parent / "store").stdout)
    assert [bool(one["problem"]) for one in said["volumes"]] == [False, True]
    assert "not accessible" in run_cli("store", "status", a.root.parent / "store").stdout


def test_a_drill_leaves_a_shared_store_as_it_is(pair: tuple[Lab, Lab]) -> None:
    a, b = pair
    said = json.loads(run_cli("drill", "--json", "--containers", "1", a.root).stdout)
    assert (said["stubs"], said["containers_lost"]) == (2, 1)
    assert said["lost"] > 0
    b.verify_clean()


def test_jobs_of_the_store_are_done_once_for_all(pair: tuple[Lab, Lab]) -> None:
    a, b = pair
    for job in ("reconcile", "refine", "compact", "scrub", "rebuild"):
        assert run_cli("run", job, a.root).returncode == 0, job
    report = json.loads(run_cli("run", "verify", "--json", b.root).stdout)
    assert (report["outcome"], report["stubs"]) == ("clean", 4)
    assert b.read("common/file") == noise(300 * KIB)
