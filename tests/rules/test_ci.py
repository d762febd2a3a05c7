"""`.ci/run` forgives no failed test; `.ci/rerun.py` only names the unstable ones."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT

UNSTABLE = """
from pathlib import Path

def test_of_chance():
    turns = Path("turns")
    text = turns.read_text() if turns.exists() else ""
    turns.write_text(text + "x")
    assert text

def test_of_fault():
    assert False

def test_sound():
    pass
"""


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose set-up and checks pass, and whose tests are those of UNSTABLE."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "test_some.py").write_text(UNSTABLE)
    _program(tmp_path / "scripts/setup.sh", "exit 0")
    _program(tmp_path / ".venv/bin/python", f'exec {sys.executable} "$@"')
    return tmp_path


def run(checkout: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run the checks; `make test` runs these tests."""
    named = " ".join(f"test_some.py::{name}" for name in tests)
    make = f"case $1 in test) exec {sys.executable} -m pytest -q {named};; esac"
    _program(checkout / "bin/make", make)
    return subprocess.run(
        [checkout / ".ci/run"],
        env={
            **os.environ,
            "PATH": f"{checkout}/bin:{os.environ['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_whose_tests_pass_passes(checkout: Path) -> None:
    done = run(checkout, "test_sound")
    assert done.returncode == 0, done.stdout
    assert "UNSTABLE" not in done.stdout


def test_a_test_that_fails_by_chance_fails_the_run_and_is_named(checkout: Path) -> None:
    done = run(checkout, "test_of_chance", "test_sound")
    assert done.returncode == 1
    assert "FAILED (1)" in done.stdout
    unstable = "UNSTABLE: test_some.py::test_of_chance failed, then passed 3 of 3 times alone"
    assert unstable in done.stdout


def test_a_test_that_fails_always_is_not_called_unstable(checkout: Path) -> None:
    done = run(checkout, "test_of_fault", "test_of_chance")
    assert done.returncode == 1
    [line] = [line for line in done.stdout.splitlines() if line.startswith("UNSTABLE")]
    assert "test_of_chance" in line and "test_of_fault" not in line


def test_many_failures_are_not_repeated(checkout: Path) -> None:
    failed = {f"test_some.py::test_of_chance_{number}": True for number in range(6)}
    cache = checkout / ".pytest_cache/v/cache/lastfailed"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps(failed))
    command = [sys.executable, ".ci/rerun.py"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
