"""``dedupd run``: run one job, in the service if it is running, else in the foreground.

Each job is a module in this package, so that a run imports no other job.
"""

import click

from dedupd.cli.job_limits import RunOptions
from dedupd.cli.lazy_command import LazyGroup
from jobs.specs import SPECS

COMMANDS = sorted(spec.name for spec in SPECS)


@click.group("run", cls=LazyGroup, package=__name__, names=COMMANDS)
@click.option("--here", is_flag=True, help="Run in this process, even if the service is running.")
@click.option("--gentle", is_flag=True, help="Slow down and pause while users are active.")
@click.option(
    "--pressing", is_flag=True, help="Slow down while users are active, but do not pause."
)
@click.pass_context
def command(context: click.Context, here: bool, gentle: bool, pressing: bool) -> None:
    """Run one job on a volume, or on a part of its tree, at the lowest priority.

    If the service manages the volume, the service runs the job.
    """
    context.obj = RunOptions(here or gentle, gentle, pressing)
