"""The jobs and the tasks of the schedule, one row each.

A new job needs a row here, a module with the work in this package, and a module with the command in
:mod:`dedupd.cli.run`. A new task needs a row here, and a policy key ``schedule_TASK``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dedupd_core.format.store_kinds import StoreKind
from dedupd_core.stores.store_side import SEE_CLUSTER
from dedupd_core.volume.volume import Volume
from jobs.frame.job import Job


@dataclass(frozen=True, slots=True)
class Strategies:
    """Code for an operation, by the volume's kind of store: each a ``MODULE:NAME``, which is
    imported when it is needed; empty if there is nothing to do.

    ``containers``: for stores on a disk of this host. ``elsewhere``: help for other stores.
    """

    containers: str = ""
    cluster: str = ""
    elsewhere: str = SEE_CLUSTER

    def named(self, kind: StoreKind) -> str:
        return self.containers if kind.has_containers else self.cluster

    def of(self, volume: Volume, job: str) -> Any:
        """Return the class for a volume's store. Raises UsageError if there is none."""
        name = self.named(volume.store_kind)
        if not name:
            raise volume.without_work(job, self.elsewhere)
        module, _, attribute = name.partition(":")
        return getattr(import_module(module), attribute)


RECEPTION = Strategies(
    "jobs.backup.intake:LocalReception", "jobs.cluster.receiving:ClusterReception"
)
"""Classes that receive a stream (``jobs.backup.intake.Reception``)."""

LEAVING = Strategies(cluster="jobs.cluster.gc:leave_store")
"""Called before a volume is disabled, so that its store forgets it."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job. ``options`` have a value, ``flags`` have none; every job has ``for`` and ``cores``.

    ``classes``: of :class:`jobs.frame.job.Job`. ``of_a_subtree``: it can work on a part of the
    tree. ``by_service``: users may ask the service for it; otherwise it needs the volume unmounted.
    """

    name: str
    classes: Strategies
    options: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    of_a_subtree: bool = False
    by_service: bool = True

    @property
    def known(self) -> frozenset[str]:
        """The names of all options and flags."""
        return self.options | self.flags | {"for", "cores"}

    def has_work_in(self, kind: StoreKind) -> bool:
        """Return whether the job has work in a kind of store."""
        return bool(self.classes.named(kind))


SPECS: tuple[JobSpec, ...] = (
    JobSpec(
        "optimize",
        Strategies("jobs.optimize.optimize_job:Optimize", "jobs.cluster.optimize:ClusterOptimize"),
        options=frozenset({"min_age", "min_age_at_most", "memory", "rate"}),
        of_a_subtree=True,
    ),
    JobSpec(
        "reconcile",
        Strategies("jobs.reconcile.reconcile_job:Reconcile"),
        options=frozenset({"strategy", "memory"}),
    ),
    JobSpec(
        "refine",
        Strategies("jobs.refine.refine_job:Refine"),
        options=frozenset({"mode", "memory", "rate"}),
    ),
    JobSpec(
        "gc",
        Strategies("jobs.gc.gc_job:Gc", "jobs.cluster.gc:ClusterGc"),
        flags=frozenset({"full", "all_garbage"}),
    ),
    JobSpec(
        "compact",
        Strategies("jobs.compact.compact_job:Compact"),
        options=frozenset({"rate"}),
    ),
    JobSpec(
        "scrub",
        Strategies("jobs.scrub.scrub_job:Scrub", "jobs.cluster.scrub:ClusterScrub"),
        options=frozenset({"rate", "share"}),
        flags=frozenset({"full", "report_only"}),
    ),
    JobSpec(
        "unoptimize",
        Strategies("jobs.unoptimize:Unoptimize", "jobs.unoptimize:Unoptimize"),
        options=frozenset({"rate", "since"}),
        of_a_subtree=True,
    ),
    JobSpec("rebuild", Strategies("jobs.rebuild:Rebuild")),
    JobSpec(
        "recover",
        Strategies(
            cluster="jobs.cluster.upkeep:ClusterRecover", elsewhere="there is no other host"
        ),
        flags=frozenset({"if_due"}),
    ),
    JobSpec(
        "audit",
        Strategies(
            cluster="jobs.cluster.upkeep:ClusterAudit",
            elsewhere="`dedupd run scrub` checks them",
        ),
        flags=frozenset({"read", "if_due"}),
    ),
    JobSpec(
        "verify",
        Strategies(
            "jobs.check.verify:Verify", elsewhere="`dedupd cluster audit --read` changes no file"
        ),
        by_service=False,
    ),
)

ALL_JOBS: Mapping[str, JobSpec] = {spec.name: spec for spec in SPECS}

JOBS: Mapping[str, JobSpec] = {name: spec for name, spec in ALL_JOBS.items() if spec.by_service}
"""The jobs that users may ask the service for."""


def job_of(name: str, volume: Volume) -> Callable[..., Job[Any]]:
    """Return the class of this job for a volume. Raises UsageError if it has no work there."""
    found: Callable[..., Job[Any]] = ALL_JOBS[name].classes.of(volume, name)
    return found


@dataclass(frozen=True, slots=True)
class Task:
    """A job in the schedule.

    ``name``: its schedule in the policy is ``schedule_NAME``. ``about``: description for people.
    ``options``: of the command. ``eager``: it does not yield to users.
    """

    name: str
    job: str
    about: str
    options: tuple[str, ...] = ()
    eager: bool = False

    @property
    def label(self) -> str:
        """Return the arguments of ``dedupd run``."""
        return " ".join((self.job, *self.options))


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task("reconcile", "reconcile", "merges partitions"),
        Task("gc", "gc", "finds garbage"),
        Task("compact", "compact", "frees garbage"),
        Task("scrub", "scrub", "checks for damage"),
        Task("full_scrub", "scrub", "checks every byte", ("--full",)),
        Task("recover", "recover", "checks for dead hosts", ("--if-due",)),
        Task("audit", "audit", "audits the store in the cluster", ("--if-due",)),
        Task("throughput", "optimize", "at full speed", eager=True),
        Task("refine", "refine", "recompresses cold chunks"),
        Task("background", "optimize", "yields to users"),
    )
}
"""The tasks by their names. If several are due, the first one here runs first."""
