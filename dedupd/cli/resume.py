"""``dedupd resume``: let the jobs of a volume go on."""

import click

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.service.client import ServiceClient


@click.command("resume")
@click.argument("path", type=PATH)
@json_option
@exits
def command(path: str, as_json: bool) -> None:
    """Let the jobs of the volume PATH go on after `dedupd pause PATH`."""
    volume = ServiceClient.needed().act(path, "resume")
    if as_json:
        print_json(volume)
    else:
        click.echo(f"The jobs of {volume['path']} go on.")
