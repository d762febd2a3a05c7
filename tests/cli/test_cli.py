"""The command line: exit statuses, JSON, and messages where they belong."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dedupd.cli.main import COMMANDS, main
from dedupd.cli.run import COMMANDS as JOBS
from dedupd_core import __version__
from dedupd_core.format.container import Kind
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from jobs.check.verify import Verify
from jobs.compact.compact_job import Compact
from jobs.frame.run import Cancelled, JobRun
from jobs.gc.gc_job import Gc
from jobs.rebuild import Rebuild
from jobs.scrub.scrub_job import Scrub
from jobs.unoptimize import Unoptimize
from tests.support.lab import (
    REPOSITORY,
    Lab,
    as_user,
    fill,
    flip_bit,
    mounted_over,
    new_lab,
    noise,
    public_directory,
    run_program,
)

DONE, FINDINGS, USAGE, BUSY, DAMAGED = range(5)

for name in COMMANDS:  # beforehand, since the users of these tests may not read Python's libraries
    importlib.import_module(f"dedupd.cli.{name}")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = new_lab(tmp_path / "volume")
    fill(lab)
    return lab


@dataclass(frozen=True)
class Said:
    """What a command ended with."""

    returncode: int
    stdout: str
    stderr: str


def say(*arguments: str | bytes | Path) -> Said:
    """A command, in this process: starting one takes longer than most commands."""
    result = CliRunner().invoke(main, [os.fsdecode(a) for a in arguments], prog_name="dedupd")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


def reported(*arguments: str | Path, status: int = DONE) -> Any:
    """What a command says in JSON."""
    result = say(*arguments, "--json")
    assert result.returncode == status, result.stderr or result.stdout
    return json.loads(result.stdout)


# --- the whole way ----------------------------------------------------------------------------


def test_a_volume_from_the_first_command_to_the_last(tmp_path: Path) -> None:
    root = tmp_path / "share"
    root.mkdir()
    contents = {f"file {at}": noise(50 * KIB) for at in range(3)}
    for name, content in contents.items():
        (root / name).write_bytes(content)
    enabled = reported("enable", "--min-age", "0s", "--no-mount", "--force", root)
    assert enabled["attribute"] in ("trusted.dedupd", "user.dedupd")
    assert reported("run", "optimize", "--dry-run", root)["files"] == 3
    optimized = reported("run", "optimize", root)
    assert (optimized["outcome"], optimized["files_optimized"]) == ("done", 3)
    status = reported("status", root)
    assert (status["uuid"], status["files_optimized"]) == (enabled["uuid"], 3)
    assert status["saved_bytes"] > 50 * KIB
    assert status["garbage"]["dead_bytes"] == 0
    assert status["last_run"]["job"] == "optimize"
    (row,) = reported("file", root / "file 1")
    assert (row["state"], row["length_bytes"]) == ("stub", 50 * KIB)
    (row,) = reported("file", "--sharing", root / "file 1")
    assert row["shared"] == {"files": 2, "shared_bytes": 50 * KIB}
    assert reported("expand", root / "file 1") == [
        {"path": str(root / "file 1"), "restored": True, "ruled": True, "error": ""}
    ]
    assert reported("run", "verify", root)["outcome"] == "clean"
    assert [run["job"] for run in reported("jobs", root)["history"]] == ["verify", "optimize"]
    assert reported("run", "unoptimize", root)["files_restored"] == 2
    assert reported("disable", root) == {"path": str(root), "disabled": True}
    assert {path.name: path.read_bytes() for path in root.iterdir()} == contents


def test_the_same_for_people(lab: Lab) -> None:
    """Reports go to standard output, and nothing to standard error."""
    for arguments, said in (
        (("run", "optimize", "--dry-run", lab.root), "would optimize 6 files"),
        (("run", "optimize", lab.root), "files optimized  6"),
        (("run", "optimize", lab.root), "Nothing was optimized; 6 files already optimized."),
        (("status", lab.root), "6, 6 of them optimized"),
        (("jobs", lab.root), "optimize"),
        (("policy", lab.root), 'min_age = "0s"'),
        (("policy", lab.root, "--all"), "ignore_case = false "),
        (("policy", lab.root, "cores", "2"), "cores: 0 -> 2"),
        (("file", lab.root / "prose"), "prose: stub, 200.00 KiB"),
        (("expand", lab.root / "prose"), "prose: expanded"),
        (("expand", lab.root / "prose"), "prose: already plain"),
        (("run", "verify", lab.root), "5 stubs, 1 plain file: clean"),
        (("run", "unoptimize", lab.root), "5 files expanded"),
        (("disable", lab.root), "is a plain directory again"),
    ):
        result = say(*arguments)
        assert (result.returncode, result.stderr) == (DONE, "")
        assert said in result.stdout


def test_the_space_of_deleted_files_comes_back(lab: Lab) -> None:
    lab.optimize()
    (lab.data / "prose").unlink()
    (lab.data / "one-chunk").unlink()
    would = reported("run", "gc", "--dry-run", lab.root)
    assert would["orphaned_chunks"] > 1
    assert "are no longer needed" in say("run", "gc", lab.root).stdout
    assert reported("run", "gc", lab.root)["outcome"] == "nothing has changed since the last run"
    assert say("run", "gc", lab.root).stdout.endswith(
        "stubs: nothing has changed since the last run\n"
    )
    assert reported("run", "gc", "--full", lab.root)["orphans_before"] > 1
    dead = reported("run", "compact", "--dry-run", lab.root)
    assert dead["dead_bytes"] > 20 * KIB and dead["freed_bytes"] == 0
    garbage = reported("status", lab.root)["garbage"]
    assert garbage["dead_bytes"] == dead["dead_bytes"]
    assert garbage["compaction_frees_bytes"] > 20 * KIB
    assert "\ngarbage " in say("status", lab.root).stdout
    assert "1 container rewritten" in say("run", "compact", lab.root).stdout
    assert reported("run", "compact", lab.root)["dead_bytes"] < 4 * KIB
    assert [run["job"] for run in reported("jobs", lab.root)["history"]][:2] == [
        "compact",
        "compact",
    ]
    assert reported("run", "verify", lab.root)["outcome"] == "clean"


def test_gc_that_cannot_read_something_is_1_and_says_what(lab: Lab) -> None:
    lab.optimize()
    with lab.opened() as volume:
        os.setxattr(lab.data / "prose", volume.space.name, b"\1" * 48)
    result = say("run", "gc", lab.root)
    assert result.returncode == FINDINGS
    assert "nothing collected" in result.stdout and "prose: " in result.stderr


def test_disable_makes_plain_first_where_it_is_told_to(lab: Lab) -> None:
    lab.optimize()
    refused = say("disable", lab.root)
    assert refused.returncode == USAGE
    assert "dedupd disable --unoptimize" in refused.stderr
    assert say("disable", "--unoptimize", lab.root).returncode == DONE
    assert not lab.base.exists()


@pytest.mark.root
def test_disable_pulls_nothing_away_from_files_that_it_cannot_see() -> None:
    """As a user's own directories may be to himself, and any to a disk that fails."""
    content = noise(100 * KIB)

    def disable_blindly() -> None:
        lab = new_lab(directory / "volume")
        lab.put("a/private/f", content)
        lab.optimize()
        (lab.data / "a/private").chmod(0)
        refused = say("disable", lab.root)
        assert refused.returncode == FINDINGS
        assert "a/private: Permission denied" in refused.stderr
        (lab.data / "a/private").chmod(0o700)
        assert lab.read("a/private/f") == content

    with public_directory() as directory:
        as_user(disable_blindly)


@pytest.mark.root
def test_disable_pulls_nothing_away_from_files_beneath_a_mount(lab: Lab) -> None:
    content = noise(100 * KIB)
    lab.put("a/deep/f", content)
    lab.optimize()
    with mounted_over(lab.data / "a/deep"):
        refused = say("disable", "--unoptimize", lab.root)
        assert refused.returncode == USAGE
        assert "a/deep is mounted over files of the volume; unmount it first" in refused.stderr
    assert lab.read("a/deep/f") == content


def test_the_policy_is_read_and_set(lab: Lab) -> None:
    assert reported("policy", lab.root)["min_age"] == "0s"
    changed = reported("policy", lab.root, "exclude", "*.tmp, cache/")["changed"]
    assert changed == {"exclude": {"old": [], "new": ["*.tmp", "cache/"]}}
    assert reported("policy", lab.root, "exclude") == {"exclude": ["*.tmp", "cache/"]}
    with lab.opened() as volume:
        assert volume.policy().exclude == ("*.tmp", "cache/")


# --- exit statuses ----------------------------------------------------------------------------


def remove_policy_value(lab: Lab) -> tuple[str | Path, ...]:
    lab.set_policy("min_age = 3\n")
    return ("run", "optimize", lab.root)


def fifo(lab: Lab) -> tuple[str | Path, ...]:
    os.mkfifo(lab.data / "fifo")
    return ("file", lab.root / "fifo")


USAGE_ERRORS: list[tuple[str, Callable[[Lab], tuple[str | Path, ...]]]] = [
    ("not a volume", lambda lab: ("status", lab.root.parent)),
    ("no such directory", lambda lab: ("run", "optimize", lab.root.parent / "none" / "none")),
    ("already a volume", lambda lab: ("enable", lab.root)),
    ("unknown policy key 'x'", lambda lab: ("policy", lab.root, "x")),
    ("cores = 'many'", lambda lab: ("policy", lab.root, "cores", "many")),
    ("policy.toml: min_age = 3", remove_policy_value),
    ("min_age = '3y'", lambda lab: ("enable", "--min-age", "3y", lab.root.parent)),
    ("is the volume itself", lambda lab: ("expand", lab.root)),
    ("not a regular file", fifo),
]


@pytest.mark.parametrize(("reason", "command"), USAGE_ERRORS)
def test_wrong_usage_is_2_with_one_line_that_says_why(
    lab: Lab, reason: str, command: Callable[[Lab], tuple[str | Path, ...]]
) -> None:
    arguments = command(lab)
    if "none" in str(arguments[-1]):
        reason = "not in a volume"
    result = say(*arguments)
    assert result.returncode == USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("dedupd: ") and result.stderr.count("\n") == 1
    assert reason in result.stderr
    as_json = say(*arguments, "--json")
    assert as_json.returncode == USAGE
    assert json.loads(as_json.stdout)["exit_status"] == USAGE
    assert reason in json.loads(as_json.stdout)["error"]


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("run", "nonsense"), ("enable",), ("enable", "--chunk-size", "1k", "/tmp")],
)
def test_what_the_parser_refuses_is_2(arguments: tuple[str, ...]) -> None:
    assert say(*arguments).returncode == USAGE
    as_json = say(*arguments, "--json")
    assert as_json.returncode == USAGE and as_json.stderr == ""
    assert json.loads(as_json.stdout)["exit_status"] == USAGE


@pytest.mark.parametrize("command", ["enable", "disable", "mount", "status", "analyze", "doctor"])
def test_an_empty_name_is_not_the_working_directory(command: str) -> None:
    refused = say(command, "")
    assert refused.returncode == USAGE and "the name is empty" in refused.stderr


def test_a_file_of_the_far_future_is_described(lab: Lab) -> None:
    path = lab.put("future", noise(10_000))
    os.utime(path, (1 << 34, 1 << 34))
    result = say("file", lab.root / "future")
    path.unlink()
    assert "plain" in result.stdout, result.stderr


def test_a_file_that_cannot_be_described_is_named_as_it_was_given(lab: Lab) -> None:
    (lab.data / "link").symlink_to("prose")
    link, missing = lab.root / "link", lab.root / "none"
    assert f"{link}: not a regular file" in say("file", link).stderr
    assert f"{missing}: no such file or directory" in say("file", missing).stderr
    several = say("file", link, lab.root / "prose", missing)
    assert several.returncode == USAGE and several.stderr.count("\n") == 2
    assert "prose: plain" in several.stdout
    rows = reported("file", link, lab.root / "prose", status=USAGE)
    assert ["error" in row for row in rows] == [True, False]


@pytest.mark.parametrize("command", [("run", "optimize"), ("run", "unoptimize"), ("expand",)])
def test_a_path_that_is_not_there_is_not_done(lab: Lab, command: tuple[str, ...]) -> None:
    missing = lab.root / "mistyped"
    refused = say(*command, missing)
    assert refused.returncode == USAGE
    assert f"{missing}: no such file or directory" in refused.stderr


def test_a_link_to_a_volume_will_do(lab: Lab, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(lab.root)
    assert reported("run", "optimize", link)["files_optimized"] == 6
    assert reported("run", "unoptimize", link)["files_restored"] == 6


def test_a_held_volume_is_3(lab: Lab) -> None:
    with lab.opened() as volume, volume.job_lock():
        for job in ("optimize", "unoptimize", "gc", "compact", "verify"):
            result = say("run", job, lab.root)
            assert result.returncode == BUSY
            assert "in use by a job; wait" in result.stderr


def test_findings_of_a_job_are_1_and_named(lab: Lab) -> None:
    lab.optimize()
    with lab.opened() as volume:
        os.setxattr(lab.data / "prose", volume.space.name, b"\1" * 48)
    lab.put("another", noise(40 * KIB, 5))
    result = say("run", "optimize", lab.root)
    assert result.returncode == FINDINGS
    assert "prose: " in result.stderr and "files optimized" in result.stdout
    assert lab.stub("another") is not None
    (row,) = reported("expand", lab.root / "prose", status=FINDINGS)
    assert not row["restored"] and row["error"]


def test_damage_is_4_and_names_files(lab: Lab) -> None:
    lab.optimize()
    flip_bit(lab.container(Kind.CHUNKS), 300)
    report = reported("run", "verify", lab.root, status=DAMAGED)
    assert report["outcome"] == "damaged"
    assert {"invariant", "where", "detail"} == set(report["findings"][0])
    result = say("run", "verify", lab.root)
    assert result.returncode == DAMAGED
    assert "recipe-chunks: " in result.stdout


def test_a_newer_volume_is_2(lab: Lab) -> None:
    path = lab.base / "volume.json"
    path.write_text(path.read_text().replace('"format": 3', '"format": 4'))
    result = say("status", lab.root)
    assert result.returncode == USAGE
    assert "volume format 4" in result.stderr


@pytest.mark.root
def test_a_refused_user_learns_which_users_may() -> None:
    with public_directory() as directory:
        lab = new_lab(directory / "volume")

        def ask() -> None:
            for command in (("status",), ("run", "optimize"), ("policy",)):
                said = say(*command, lab.root)
                assert said.returncode == USAGE
                assert "run the command as the user that enabled the volume" in said.stderr

        as_user(ask)


# --- tables -----------------------------------------------------------------------------------


def test_a_table_that_is_piped_has_whole_words_and_no_blanks_at_the_end(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / ("[red]" + "long" * 40))
    for command in ("status", "doctor"):
        said = say(command, lab.root).stdout
        assert str(lab.root) in said and "…" not in said
        assert not any(line.endswith(" ") for line in said.splitlines())


@pytest.mark.parametrize("last", ["0", "-1"])
def test_no_runs_cannot_be_asked_for(lab: Lab, last: str) -> None:
    assert say("jobs", "--last", last, lab.root).returncode == USAGE


def test_a_reader_that_has_seen_enough_hears_no_complaint(lab: Lab) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "dedupd.cli.main", "policy", str(lab.root)]
    with opened(write_end):
        said = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    assert said.stderr == b""


# --- names, help ------------------------------------------------------------------------------


def test_names_that_are_not_utf8_come_in_and_go_out(lab: Lab) -> None:
    lab.put(b"odd \xff name", noise(40 * KIB, 3))
    lab.optimize()
    path = os.fsencode(lab.root) + b"/odd \xff name"
    said = run_program("file", path)
    assert said.returncode == DONE
    assert "odd \\xff name: stub" in said.stdout
    assert json.loads(run_program("file", path, "--json").stdout)[0]["path"] == os.fsdecode(path)
    assert run_program("expand", path).returncode == DONE
    assert lab.stub(b"odd \xff name") is None


def test_no_summary_of_a_command_is_cut() -> None:
    for arguments in (("--help",), ("run", "--help"), ("store", "--help"), ("cluster", "--help")):
        assert "..." not in say(*arguments).stdout.partition("Commands:")[2]


def test_help_names_every_command(tmp_path: Path) -> None:
    result = run_program("--help")
    assert result.returncode == DONE
    assert result.stdout.startswith("Usage: dedupd [OPTIONS] COMMAND")
    for name, text in COMMANDS.items():
        assert f"  {name} " in result.stdout and text in result.stdout
    modules = {module.name for module in pkgutil.iter_modules([str(REPOSITORY / "dedupd/cli")])}
    assert set(COMMANDS) <= modules


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = say(name, "--help")
    assert result.returncode == DONE, result.stderr
    assert result.stdout.startswith(f"Usage: dedupd {name} ")


def test_every_command_that_reports_has_json() -> None:
    context = click.Context(main)
    for name in COMMANDS.keys() - {"serve"}:
        command = main.get_command(context, name)
        for each in jobs_of(command) if isinstance(command, click.Group) else [command]:
            assert each is not None
            if each.name == "metrics":
                continue  # for programs as it is
            assert "--json" in {option for param in each.params for option in param.opts}, each.name


def jobs_of(group: click.Group) -> Iterator[click.Command | None]:
    context = click.Context(group)
    return (group.get_command(context, name) for name in group.list_commands(context))


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_help(name: str) -> None:
    result = say("run", name, "--help")
    assert result.returncode == DONE, result.stderr
    assert result.stdout.startswith(f"Usage: dedupd run {name} ")


def imported_by(*arguments: str) -> set[str]:
    """The modules that a program with these arguments has imported when it ends."""
    code = (
        "import sys\nfrom dedupd.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(result.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    """What makes a start slow: the native module, the mount, the database, tables on terminals."""
    imported = imported_by("--help")
    packages = {module.partition(".")[0] for module in imported}
    assert "dedupd" in packages
    assert not {"pyfuse3", "trio", "lmdb", "rich", "psutil", "tomlkit"} & packages
    assert "dedupd_core.native" not in imported


def test_a_run_imports_only_its_own_job_and_nothing_for_people(lab: Lab) -> None:
    imported = imported_by("run", "optimize", str(lab.root), "--json")
    assert "jobs.optimize.optimize_job" in imported
    assert not {"rich", "http.client", "tomlkit"} & imported
    assert not {f"jobs.{job}" for job in JOBS if job not in ("optimize", "unoptimize")} & imported


def test_the_version_is_that_of_the_package() -> None:
    assert say("--version").stdout.split()[-1] == __version__


# --- the history ------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["unoptimize", "gc", "compact", "scrub", "rebuild", "verify"])
def test_a_run_that_stops_half_way_is_in_the_history(lab: Lab, job: str) -> None:
    lab.optimize()
    with lab.opened() as volume:
        run = JobRun(job)
        run.cancel()
        works: dict[str, Any] = {
            "unoptimize": Unoptimize(volume, run),
            "gc": Gc(volume, run),
            "compact": Compact(volume, run),
            "scrub": Scrub(volume, run),
            "rebuild": Rebuild(volume, run),
            "verify": Verify(volume, run),
        }
        with pytest.raises(Cancelled):
            works[job].recorded()
    (last,) = reported("jobs", lab.root)["history"]
    assert last["job"] == job
    assert last["outcome"] == "stopped"
