"""``dedupd store status``: show the volumes and the space of a shared store."""

from contextlib import closing
from dataclasses import asdict

import click

from dedupd.cli.common import PATH, exits, json_option, show_or_json
from dedupd.cli.terminal import figures, show
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.units import format_size
from jobs.usage.store_figures import StoreFigures, store_figures


@click.command("status")
@click.argument("store", type=PATH)
@json_option
@exits
def command(store: str, as_json: bool) -> None:
    """Show the volumes on STORE and the space that it uses.

    For each volume, the output shows whether it is accessible.
    """
    with closing(SharedDirectory.named(store, Disk())) as shared:
        found = store_figures(shared)
    show_or_json(as_json, asdict(found), lambda: _show(found))


def _show(found: StoreFigures) -> None:
    table = figures()
    for volume in found.volumes:
        problem = volume.problem
        table.add_row(volume.path, f"not accessible: {problem}" if problem else "accessible")
    table.add_row("store", format_size(sum(found.store_bytes.values())))
    if found.garbage.compaction_frees_bytes:
        table.add_row("garbage", format_size(found.garbage.compaction_frees_bytes))
    if found.garbage.quarantined_records:
        table.add_row(
            "quarantined",
            f"{found.garbage.quarantined_records:,} records: run `dedupd run scrub`",
        )
    table.add_row("free", format_size(found.free_bytes))
    show(table, title=found.path)
    if any(volume.problem for volume in found.volumes):
        click.echo("Nothing is collected while a volume is not accessible.")
