"""``dedupd status``: show the state and savings of volumes."""

import click

from dedupd.cli.common import PATH, exits, json_option
from dedupd.cli.service_status import show_service


@click.command("status")
@click.argument("path", required=False, type=PATH)
@click.option("--here", is_flag=True, help="Measure now, even if the service is running.")
@json_option
@exits
def command(path: str | None, here: bool, as_json: bool) -> None:
    """Show the savings and the state of the volume PATH, or of all mounted volumes.

    If the service is running, it answers with the values of its most recent measurement. Without a
    service, or with --here, the command scans the entire tree.
    """
    if not here and show_service(path, as_json):
        return
    from dedupd.cli import measured_status

    measured_status.show_measured(path, here, as_json)
