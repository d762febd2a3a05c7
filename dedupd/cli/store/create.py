"""``dedupd store create``: a store that volumes can share."""

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd.format.volume_parameters import FINGERPRINTS, PRESETS
from dedupd.shared.creation import create_store
from dedupd.system.disk import Disk


@click.command("create")
@click.argument("store", type=PATH)
@click.option(
    "--chunk-size",
    type=click.Choice(list(PRESETS)),
    default=next(iter(PRESETS)),
    show_default=True,
    help="Average size of a chunk of all its volumes; can not be changed later.",
)
@click.option(
    "--fingerprint",
    type=click.Choice(FINGERPRINTS),
    default=FINGERPRINTS[0],
    show_default=True,
    help="Cryptographic hash that names a chunk; can not be changed later.",
)
@click.option(
    "--force", is_flag=True, help="Accept a file system that may lose files in a power cut."
)
@json_option
@exits
def command(store: str, chunk_size: str, fingerprint: str, force: bool, as_json: bool) -> None:
    """Make the empty directory STORE a store that volumes of this machine can share."""
    made = create_store(
        store, chunk_size=chunk_size, fingerprint=fingerprint, disk=Disk(), force=force
    )
    answer(
        as_json,
        {"path": store, "uuid": made.uuid},
        f"{store} is a store now; `dedupd enable PATH --store {store}` puts a volume on it.",
    )
