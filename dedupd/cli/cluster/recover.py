"""``dedupd cluster recover``: roll back the unfinished work of a dead host."""

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.rados.store import RadosStore
from dedupd_core.units import counted


@click.command("recover")
@click.argument("store")
@click.argument("volume")
@json_option
@exits
def command(store: str, volume: str, as_json: bool) -> None:
    """Roll back the unfinished work of the dead host of VOLUME.

    The host is fenced first, and the data of its files is kept. VOLUME is a UUID that `dedupd
    cluster status` shows.
    """
    with RadosStore.open(parse_address(store)) as opened:
        recovery = opened.recover(volume.replace("-", ""))
    value = {
        "volume": volume,
        "retired": recovery.retired,
        "left": recovery.left,
        "damaged": recovery.damaged,
    }
    text = f"{counted(recovery.retired, 'file version')} rolled back"
    if recovery.left:
        text += (
            f"; {counted(recovery.left, 'file')} between two versions must wait for their own host"
        )
    answer(as_json, value, text)
