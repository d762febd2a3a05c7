"""``dedupd pause``: pause the jobs of a volume."""

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd.service.client import ServiceClient


@click.command("pause")
@click.argument("path", type=PATH)
@json_option
@exits
def command(path: str, as_json: bool) -> None:
    """Pause the jobs of the volume PATH until `dedupd resume PATH`."""
    volume = ServiceClient.needed().act(path, "pause")
    answer(as_json, volume, f"The jobs of {volume['path']} are paused.")
