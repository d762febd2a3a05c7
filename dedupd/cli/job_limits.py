"""How a job behaves in its process: priority, cores, back-off and monitoring."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from dedupd.cli.common import job_run
from dedupd_core.config.config_values import whole
from dedupd_core.config.policy import Policy, RestoreMode, RunLimits
from dedupd_core.errors import PolicyError, UsageError
from dedupd_core.system.processes import give_way, give_way_as_group
from dedupd_core.units import parse_duration, parse_size
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Cancelled, JobRun


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of ``dedupd run``. ``here``: run in this process, even if the service is running.
    ``pressing``: slow down for users, but do not pause."""

    here: bool = False
    gentle: bool = False
    pressing: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run: overridden policy keys, run time, throughput."""

    keys: RunLimits = field(default_factory=RunLimits)
    length_s: float | None = None
    bytes_per_s: int | None = None


T = TypeVar("T")

_LIMITS = "dedupd.limits"
"""The key of the limits in the context of the current command."""

OPTIONS: Mapping[str, Callable[..., Any]] = {
    "for": click.option(
        "--for",
        metavar="TIME",
        help="Stop after this time, for example 2h. The next run continues.",
    ),
    "min_age": click.option(
        "--min-age",
        metavar="TIME",
        help="Override the policy's min_age for all paths, for example 0s.",
    ),
    "min_age_at_most": click.option(
        "--min-age-at-most",
        metavar="TIME",
        help="For all paths, reduce a larger min_age to this value.",
    ),
    "memory": click.option(
        "--memory",
        metavar="SIZE",
        help="Use this value instead of the policy key memory, for example 1G.",
    ),
    "cores": click.option("--cores", metavar="N", help="Number of cores to use; 0 means all."),
    "rate": click.option(
        "--rate",
        metavar="SIZE",
        help="Limit the average throughput, for example to 100M per second.",
    ),
}
"""Options of ``dedupd run``, by their names in requests to the service. A command has only the
options that its job needs."""


def take_limits(options: dict[str, Any]) -> None:
    """Move the limits of a command out of ``options``, for :func:`working`. Raises UsageError."""
    said = {name: options.pop(name, None) for name in OPTIONS}
    click.get_current_context().meta[_LIMITS] = Limits(
        RunLimits(
            _meant("--min-age", said["min_age"], parse_duration),
            _meant("--min-age-at-most", said["min_age_at_most"], parse_duration),
            _meant("--memory", said["memory"], parse_size),
            _meant("--cores", said["cores"], whole(0, 1024).parse),
        ),
        _meant("--for", said["for"], parse_duration),
        _meant("--rate", said["rate"], parse_size),
    )


def _meant(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def limits() -> Limits:
    """The limits of the current command."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(_LIMITS)
    return found if isinstance(found, Limits) else Limits()


def conduct() -> RunOptions:
    """The behaviour of the current command."""
    found = click.get_current_context().find_object(RunOptions)
    return found if found is not None else RunOptions()


@contextmanager
def working(volume: Volume, job: str, unit: str = "bytes") -> Iterator[JobRun]:
    """Run a job within the limits of the volume's policy and of the command.

    A gentle job yields to users. Other jobs of the service pause only if memory is low; manually
    started jobs never pause.
    """
    asked = limits()
    volume.limits = asked.keys
    policy = _policy_of(volume)
    if job != "optimize" or policy.restore_mode is RestoreMode.OFF:
        give_way(policy.io_priority)  # otherwise users wait for it
    _keep_to_cores(policy.cores)
    told = conduct()
    if told.gentle:
        give_way_as_group()
    with job_run(job, unit) as run, run.limited(asked.length_s, asked.bytes_per_s or 0):
        if not told.here and not told.gentle:
            yield run
            return
        from jobs.frame.backoff import backing_off, decide, decide_eager, decide_pressing

        rule = decide_eager
        if policy.stop_when_busy:
            rule = decide if told.gentle else decide_pressing if told.pressing else decide_eager
        with backing_off(volume.parameters.uuid, run.pace, rule, run.tell):
            yield run


def verify_new_headers(volume: Volume, run: JobRun) -> None:
    """Check the headers of new records after the job's report, so that gc can skip them. Does
    nothing if a user may be waiting for the job."""
    if conduct().gentle and volume.store_kind.has_containers:
        from jobs.check import headers_seen

        with suppress(Cancelled):  # the job itself is complete
            headers_seen.verify_new_headers(volume, run)


def _policy_of(volume: Volume) -> Policy:
    """Return the policy, or a default if it is invalid: the job reports that error itself."""
    try:
        return volume.policy()
    except PolicyError:
        return Policy()


def _keep_to_cores(count: int) -> None:
    """Use no more cores than the policy allows; 0 means all."""
    usable = sorted(os.sched_getaffinity(0))
    if 0 < count < len(usable):
        # The last cores: the kernel tends to do its own work on the first cores.
        os.sched_setaffinity(0, usable[-count:])
