"""``dedupd cluster create``: a store that volumes of many hosts share."""

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd.cli.enable import fingerprint_option
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.rados.store import RadosStore


@click.command("create")
@click.argument("store")
@fingerprint_option
@json_option
@exits
def command(store: str, fingerprint: str, as_json: bool) -> None:
    """Create STORE in an existing pool (docs/guide/cluster.md)."""
    with RadosStore.create(parse_address(store), fingerprint) as made:
        uuid = made.parameters.uuid
    answer(
        as_json,
        {"store": store, "uuid": uuid},
        f"{store} is now a store; to add a volume, run `dedupd enable PATH --store {store}`.",
    )
