"""``dedupd status``: what a volume saves."""

import click

from dedupd.cli.common import PATH, exits, json_option
from dedupd.cli.service_status import show_service


@click.command("status")
@click.argument("path", required=False, type=PATH)
@click.option("--here", is_flag=True, help="Measure now, also where the service runs.")
@json_option
@exits
def command(path: str | None, here: bool, as_json: bool) -> None:
    """Savings and state of the volume PATH, or of every mounted volume.

    The service answers at once, with the figures that it measured last; without it, or with
    --here, the whole tree is walked.
    """
    if not here and show_service(path, as_json):
        return
    from dedupd.cli import measured_status

    measured_status.show_measured(path, here, as_json)
