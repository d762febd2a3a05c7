"""``dedupd setup``: set up a volume interactively."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click

from dedupd.cli.analyze import open_log
from dedupd.cli.common import PATH, exits, force_option, job_run, json_option, print_json
from dedupd.cli.enable import (
    NewVolume,
    chosen_values,
    chunk_size_option,
    make_volume,
    profile_option,
)
from dedupd.cli.left_out import RunPlace, outcome_of
from dedupd.service.client import ServiceClient
from dedupd.service.doctor import Check, Verdict, check_machine, check_path
from dedupd_core.config.policy import Policy, RunLimits, apply_values
from dedupd_core.errors import EXIT_FINDINGS, ServiceUnreachable, UsageError
from dedupd_core.system import mount_table
from dedupd_core.system.paths import resolved
from dedupd_core.system.processes import give_way
from dedupd_core.units import GIB, counted, exact_duration, exact_size, format_size
from dedupd_core.volume.base_directory import BASE_NAME, is_volume
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.optimize.optimize_job import Optimize, OptimizeReport

ESTIMATE_BYTES_MAX = 20 * GIB
"""Estimates read every byte, so this takes minutes. Larger trees are estimated only on request."""


@dataclass(frozen=True, slots=True)
class FileTotals:
    """The files of a directory: counts and sizes from their metadata."""

    files: int
    size_bytes: int
    small_files: int
    small_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate of a study: fractions of ``data_bytes``, when all files have reached min_age."""

    data_bytes: int
    saved: float
    confidence: str


@click.command("setup")
@click.argument("path", type=PATH)
@profile_option
@click.option("--min-age", metavar="DURATION", help="Minimum time since the last change of a file.")
@click.option("--min-size", metavar="SIZE", help="Skip files smaller than this.")
@chunk_size_option
@click.option(
    "--estimate/--no-estimate",
    default=None,
    help="Estimate the savings first by reading all files. Default: only if PATH holds at most 20"
    " GiB.",
)
@click.option("--now", is_flag=True, help="Optimize files of any age in the first run.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@force_option
@json_option
@exits
def command(
    path: str,
    profile: str,
    min_age: str | None,
    min_size: str | None,
    chunk_size: str,
    estimate: bool | None,
    now: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Check PATH, estimate the savings, and ask for confirmation. Then enable, mount and optimize
    the volume."""
    if not yes and (as_json or not sys.stdin.isatty()):
        raise UsageError("cannot ask for confirmation without a terminal; use --yes")
    values = chosen_values(profile, min_age, min_size)
    policy = apply_values(Policy(), values, "command line")
    said: dict[str, Any] = {"path": path}

    def say(text: str = "") -> None:
        if not as_json:
            click.echo(text)

    checks = _looked_at(path, force)
    said["checks"] = [asdict(check) for check in checks]
    for check in checks:
        say(f"  {check.verdict.value}: {check.what}: {check.found}. {check.remedy}")
    if any(check.verdict is Verdict.BAD for check in checks):
        say("Nothing was changed. Fix these problems, then run the command again.")
        if as_json:
            print_json(said)
        sys.exit(EXIT_FINDINGS)
    found = _counted(path, policy)
    said["found"] = asdict(found)
    say(f"{path}: {counted(found.files, 'file')}, {format_size(found.size_bytes)}.")
    if estimate or (estimate is None and 0 < found.size_bytes <= ESTIMATE_BYTES_MAX):
        reckoned = _estimated(path, chunk_size, profile)
        said["estimate"] = None if reckoned is None else asdict(reckoned)
        if reckoned is not None:
            say(
                f"Estimated savings: about {reckoned.saved:.0%}, {_of(reckoned)}, once all files"
                " are old enough."
            )
    elif found.size_bytes:
        say(f"To estimate the savings by reading all files, run `dedupd analyze {path}`.")
    for line in _plan(path, policy, found, now=now):
        say(line)
    if not yes and not click.confirm("Continue?", default=False):
        say("Nothing was changed.")
        sys.exit(EXIT_FINDINGS)
    made = make_volume(path, values, chunk_size, force=force)
    said["volume"] = made.value
    if made.problem:
        raise ServiceUnreachable(f"{path} is a volume, but is not mounted: {made.problem}")
    say(made.lines[0])
    said["run"] = _first_run(path, made, policy, now=now, say=say)
    for line in _next(path, made):
        say(line)
    if as_json:
        print_json(said)


def _looked_at(path: str, force: bool) -> list[Check]:
    """Return the problems found, the worst first. Raises UsageError for a volume."""
    mounted = mount_table.find(os.path.realpath(path))
    if mounted is not None or is_volume(path):
        there = "is" if mounted is None or mounted.point == os.path.realpath(path) else "is inside"
        raise UsageError(f"{path}: {there} a volume already; run `dedupd status {path}`")
    found = [one for one in check_machine() + check_path(path) if one.verdict is not Verdict.FINE]
    if force:
        found = [one for one in found if one.what != "file system"]
    return sorted(found, key=lambda one: one.verdict is not Verdict.BAD)


def _counted(path: str, policy: Policy) -> FileTotals:
    files = size = small = small_bytes = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(directory, name))
            except OSError:
                continue  # deleted since it was listed
            if not stat.S_ISREG(status.st_mode):
                continue
            files += 1
            size += status.st_size
            if status.st_size < policy.min_size_bytes:
                small += 1
                small_bytes += status.st_size
    return FileTotals(files, size, small, small_bytes)


def _estimated(path: str, chunk_size: str, profile: str) -> Estimate | None:
    """Estimate the savings by a study with one chunking; None if there is nothing to read."""
    from analysis.collection.chunk_log import Dataset, Spec
    from analysis.collection.collector import collect
    from analysis.report.advice import advise
    from analysis.study import run_study

    spec = Spec((Dataset("it", os.path.abspath(path)),), (chunk_size,), 0.01)
    with tempfile.TemporaryDirectory(prefix="dedupd-setup-", dir="/var/tmp") as out:
        log = open_log(os.path.join(out, "log"), spec)
        give_way()
        with job_run("estimate") as run:
            collect(log, out, run)
        with job_run("estimate", unit="queries") as run:
            study = run_study(
                [log], os.path.join(out, "database"), lambda query: run.update(phase=query)
            )
        if study.empty:
            return None
        advice = advise(study)
    chosen = next(one for one in advice.profiles if one.name == profile)
    data = sum(row.data_bytes for row in study.table1_datasets)
    return Estimate(round(data), max(0.0, chosen.saved_later), advice.confidence)


def _of(estimate: Estimate) -> str:
    saved = format_size(estimate.saved * estimate.data_bytes)
    return f"{saved} of {format_size(estimate.data_bytes)}"


def _plan(path: str, policy: Policy, found: FileTotals, *, now: bool) -> list[str]:
    """Describe what the setup will do."""
    age = exact_duration(policy.min_age_s)
    lines = [
        "The plan:",
        f"  {path} becomes a volume: its entries move into {path}/{BASE_NAME}, and the volume is"
        f" mounted over {path}. The files are unavailable for a moment, and no program may have"
        " one open.",
    ]
    if found.small_files:
        lines.append(
            f"  Files below min_size = {exact_size(policy.min_size_bytes)} are skipped:"
            f" {counted(found.small_files, 'file')}, {format_size(found.small_bytes)}."
        )
    if now:
        lines.append("  The first run optimizes files of any age.")
    elif policy.min_age_s:
        lines.append(
            f"  Files that changed in the last {age} (min_age) are skipped until they are older;"
            " copied files are new. Use `--now` to optimize them in the first run."
        )
    lines.append(f"  `dedupd disable --unoptimize {path}` reverses this.")
    return lines


def _first_run(
    path: str, made: NewVolume, policy: Policy, *, now: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run optimize once, in the service if it manages the volume, else in this process."""
    client = ServiceClient.serving(path) if made.is_served else None
    if client is not None:
        options = {"min_age": "0s"} if now else {}
        body = {"job": "optimize", "path": resolved(path), "options": options}
        queued: dict[str, Any] = client.post("/v1/jobs", body)
        say(f"The first run is queued as {queued['id']}; `dedupd jobs --watch` shows its progress.")
        return queued
    with job_run("optimize") as run:
        report = _optimized(path, run, now=now)
    for line in outcome_of(report, policy, RunPlace(path, os.path.realpath(path))):
        say(line)
    return report.to_json()


def _optimized(path: str, run: JobRun, *, now: bool) -> OptimizeReport:
    with Volume.open(path) as volume, volume.job_lock():
        if now:
            volume.limits = RunLimits(min_age_s=0.0)
        give_way(volume.policy().io_priority)
        return Optimize(volume, run).recorded()


def _next(path: str, made: NewVolume) -> list[str]:
    service = "The service runs the scheduled jobs."
    if not made.is_served:
        service = (
            "To mount it after a restart and run scheduled jobs, run `systemctl enable --now"
            " dedupd`."
        )
    return [
        "Next steps:",
        f"  {service}",
        (
            f"  `dedupd status {path}` shows the savings; `dedupd policy {path}` shows which"
            " files are optimized."
        ),
    ]
