"""The answers of the control socket, as JSON (docs/guide/service.md).

Users who may only read get figures and states, but nothing that could name a file: no messages, no
output, and no paths except those of volumes.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from dedupd.service.job_process import JobProcess
from dedupd.service.problems import problems
from dedupd.service.scheduler import TaskName, due
from dedupd.service.served_volume import ServedVolume
from dedupd.service.web.peers import AccessLevel
from dedupd_core import __version__
from dedupd_core.config.schedule import Off
from dedupd_core.units import counted
from jobs.specs import TASKS

if TYPE_CHECKING:
    from dedupd.service.service import Service

Json = dict[str, Any]

_PUBLIC_TEXTS = ("job", "id")
"""Texts in a report that name no file."""

_UNTOLD = "only root and the members of the group may read the details"


def time_ns_of(run: Mapping[str, Any]) -> int:
    """Return the start of a run of the history, which is its key."""
    return int(run.get("started_s", 0.0) * 1e9)


def run_view(run: Json, path: str, right: AccessLevel) -> Json:
    """Describe a run of the history of the volume at ``path``."""
    if right >= AccessLevel.ACT:
        return {"path": path, **run}
    texts = {name: run[name] for name in _PUBLIC_TEXTS if name in run}
    return {**_figures(run), **texts, "path": path, "outcome": ""}


def _figures(report: Mapping[str, Any]) -> Json:
    """Return the numbers of a report, including those of its parts."""
    found: Json = {}
    for name, value in report.items():
        if value is None or isinstance(value, (bool, int, float)):
            found[name] = value
        elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
            found[name] = _figures(value)
    return found


def service_view(service: "Service", right: AccessLevel) -> Json:
    found = [problem.message for problem in problems(service, time.time())]
    if found and right < AccessLevel.ACT:
        found = [f"{counted(len(found), 'problem')}: {_UNTOLD}"]
    guard = service.guards.state
    if right < AccessLevel.ACT:
        guard = replace(guard, guarded=(), problem=_UNTOLD if guard.problem else "")
    return {
        "version": __version__,
        "pid": os.getpid(),
        "started_s": service.started_s,
        "config": service.config_path,
        "status": service.status,
        "jobs_max": service.config.jobs_max,
        "volumes": len(service.volumes),
        "problems": found,
        "guard": asdict(guard),
    }


def volume_view(service: "Service", volume: ServedVolume, right: AccessLevel) -> Json:
    def told(problem: str) -> str:
        return problem if right >= AccessLevel.ACT or not problem else f"a problem: {_UNTOLD}"

    volume.read_policy()
    keeper, savings = volume.keeper, volume.savings
    job = service.running.get(volume.uuid or "")
    return {
        "uuid": volume.uuid,
        "path": volume.config.path,
        "mountpoint": volume.config.mountpoint,
        "options": volume.config.options.text,
        "mount": {
            "state": keeper.state.value,
            "problem": told(keeper.problem),
            "pid": keeper.pid,
            "since_s": keeper.mounted_since_s or None,
            "restarts": keeper.restarts,
        },
        "paused": volume.paused,
        "policy_problem": told(volume.policy_problem),
        "job": None if job is None else job_view(job, service, right),
        "waiting": [
            job_view(one, service, right) for one in service.waiting if one.uuid == volume.uuid
        ],
        "tasks": _tasks(volume),
        "space": _space(volume),
        "savings": None if savings is None else savings.to_json(),
        "flow": None if volume.flow is None else asdict(volume.flow),
    }


def _space(volume: ServedVolume) -> Json | None:
    """Describe the free space, the jobs that would free some, and when it runs out."""
    watch = volume.space
    if watch.latest is None:
        return None
    return {
        "level": watch.level.name.lower(),
        "free_bytes": watch.latest.free_bytes,
        "total_bytes": watch.latest.total_bytes,
        "low_bytes": watch.low_bytes,
        "critical_bytes": watch.critical_bytes,
        "taken_bytes_per_s": watch.rate_bytes_per_s,
        "full_s": watch.full_s,
        "reclaimable": [asdict(one) for one in volume.reclaimable],
    }


def _tasks(volume: ServedVolume) -> dict[TaskName, Json]:
    """Describe the last and the next run of each task."""
    if volume.policy_problem or not volume.is_known:
        return {}
    now_s, found = time.time(), {}
    for name, schedule in volume.schedules.items():
        last = volume.tasks.get(name)
        coming = due(name, schedule, last, volume.since_s, now_s)
        found[name] = {
            "label": TASKS[name].label,
            "about": TASKS[name].about,
            "last": None if last is None else asdict(last),
            "next_s": None if coming is None else max(now_s, coming.at_s),
            "off": isinstance(schedule, Off),
        }
    return found


def job_view(job: JobProcess, service: "Service", right: AccessLevel) -> Json:
    view = _job_view(job)
    if right >= AccessLevel.ACT:
        return view
    paths = [one.config.path for one in service.volumes.values() if one.uuid == job.uuid]
    phase = job.progress.get("phase", "")
    return {
        **view,
        "path": paths[0] if paths else "",
        "arguments": [],
        "progress": {**_figures(job.progress), "phase": phase},
        "outcome": job.state.value,
    }


def _job_view(job: JobProcess) -> Json:
    return {
        "id": job.id,
        "volume": job.uuid,
        "job": job.job,
        "path": job.path,
        "arguments": list(job.arguments),
        "task": job.task,
        "urgency": job.urgency.name.lower(),
        "state": job.state.value,
        "waits_for": job.waits_for,
        "progress": dict(job.progress),
        "to_go_s": job.to_go_s,
        "submitted_s": job.submitted_s,
        "started_s": job.started_s,
        "finished_s": job.finished_s,
        "until_s": job.until_s,
        "outcome": job.outcome,
        "exit_status": job.exit_status,
    }


def finished_view(job: JobProcess, service: "Service", right: AccessLevel) -> Json:
    """Describe a job with its complete results."""
    report: Mapping[str, Any] | None = job.report
    if right < AccessLevel.ACT:
        view = job_view(job, service, right)
        found = None if report is None else run_view(dict(report), view["path"], right)
        return {**view, "report": found, "output": "", "errors": ""}
    return {
        **job_view(job, service, right),
        "report": None if report is None else dict(report),
        "output": job.output,
        "errors": job.errors,
    }
