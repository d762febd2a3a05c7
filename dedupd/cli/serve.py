"""``dedupd serve``: the service."""

import asyncio

import click

from dedupd.cli.common import PATH, exits
from dedupd.service.config import CONFIG_PATH, config_path
from dedupd_core.system.inherited import lift_limits


@click.command("serve")
@click.option("--config", "path", type=PATH, help=f"Configuration file. Default: {CONFIG_PATH}.")
@click.option(
    "--mount",
    "volume",
    metavar="UUID",
    help="Serve the mount of one volume for the service. Only the unit dedupd-mount@.service uses"
    " this.",
)
@click.option(
    "--after",
    "ended",
    metavar="UUID",
    help="Unmount a volume after its mount process has stopped. Only the unit"
    " dedupd-mount@.service uses this.",
)
@exits
def command(path: str | None, volume: str | None, ended: str | None) -> None:
    """Mount all configured volumes, run scheduled jobs, and answer requests.

    SIGHUP reads the configuration again. SIGTERM stops the service at the next safe point.
    """
    if volume or ended:
        # The unit of a mount runs this.
        from fuse_stub.process import clear_after, serve_in_unit

        if volume:
            serve_in_unit(volume)
        if ended:
            clear_after(ended)
        return
    from dedupd.service.service import Service
    from dedupd.service.systemd import journal
    from dedupd.service.systemd.notify import Notifier
    from dedupd.service.web.server import ControlSocket

    lift_limits()
    journal.set_up()
    service = Service(path or config_path(), Notifier())
    asyncio.run(service.run(ControlSocket(service)))
