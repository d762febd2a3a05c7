"""``dedupd cluster create``: a store that volumes of many hosts share."""

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd.format.volume_parameters import FINGERPRINTS
from dedupd.rados.cluster.address import parse_address
from dedupd.rados.store import RadosStore


@click.command("create")
@click.argument("store")
@click.option(
    "--fingerprint",
    type=click.Choice(FINGERPRINTS),
    default=FINGERPRINTS[0],
    show_default=True,
    help="Cryptographic hash that names a chunk; can not be changed later.",
)
@json_option
@exits
def command(store: str, fingerprint: str, as_json: bool) -> None:
    """Make STORE, in a pool that is there already (docs/cluster.md)."""
    with RadosStore.create(parse_address(store), fingerprint) as made:
        uuid = made.parameters.uuid
    answer(
        as_json,
        {"store": store, "uuid": uuid},
        f"{store} is a store now; `dedupd enable PATH --store {store}` puts a volume on it.",
    )
