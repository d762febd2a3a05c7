"""``dedupd serve``: the service."""

import asyncio

import click

from dedupd.cli.common import PATH, exits
from dedupd.service.config import CONFIG_PATH, config_path
from dedupd.system.inherited import lift_limits


@click.command("serve")
@click.option("--config", "path", type=PATH, help=f"Configuration file; else {CONFIG_PATH}.")
@exits
def command(path: str | None) -> None:
    """Mount every volume of the configuration, run jobs by schedule, and answer requests.

    SIGHUP reads the configuration again; SIGTERM stops at the next safe point.
    """
    from dedupd.service.service import Service
    from dedupd.service.systemd import journal
    from dedupd.service.systemd.notify import Notifier
    from dedupd.service.web.server import ControlSocket

    lift_limits()
    journal.set_up()
    service = Service(path or config_path(), Notifier())
    asyncio.run(service.run(ControlSocket(service)))
