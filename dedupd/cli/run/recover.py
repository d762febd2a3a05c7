"""``dedupd run recover``: what other hosts of a store in a cluster have left that are gone."""

import click

from dedupd.cli.via_service import job_command
from dedupd_core.errors import UsageError
from dedupd_core.shared.fellows import all_held
from dedupd_core.volume.volume import Volume


@job_command(
    "recover",
    click.option("--if-due", is_flag=True, help="Not where another host has done so lately."),
)
def command(path: str, if_due: bool, as_json: bool) -> None:
    """Take back what hosts that are gone had begun.

    Those are other hosts of the store in a cluster that the volume is on. They are fenced first.
    One host does so for all.
    """
    with Volume.open(path) as volume, all_held(volume):
        if volume.cluster is None:
            raise UsageError(f"{path}: its chunks are in no cluster; there is no other host")
        from dedupd.cli import cluster_upkeep

        cluster_upkeep.recover(volume, if_due=if_due, as_json=as_json)
