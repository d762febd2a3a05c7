"""Limits of one run: how long, how fast, how much of what."""

import ast
import time
from datetime import datetime
from pathlib import Path

import pytest

from dedupd_core.config.policy import Policy, RunLimits
from dedupd_core.config.rules import Rule
from dedupd_core.errors import UsageError
from dedupd_core.format.container import Kind
from dedupd_core.units import KIB, MIB, parse_moment, parse_percentage
from tests.cli.test_cli import DAMAGED, DONE, FINDINGS, USAGE, reported, say
from tests.support.lab import REPOSITORY, Lab, flip_bit, new_lab, noise, run_cli
from tests.support.mounts import mounted_lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return new_lab(tmp_path / "volume")


def test_limits_take_the_place_of_keys_and_of_rules() -> None:
    policy = Policy(rules=(Rule(("a",), min_age_s=5.0, exclude=True),))
    limited = RunLimits(min_age_s=1.0, memory_bytes=2, cores=3).applied(policy)
    assert (limited.min_age_s, limited.memory_bytes, limited.cores) == (1.0, 2, 3)
    assert limited.rules == (Rule(("a",), exclude=True),)
    assert RunLimits().applied(policy) == policy


def test_a_run_can_take_files_that_are_too_young_for_the_policy(lab: Lab) -> None:
    lab.set_policy('min_age = "3d"\nmin_size = 1\n[[rule]]\npath = "b"\nmin_age = "9d"\n')
    lab.put("a", noise(40 * KIB)).touch()
    lab.put("b", noise(40 * KIB, 1)).touch()
    assert reported("run", "optimize", lab.root)["files_optimized"] == 0
    assert reported("run", "optimize", "--dry-run", "--min-age", "0s", lab.root)["files"] == 2
    assert reported("run", "optimize", "--min-age", "0s", lab.root)["files_optimized"] == 2


def test_a_run_goes_no_faster_than_its_rate(lab: Lab) -> None:
    for at in range(4):
        lab.put(f"f{at}", noise(6 * MIB, at))
    began_s = time.monotonic()
    report = reported("run", "optimize", "--rate", "8M", lab.root)
    assert report["files_optimized"] == 4
    assert time.monotonic() - began_s > 1.5


def test_a_run_stops_once_its_time_is_over_and_the_next_goes_on(lab: Lab) -> None:
    for at in range(12):
        lab.put(f"f{at}", noise(4 * MIB, at))
    stopped = say("run", "optimize", "--for", "1s", "--rate", "4M", lab.root)
    assert stopped.returncode == FINDINGS and "optimize: its time has expired" in stopped.stderr
    first = reported("jobs", lab.root)["history"][0]
    assert first["outcome"] == "stopped" and first["files_optimized"] < 12
    again = reported("run", "optimize", "--for", "1h", lab.root)
    assert again["files_optimized"] == 12 - first["files_optimized"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("optimize", "--for", "soon"), "--for: 'soon' is not a duration"),
        (("optimize", "--memory", "much"), "--memory: 'much' is not a size"),
        (("gc", "--cores", "-1"), "--cores: write a whole number"),
        (("scrub", "--share", "0%"), "is not a percentage"),
        (("scrub", "--share", "5%", "--report-only"), "excludes --full and --share"),
        (("unoptimize", "--since", "lately"), "is not a time"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    lab: Lab, options: tuple[str, ...], reason: str
) -> None:
    refused = say("run", *options, lab.root)
    assert refused.returncode == USAGE and reason in refused.stderr


def test_a_scrub_of_a_share_goes_on_where_the_last_one_ended(lab: Lab) -> None:
    lab.put("f", noise(300 * KIB))
    lab.optimize()
    first = reported("run", "scrub", "--share", "1%", lab.root)
    assert (first["containers"], first["resumed"]) == (1, False)
    assert first["left_bytes"] > 0
    recipes = lab.container(Kind.RECIPES)
    flip_bit(recipes, recipes.stat().st_size // 2)
    second = reported("run", "scrub", "--share", "1%", lab.root, status=FINDINGS)
    assert second["resumed"] is True
    assert second["findings"] and second["outcome"] == "repaired"
    left = second["left_bytes"]
    while left:
        left = reported("run", "scrub", "--share", "1%", lab.root)["left_bytes"]
    assert reported("run", "scrub", "--share", "1%", lab.root)["resumed"] is False


def test_a_scrub_that_only_reports_changes_nothing(lab: Lab) -> None:
    lab.put("f", noise(300 * KIB))
    lab.optimize()
    assert reported("run", "scrub", "--report-only", lab.root)["outcome"] == "clean"
    flip_bit(lab.container(Kind.CHUNKS), 10_000)
    before = stored(lab)
    report = reported("run", "scrub", "--report-only", lab.root, status=DAMAGED)
    assert report["outcome"] == "damaged" and report["files_hit"] == 1
    assert stored(lab) == before
    reported("run", "scrub", "--full", lab.root, status=DAMAGED)
    assert stored(lab) != before


def stored(lab: Lab) -> dict[str, bytes]:
    """The bytes of the store, by file."""
    files = (lab.base / "store").rglob("*")
    return {str(path): path.read_bytes() for path in files if path.is_file()}


@pytest.mark.root
def test_a_scrub_only_reports_while_users_work(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(noise(300 * KIB))
        assert run_cli("run", "optimize", lab.view).returncode == DONE
        with open(lab.view / "f", "r+b") as file:
            file.write(b"changed")
            result = run_cli("run", "scrub", "--report-only", lab.view)
        assert result.returncode == DONE and result.stdout.strip().endswith("clean"), result


def test_files_that_became_stubs_since_a_time_become_plain(lab: Lab) -> None:
    lab.put("old", noise(40 * KIB))
    assert lab.optimize().files_optimized == 1
    time.sleep(0.05)
    since = datetime.now().isoformat()
    time.sleep(0.05)
    lab.put("new", noise(40 * KIB, 1))
    assert lab.optimize().files_optimized == 1
    report = reported("run", "unoptimize", "--since", since, lab.root)
    assert report["files_restored"] == 1
    assert lab.stub("new") is None and lab.stub("old") is not None


def test_times_and_shares_as_people_write_them() -> None:
    assert parse_moment("2d", 1e6) == 1e6 - 2 * 86400
    assert parse_moment("2026-01-31", 0.0) == datetime(2026, 1, 31).timestamp()
    assert parse_percentage("5%") == 0.05 and parse_percentage("100 %") == 1.0
    for text in ("5", "101%", "x%", ""):
        with pytest.raises(UsageError):
            parse_percentage(text)


def test_a_run_is_over_before_the_command_leaves() -> None:
    """Else the service hears that it did not get through, and puts the next one off."""
    for path in sorted((REPOSITORY / "dedupd/cli/run").glob("*.py")):
        for block in ast.walk(ast.parse(path.read_text())):
            if isinstance(block, ast.With) and "working(" in ast.unparse(block.items[-1]):
                inside = {ast.unparse(one.func) for one in calls_in(block)}
                assert "finish" not in inside, f"{path.name}, line {block.lineno}"


def calls_in(block: ast.With) -> list[ast.Call]:
    return [one for line in block.body for one in ast.walk(line) if isinstance(one, ast.Call)]
