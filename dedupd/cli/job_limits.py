"""How a job behaves in its process: priority, cores, back-off, and its watcher."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click

from dedupd.cli.common import job_run
from dedupd.config.policy import Policy
from dedupd.errors import PolicyError
from dedupd.system.processes import give_way
from dedupd.volume.volume import Volume
from jobs.frame.run import JobRun


@dataclass(frozen=True, slots=True)
class Conduct:
    """The options of ``dedupd run``. ``here``: in this process, service or not."""

    here: bool = False
    gentle: bool = False


def conduct() -> Conduct:
    """That of the command that is running."""
    found = click.get_current_context().find_object(Conduct)
    return found if found is not None else Conduct()


@contextmanager
def working(volume: Volume, job: str, unit: str = "bytes") -> Iterator[JobRun]:
    """A run within the limits of the volume's policy.

    It gives way to users where it is to be gentle. One that the service started, but not to be
    gentle, waits only where memory is short; one that was started by hand does not wait at all.
    """
    policy = _policy_of(volume)
    give_way(policy.io_priority)
    _keep_to_cores(policy.cores)
    told = conduct()
    with job_run(job, unit) as run:
        if not told.here and not told.gentle:
            yield run
            return
        from jobs.frame.backoff import backing_off, decide, decide_eager

        rule = decide if told.gentle and policy.stop_when_busy else decide_eager
        with backing_off(volume.parameters.uuid, run.pace, rule, run.tell):
            yield run


def _policy_of(volume: Volume) -> Policy:
    """The policy as far as it can be read: a job that needs it reports the error itself."""
    try:
        return volume.policy()
    except PolicyError:
        return Policy()


def _keep_to_cores(count: int) -> None:
    """Use no more cores than the policy allows; 0 is all."""
    usable = sorted(os.sched_getaffinity(0))
    if 0 < count < len(usable):
        # The last ones: the work of the system tends to be on the first.
        os.sched_setaffinity(0, usable[-count:])
