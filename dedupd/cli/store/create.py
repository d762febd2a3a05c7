"""``dedupd store create``: create a store that volumes can share."""

import click

from dedupd.cli.common import PATH, answer, exits, force_option, json_option
from dedupd.cli.enable import chunk_size_option, fingerprint_option
from dedupd_core.shared.creation import create_store
from dedupd_core.system.disk import Disk


@click.command("create")
@click.argument("store", type=PATH)
@chunk_size_option
@fingerprint_option
@force_option
@json_option
@exits
def command(store: str, chunk_size: str, fingerprint: str, force: bool, as_json: bool) -> None:
    """Turn the empty directory STORE into a shared store.

    Volumes of this machine can use it with `dedupd enable --store STORE`.
    """
    made = create_store(
        store, chunk_size=chunk_size, fingerprint=fingerprint, disk=Disk(), force=force
    )
    answer(
        as_json,
        {"path": store, "uuid": made.uuid},
        f"{store} is now a store; to add a volume, run `dedupd enable PATH --store {store}`.",
    )
