"""``dedupd run audit``: all of the store in a cluster that a volume is on, looked at."""

import click

from dedupd.cli.via_service import job_command
from dedupd_core.errors import UsageError
from dedupd_core.shared.fellows import all_held
from dedupd_core.volume.volume import Volume


@job_command(
    "audit",
    click.option("--read", is_flag=True, help="Read the content of all chunks, too."),
    click.option("--if-due", is_flag=True, help="Not where another host has done so lately."),
)
def command(path: str, read: bool, if_due: bool, as_json: bool) -> None:
    """Look at all of a store in a cluster, for what is missing.

    It is the store that the volume is on. What nothing needs there is let go of. One host does so
    for all, while all hosts write.
    """
    with Volume.open(path) as volume, all_held(volume):
        if volume.cluster is None:
            raise UsageError(
                f"{path}: its chunks are in no cluster; `dedupd run scrub` checks them"
            )
        from dedupd.cli import cluster_upkeep

        cluster_upkeep.audit(volume, reads_chunks=read, if_due=if_due, as_json=as_json)
