"""``dedupd cluster status``: hosts, leases, savings and garbage of a store."""

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.upkeep.store_status import status_of


@click.command("status")
@click.argument("store")
@json_option
@exits
def command(store: str, as_json: bool) -> None:
    """Show the volumes on STORE and their savings.

    For each volume, the output shows whether a host has it open for writing.
    """
    with RadosStore.open(parse_address(store)) as opened:
        status = status_of(opened)
    answer(as_json, status.to_json(), "\n".join(status.lines))
