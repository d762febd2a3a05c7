"""The tasks of a volume's schedule, and the jobs that users may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass

from dedupd.config.policy import Policy, RefineMode
from dedupd.config.schedule import Off, Schedule
from dedupd.errors import UsageError
from dedupd.service.scheduler import TaskName


@dataclass(frozen=True, slots=True)
class Task:
    """A job as it is run by the schedule. ``eager``: it does not give way to users. ``about``: what
    it is for."""

    job: str
    about: str
    options: tuple[str, ...] = ()
    eager: bool = False

    @property
    def label(self) -> str:
        """What to type after ``dedupd run``."""
        return " ".join((self.job, *self.options))


TASKS: Mapping[TaskName, Task] = {
    "reconcile": Task("reconcile", "merges partitions"),
    "gc": Task("gc", "finds garbage"),
    "compact": Task("compact", "gives the space of garbage back"),
    "scrub": Task("scrub", "looks for damage"),
    "full_scrub": Task("scrub", "checks every byte", ("--full",)),
    "recover": Task("recover", "looks for hosts that are gone", ("--if-due",)),
    "audit": Task("audit", "looks at all of the store in the cluster", ("--if-due",)),
    "throughput": Task("optimize", "at full speed", eager=True),
    "refine": Task("refine", "makes smaller what is cold"),
    "background": Task("optimize", "gives way to users"),
}
"""In the order in which they go first. Each has its schedule in the policy."""


def tasks_of(job: str, arguments: tuple[str, ...]) -> list[TaskName]:
    """The tasks that a run by hand stands for: those that would have done the same."""
    return [name for name, task in TASKS.items() if (task.job, task.options) == (job, arguments)]


_OF_CONTAINERS: tuple[TaskName, ...] = ("reconcile", "compact", "refine")
"""Tasks with nothing to do where the chunks are in a cluster."""

_OF_CLUSTERS: tuple[TaskName, ...] = ("recover", "audit")
"""Tasks of volumes whose chunks are there, and of no other."""


def schedules(policy: Policy, *, in_cluster: bool) -> dict[TaskName, Schedule]:
    """When each task runs, by the policy; ``in_cluster``: of a volume whose chunks are there."""
    wanted = {name: getattr(policy, f"schedule_{name}") for name in TASKS}
    if policy.refine is RefineMode.OFF:
        wanted["refine"] = Off()
    if in_cluster:
        return wanted | dict.fromkeys(_OF_CONTAINERS, Off())
    return {name: schedule for name, schedule in wanted.items() if name not in _OF_CLUSTERS}


_ANY = frozenset({"for", "cores"})

JOBS: Mapping[str, frozenset[str]] = {
    "optimize": _ANY | {"min_age", "min_age_at_most", "memory", "rate"},
    "reconcile": _ANY | {"strategy", "memory"},
    "refine": _ANY | {"mode", "memory", "rate"},
    "gc": _ANY | {"full", "all_garbage"},
    "compact": _ANY | {"rate"},
    "scrub": _ANY | {"full", "rate", "share", "report_only"},
    "unoptimize": _ANY | {"rate", "since"},
    "rebuild": _ANY,
    "recover": _ANY | {"if_due"},
    "audit": _ANY | {"read", "if_due"},
}
"""Jobs that users may ask for, and their options; ``verify`` needs the volume unmounted."""

_FLAGS = frozenset({"full", "all_garbage", "report_only", "read", "if_due"})

TEXT_MAX = 40
"""The longest value of an option; the job itself says whether it makes sense."""

OF_A_SUBTREE = frozenset({"optimize", "unoptimize"})
"""Jobs that can work on a part of the tree."""


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def job_arguments(job: str, options: Mapping[str, object]) -> tuple[str, ...]:
    """The options as ``dedupd run`` takes them. Raises UsageError."""
    if job not in JOBS:
        raise UsageError(f"job = {job!r}: the jobs are {', '.join(JOBS)}")
    arguments: list[str] = []
    for name, value in options.items():
        if name not in JOBS[job]:
            known = ", ".join(sorted(JOBS[job])) or "none"
            raise UsageError(f"options: {name!r} is no option of {job}; there is {known}")
        if name in _FLAGS:
            if not isinstance(value, bool):
                raise UsageError(f"options: {name}: write true or false")
            arguments += [f"--{name.replace('_', '-')}"] if value else []
        else:
            if not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX or not _is_plain(value):
                raise UsageError(f"options: {name}: write a short text")
            arguments.append(f"--{name.replace('_', '-')}={value}")
    return tuple(arguments)
