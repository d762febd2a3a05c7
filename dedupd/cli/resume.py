"""``dedupd resume``: resume the jobs of a volume."""

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd.service.client import ServiceClient


@click.command("resume")
@click.argument("path", type=PATH)
@json_option
@exits
def command(path: str, as_json: bool) -> None:
    """Resume the jobs of the volume PATH after `dedupd pause PATH`."""
    volume = ServiceClient.needed().act(path, "resume")
    answer(as_json, volume, f"The jobs of {volume['path']} are resumed.")
