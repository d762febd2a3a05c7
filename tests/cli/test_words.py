"""What is said: names of commands, what was saved, what was left, how far it is."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dedupd.cli.jobs import run_id as run_id_of
from dedupd.cli.main import COMMANDS, main
from dedupd.cli.terminal import ProgressText
from dedupd_core.units import GIB, MIB
from jobs.frame.run import Progress
from jobs.tree.candidates import SMALL
from tests.support.lab import Lab, lab_in, noise

TERMINAL_COLUMNS = 80


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    with lab_in(tmp_path) as lab:
        for name in ("a", "b"):
            lab.put(name, noise(400_000, 1))
        lab.put("small", noise(5_000, 2))
        with open(lab.put("sparse", b""), "r+b") as file:
            file.truncate(50 * MIB)
            file.write(noise(100_000, 3))
    return lab


def figures(lab: Lab) -> dict[str, int]:
    found: dict[str, int] = json.loads(run("status", "--here", "--json", str(lab.root)))
    return found


# --- saved --------------------------------------------------------------------------------------


def test_nothing_is_saved_before_anything_is_optimized(lab: Lab) -> None:
    found = figures(lab)
    assert found["saved_bytes"] == found["lost_bytes"] == 0
    assert "holes" in run("status", "--here", str(lab.root))


def test_what_is_saved_is_what_the_file_system_got_back(lab: Lab) -> None:
    (lab.data / "sparse").unlink()  # a chunk that begins in data goes on into the hole
    before = figures(lab)["occupied_bytes"]
    lab.optimize()
    found = figures(lab)
    really = before - found["occupied_bytes"]
    assert really > 300_000
    assert abs(found["saved_bytes"] - really) <= 4096
    assert found["plain_bytes"] == pytest.approx(before, abs=4096)


def test_holes_are_not_saved(lab: Lab) -> None:
    lab.optimize()
    assert figures(lab)["saved_bytes"] < 1 * MIB


def test_a_run_ends_with_what_it_saved_and_says_what_it_left(lab: Lab) -> None:
    lab.set_policy('min_age = "0s"\nmin_size = "32k"\n')
    lines = run("run", "optimize", str(lab.root)).splitlines()
    assert lines[-1].startswith("Saved ")
    assert "3 files freed" in lines[-1]
    (left,) = (line for line in lines if "min_size" in line)
    assert left == (
        "Skipped: 1 file (4.88 KiB) smaller than min_size = 32 KiB."
        f" To include more of them, run `dedupd policy {lab.root} min_size 4k`."
    )
    again = run("run", "optimize", str(lab.root)).splitlines()
    assert again[-1] == "Nothing was optimized; 3 files already optimized."
    assert len(again) == 2


def test_files_that_are_too_young_are_named_with_the_way_to_take_them(lab: Lab) -> None:
    lab.set_policy('min_age = "3d"\nmin_size = "1"\n')
    text = run("run", "optimize", str(lab.root))
    # Without the hole of 50 MiB in one of them.
    assert re.search(r"4 files \(8\d\d\.\d+ KiB\) newer than min_age = 3d", text)
    assert f"run `dedupd run optimize --min-age 0s {lab.root}`." in text
    assert "Saved " in run("run", "optimize", "--min-age", "0s", str(lab.root))


def test_what_is_left_can_be_asked_for_by_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupd.cli.jobs.mount_table.volumes", list)
    lab.set_policy('min_age = "0s"\nmin_size = "32k"\n')
    text = run("run", "optimize", str(lab.root))
    told = json.loads(run("jobs", "--left", "--json", str(lab.root)))
    assert [(row["path"], row["reason"]) for row in told["left"]] == [("small", SMALL)]
    assert told["next"] is None and told["run"]["job"] == "optimize"
    shown = run("jobs", str(lab.root))
    run_id = run_id_of(told["run"])
    assert run_id in shown, text
    page = json.loads(run("jobs", "--left", "--json", "--after", "small", str(lab.root)))
    assert page["left"] == []
    assert run("jobs", "--left", str(lab.root)) == f"small (4.88 KiB): {SMALL}\n"
    assert "no such job or run" in run("jobs", "gc-1", status=2)
    assert "--left" in run("jobs", "--left", status=2)


# --- names --------------------------------------------------------------------------------------


def test_both_spellings_are_taken(lab: Lab) -> None:
    assert "Saved" in run("run", "optimise", str(lab.root))


def test_a_mistyped_command_is_told_the_nearest_ones() -> None:
    assert "Did you mean 'status'?" in run("statsu", status=2)
    assert "Did you mean 'scrub'?" in run("run", "scrubb", "x", status=2)
    assert "No such command 'xyzzy'." in run("xyzzy", status=2)


def test_garbage_is_told_with_the_way_to_have_its_space(lab: Lab) -> None:
    lab.optimize()
    (lab.data / "a").unlink()
    (lab.data / "b").unlink()
    dry = run("run", "gc", "--dry-run", str(lab.root))
    assert "would become garbage; nothing was changed" in dry
    text = run("run", "gc", str(lab.root))
    assert "are no longer needed" in text
    assert f"`dedupd run compact {lab.root}`" in text


def test_the_help_groups_every_command() -> None:
    text = run("--help")
    for name in COMMANDS:
        assert f"\n  {name} " in text, name
    titles = ["Set up:", "  setup ", "Inspect:", "  du ", "Remove:", "  disable "]
    places = [text.index(f"\n{title}") for title in titles]
    assert places == sorted(places)


def test_who_holds_a_volume_is_said(lab: Lab) -> None:
    with lab.opened() as volume, volume.job_lock():
        told = run("run", "optimize", str(lab.root), status=3)
    assert f"(process {os.getpid()}, " in told and "`dedupd cancel`" in told


def test_status_has_the_fields_of_the_service_without_one(lab: Lab) -> None:
    told = json.loads(run("status", "--json", str(lab.root)))
    assert told["savings"]["saved_bytes"] == told["saved_bytes"]
    assert (told["mount"]["state"], told["mountpoint"]) == ("unmounted", str(lab.root))
    for key in ("job", "waiting", "tasks", "space", "paused", "policy_problem"):
        assert not told[key]


# --- progress -----------------------------------------------------------------------------------


def test_progress_fits_a_terminal_and_ends_with_the_time_to_go() -> None:
    clock = [0.0]
    text = ProgressText("unoptimize", "bytes", lambda: clock[0])
    progress = Progress(phase="making files plain", done=0, total=999 * GIB, files=0)
    assert text.of(progress).endswith("0:00 elapsed")
    clock[0], progress.done, progress.files = 3600.0, 111 * GIB, 10_234_567
    line = text.of(progress)
    assert line.endswith("about 8:00:00 remaining")
    assert "11%" in line
    assert len(line) <= 2 * TERMINAL_COLUMNS
    usual = Progress(phase="reading", done=2 * GIB, total=3 * GIB, files=90_684)
    text = ProgressText("optimize", "bytes", lambda: clock[0])
    text.of(Progress(phase="reading", total=3 * GIB))
    clock[0] += 10
    assert len(text.of(usual)) <= TERMINAL_COLUMNS


def test_a_phase_of_unknown_length_says_how_long_it_has_taken() -> None:
    clock = [0.0]
    text = ProgressText("gc", "items", lambda: clock[0])
    text.of(Progress(phase="walking the tree"))
    clock[0] = 75.0
    assert text.of(Progress(phase="walking the tree", files=1)).endswith("1 file, 1:15 elapsed")
