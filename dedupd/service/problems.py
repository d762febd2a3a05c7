"""The problems of a service, and the weekly summary."""

from collections.abc import Iterator
from typing import Any, Protocol

from dedupd.service.config import ServiceConfig, VolumeConfig
from dedupd.service.mount_keeper import MountState
from dedupd.service.notices.problem import Problem, Severity
from dedupd.service.scheduler import SpaceLevel
from dedupd.service.served_volume import ServedVolume
from dedupd_core.config.schedule import Off
from dedupd_core.units import counted, format_duration, format_moment, format_size
from jobs.cluster.reports import gone_text

BACKLOG_S = 3 * 86400.0
"""Without a completed optimize run for this time, the backlog grows."""


class ServiceView(Protocol):
    """The parts of a service that this module uses."""

    listen_problem: str
    config: ServiceConfig
    volumes: dict[VolumeConfig, ServedVolume]


def problems(service: ServiceView, now_s: float) -> list[Problem]:
    """List the current problems that need an administrator."""
    found: list[Problem] = []
    if service.listen_problem:
        found.append(Problem("page", "", Severity.WARNING, service.listen_problem))
    for volume in service.volumes.values():
        volume.read_policy()
        found += _of_volume(volume, now_s)
    return found


def _of_volume(volume: ServedVolume, now_s: float) -> Iterator[Problem]:
    path, keeper, savings = volume.config.path, volume.keeper, volume.savings

    def problem(kind: str, severity: Severity, message: str, subject: str = "") -> Problem:
        return Problem(kind, path, severity, message, subject)

    if keeper.problem:
        yield problem("mount", Severity.ERROR, keeper.problem)
    if volume.policy_problem:
        yield problem("policy", Severity.WARNING, volume.policy_problem)
    if volume.is_read_only:
        text = (
            "the file system is read-only: files are readable, but jobs cannot run; find the cause"
        )
        remedy = "(`dmesg`), then `mount -o remount,rw`"
        yield problem("read_only", Severity.ERROR, f"{path}: {text} {remedy}")
    if savings is not None and savings.quarantined_records:
        damaged = counted(savings.quarantined_records, "damaged record")
        yield problem(
            "damage",
            Severity.ERROR,
            f"{path}: the store has {damaged}; to list the affected files, run `dedupd run scrub"
            f" --full --wait {path}`",
        )
    if volume.damage_met:
        yield problem(
            "damage_met",
            Severity.ERROR,
            f"{path}: users have read {counted(volume.damage_met, 'damaged record')}; to repair"
            f" the store, run `dedupd run scrub --wait {path}`",
        )
    if (noise := volume.noise_alarm) is not None:
        yield problem("noise", Severity.ERROR, noise.message(path))
    for name, history in volume.tasks.items():
        if history.failures:
            text = f"{path}: {name} has failed {history.failures} times in a row;"
            text += f" see `dedupd jobs {path}`"
            yield problem("job", Severity.WARNING, text, name)
    yield from _of_space(volume)
    yield from _of_backlog(volume, now_s)
    yield from _of_cluster(volume)


def _of_space(volume: ServedVolume) -> Iterator[Problem]:
    path, watch = volume.config.path, volume.space
    if watch.level is SpaceLevel.ENOUGH or watch.latest is None:
        return
    is_critical = watch.level is SpaceLevel.CRITICAL
    freed = ", ".join(
        f"{one.job} would free {format_size(one.bytes)}" for one in volume.reclaimable if one.bytes
    )
    yield Problem(
        "space",
        path,
        Severity.ERROR if is_critical else Severity.WARNING,
        f"{path}: {format_size(watch.latest.free_bytes)} of"
        f" {format_size(watch.latest.total_bytes)} are free, which is {watch.level.name.lower()};"
        f" {freed or 'jobs have no known garbage to free'}",
    )


def _of_backlog(volume: ServedVolume, now_s: float) -> Iterator[Problem]:
    policy, path = volume.policy, volume.config.path
    schedules = (policy.schedule_background, policy.schedule_throughput)
    if not volume.is_known or all(isinstance(one, Off) for one in schedules):
        return
    since_s = max(volume.optimized_s, volume.since_s)
    if volume.keeper.state is MountState.MOUNTED and now_s - since_s > BACKLOG_S:
        length = format_duration(now_s - since_s)
        yield Problem(
            "backlog",
            path,
            Severity.WARNING,
            f"{path}: no optimize run has finished for {length}, and the backlog grows; see"
            f" `dedupd status {path}` and `dedupd jobs {path}`",
        )


def _of_cluster(volume: ServedVolume) -> Iterator[Problem]:
    """List the problems that the hosts of a cluster store know of each other and of the store."""
    path = volume.config.path
    for one in volume.neighbours.get("gone", ()):
        yield Problem(
            "host_gone",
            path,
            Severity.WARNING,
            f"{path}: {gone_text(one)}; check that host",
            one["volume"],
        )
    audit = volume.neighbours.get("audit", {})
    found = audit.get("found", {})
    if found.get("dangling") or found.get("damaged"):
        yield Problem(
            "store_damaged",
            path,
            Severity.ERROR,
            f"{path}: the audit of the store by {audit['host']},"
            f" {format_moment(audit['begun_s'])}, found {counted(found['dangling'], 'object')}"
            f" missing and {found['damaged']:,} damaged. Run `dedupd run scrub --wait {path}` on"
            f" each host, then `dedupd run audit --wait {path}`",
        )


def summary(service: ServiceView, now_s: float) -> tuple[str, dict[str, Any]]:
    """Summarize the savings and the state of all volumes, as text and as JSON."""
    lines, rows = [], []
    for volume in service.volumes.values():
        savings, latest = volume.savings, volume.space.latest
        row = {
            "path": volume.config.path,
            "mount": volume.keeper.state.value,
            "saved_bytes": None if savings is None else savings.saved_bytes,
            "logical_bytes": None if savings is None else savings.logical_bytes,
            "free_bytes": None if latest is None else latest.free_bytes,
            "full_s": volume.space.full_s,
        }
        rows.append(row)
        saved = "not measured yet"
        if savings is not None:
            saved = f"saves {format_size(savings.saved_bytes)} ({savings.saved_fraction:.0%})"
        free = "" if latest is None else f", {format_size(latest.free_bytes)} are free"
        lines.append(f"{volume.config.path}: {volume.keeper.state.value}, {saved}{free}")
    found = [one.message for one in problems(service, now_s)]
    lines += ["", *(found or ["No problem is known."])]
    return "\n".join(lines), {"volumes": rows, "problems": found}
