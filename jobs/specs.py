"""The jobs and the tasks of the schedule, each a row.

A new job is a row here, a module with the work in this package, and one with the command in
:mod:`dedupd.cli.run`. A new task is a row here, and a key ``schedule_TASK`` in the policy.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Stores(enum.Enum):
    """The stores that a job has work in."""

    ANY = enum.auto()
    CONTAINERS = enum.auto()
    """On disks: a volume's own, or a shared one."""
    CLUSTER = enum.auto()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job. ``options`` have a value, ``flags`` have none; every job has ``for`` and ``cores``.

    ``of_a_subtree``: it can work on a part of the tree. ``by_service``: users may ask the service
    for it; else it needs the volume unmounted.
    """

    name: str
    options: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    stores: Stores = Stores.ANY
    of_a_subtree: bool = False
    by_service: bool = True

    @property
    def known(self) -> frozenset[str]:
        """The names of all options and flags."""
        return self.options | self.flags | {"for", "cores"}


SPECS: tuple[JobSpec, ...] = (
    JobSpec(
        "optimize",
        options=frozenset({"min_age", "min_age_at_most", "memory", "rate"}),
        of_a_subtree=True,
    ),
    JobSpec(
        "reconcile",
        options=frozenset({"strategy", "memory"}),
        stores=Stores.CONTAINERS,
    ),
    JobSpec(
        "refine",
        options=frozenset({"mode", "memory", "rate"}),
        stores=Stores.CONTAINERS,
    ),
    JobSpec(
        "gc",
        flags=frozenset({"full", "all_garbage"}),
    ),
    JobSpec(
        "compact",
        options=frozenset({"rate"}),
        stores=Stores.CONTAINERS,
    ),
    JobSpec(
        "scrub",
        options=frozenset({"rate", "share"}),
        flags=frozenset({"full", "report_only"}),
    ),
    JobSpec("unoptimize", options=frozenset({"rate", "since"}), of_a_subtree=True),
    JobSpec("rebuild"),
    JobSpec(
        "recover",
        flags=frozenset({"if_due"}),
        stores=Stores.CLUSTER,
    ),
    JobSpec(
        "audit",
        flags=frozenset({"read", "if_due"}),
        stores=Stores.CLUSTER,
    ),
    JobSpec("verify", by_service=False),
)

JOBS: Mapping[str, JobSpec] = {spec.name: spec for spec in SPECS if spec.by_service}
"""The jobs that users may ask the service for."""


@dataclass(frozen=True, slots=True)
class Task:
    """A job as the schedule runs it.

    ``name``: its schedule in the policy is ``schedule_NAME``. ``about``: what people read of it.
    ``options``: of the command. ``eager``: it does not give way to users.
    """

    name: str
    job: str
    about: str
    options: tuple[str, ...] = ()
    eager: bool = False

    @property
    def label(self) -> str:
        """What to type after ``dedupd run``."""
        return " ".join((self.job, *self.options))


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task("reconcile", "reconcile", "merges partitions"),
        Task("gc", "gc", "finds garbage"),
        Task("compact", "compact", "gives the space of garbage back"),
        Task("scrub", "scrub", "looks for damage"),
        Task("full_scrub", "scrub", "checks every byte", ("--full",)),
        Task("recover", "recover", "looks for hosts that are gone", ("--if-due",)),
        Task("audit", "audit", "looks at all of the store in the cluster", ("--if-due",)),
        Task("throughput", "optimize", "at full speed", eager=True),
        Task("refine", "refine", "makes smaller what is cold"),
        Task("background", "optimize", "gives way to users"),
    )
}
"""The tasks by their names. Of several that are due, the first one here goes first."""
