"""``dedupd store move``: move a volume to another store."""

import shlex
from contextlib import ExitStack, closing
from functools import partial

import click

from dedupd.cli.common import PATH, exits, job_run, json_option
from dedupd.cli.report import finish
from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.address import is_address
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.units import counted, format_size
from dedupd_core.volume.enabling.place import refuse_mounted
from jobs.move import Move, MoveReport, MovingVolume


@click.command("move")
@click.argument("path", type=PATH)
@click.option("--store", type=PATH, help="Target: this shared store.")
@click.option("--own", is_flag=True, help="Target: a store that only this volume uses.")
@json_option
@exits
def command(path: str, store: str | None, own: bool, as_json: bool) -> None:
    """Move the unmounted volume PATH to another store.

    The chunks are copied first, so both stores need space for them. Recently deleted files cannot
    be restored after the move. To continue an interrupted move, run the command again.
    """
    if own == (store is not None):
        raise UsageError("no target is given; use --store STORE or --own")
    if store is not None and is_address(store):
        raise _through_a_stream(path, store, store)
    with ExitStack() as files:
        shared = None
        if store is not None:
            shared = files.enter_context(closing(SharedDirectory.named(store, Disk())))
        volume = files.enter_context(MovingVolume.open(path))
        if not volume.store_kind.has_containers:
            raise _through_a_stream(path, volume.chunk_store.where, store)
        refuse_mounted(volume.is_mounted, path)
        run = files.enter_context(job_run("move", unit="stubs"))
        report = Move(volume, run, shared).recorded()
    finish(report, as_json, partial(_show, path=path), findings=report.errors)


def _through_a_stream(path: str, cluster: str, store: str | None) -> UsageError:
    """Explain a move by a stream to ``store``; None means the volume's own store."""
    there = "" if store is None else f" --store {shlex.quote(store)}"
    return UsageError(
        f"{cluster}: `dedupd store move` only moves between directories; use a stream for a"
        " cluster. Create the empty directory OTHER, and run `dedupd enable OTHER"
        f" --no-mount{there}`. Stop all writers, and run `dedupd send {shlex.quote(path)}"
        ' --negotiate --through "dedupd receive --negotiate OTHER"`; run it again if it is'
        " interrupted. Then run `dedupd receive --end OTHER` and `dedupd mount OTHER`"
    )


def _show(report: MoveReport, *, path: str) -> None:
    copied = format_size(report.copied_bytes)
    click.echo(
        f"{path} is on {report.store}: {counted(report.stubs, 'stub')},"
        f" {counted(report.chunks, 'chunk')}, {report.present:,} already present; {copied} copied"
    )
