"""The tasks of a volume's schedule, and the options of jobs for users (:mod:`jobs.specs`)."""

from collections.abc import Mapping

from dedupd.service.scheduler import TaskName
from dedupd_core.config.policy import Policy, RefineMode
from dedupd_core.config.schedule import Off, Schedule
from dedupd_core.errors import UsageError
from dedupd_core.format.store_kinds import OWN, StoreKind
from jobs.specs import JOBS, TASKS


def tasks_of(job: str, arguments: tuple[str, ...]) -> list[TaskName]:
    """Return the scheduled tasks that a manual run has completed as well."""
    return [name for name, task in TASKS.items() if (task.job, task.options) == (job, arguments)]


def schedules(policy: Policy, kind: StoreKind) -> dict[TaskName, Schedule]:
    """Return the schedule of each task, by the policy of a volume on this kind of store.

    Some tasks are scheduled for every volume; they are off if this kind of store has no work for
    them. Tasks that exist only for kinds without containers are absent for all other kinds.
    """
    wanted: dict[TaskName, Schedule] = {}
    for name, task in TASKS.items():
        is_off = name == "refine" and policy.refine is RefineMode.OFF
        if not JOBS[task.job].has_work_in(kind):
            if not JOBS[task.job].has_work_in(OWN):
                continue
            is_off = True
        wanted[name] = Off() if is_off else getattr(policy, f"schedule_{name}")
    return wanted


TEXT_MAX = 40
"""The longest value of an option; the job itself checks the value."""


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def job_arguments(job: str, options: Mapping[str, object]) -> tuple[str, ...]:
    """Format options as arguments of ``dedupd run``. Raises UsageError."""
    if job not in JOBS:
        raise UsageError(f"job = {job!r}: no such job; use one of {', '.join(JOBS)}")
    spec = JOBS[job]
    arguments: list[str] = []
    for name, value in options.items():
        if name not in spec.known:
            known = ", ".join(sorted(spec.known))
            raise UsageError(f"options: {name!r}: not an option of {job}; use {known}")
        if name in spec.flags:
            if not isinstance(value, bool):
                raise UsageError(f"options: {name}: write true or false")
            arguments += [f"--{name.replace('_', '-')}"] if value else []
        else:
            if not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX or not _is_plain(value):
                raise UsageError(f"options: {name}: write a short text")
            arguments.append(f"--{name.replace('_', '-')}={value}")
    return tuple(arguments)
