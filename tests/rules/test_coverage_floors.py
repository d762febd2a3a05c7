"""`make coverage` fails for a package whose tests run less of it than the floor says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT

PACKAGES = ("format", "store", "stub")


def compare(report: Path, covered: dict[str, int]) -> subprocess.CompletedProcess[str]:
    """Compare a report with the floors: of each package so many of 100 lines and branches ran."""
    files = {
        f"dedupd_core/{package}/some.py": {
            "summary": {
                "covered_lines": covered[package] // 2,
                "covered_branches": covered[package] - covered[package] // 2,
                "num_statements": 50,
                "num_branches": 50,
            }
        }
        for package in covered
    }
    report.write_text(json.dumps({"files": files}))
    command = [sys.executable, str(ROOT / "scripts/coverage_floors.py"), str(report)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_full_coverage_is_enough(tmp_path: Path) -> None:
    done = compare(tmp_path / "report.json", dict.fromkeys(PACKAGES, 100))
    assert (done.returncode, "TOO LOW" in done.stdout) == (0, False)


@pytest.mark.parametrize("package", PACKAGES)
def test_one_package_below_its_floor_fails(tmp_path: Path, package: str) -> None:
    done = compare(tmp_path / "report.json", dict.fromkeys(PACKAGES, 100) | {package: 60})
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if "TOO LOW" in line]
    assert line.startswith(f"dedupd_core/{package} ")


def test_a_package_without_figures_fails(tmp_path: Path) -> None:
    assert compare(tmp_path / "report.json", {"format": 100, "stub": 100}).returncode == 1
