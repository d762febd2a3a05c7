"""``dedupd pause``: hold the jobs of a volume."""

import click

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.service.client import ServiceClient


@click.command("pause")
@click.argument("path", type=PATH)
@json_option
@exits
def command(path: str, as_json: bool) -> None:
    """Hold the jobs of the volume PATH until `dedupd resume PATH`."""
    volume = ServiceClient.needed().act(path, "pause")
    if as_json:
        print_json(volume)
    else:
        click.echo(f"The jobs of {volume['path']} are paused.")
