"""``dedupd receive``: update a replica from a stream."""

import os
import sys

import click

from dedupd.cli.common import PATH, answer, exits, job_run, json_option, print_json
from dedupd.cli.report import show_messages
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS, UsageError
from dedupd_core.system.inherited import require_standard_stream
from dedupd_core.units import counted, format_size
from jobs.backup.intake import Reception
from jobs.backup.receiver import Receiver, ReceiveReport, ReplicaVolume, drop, end, finish, token
from jobs.specs import RECEPTION


@click.command("receive")
@click.argument("path", type=PATH)
@click.option(
    "--negotiate",
    is_flag=True,
    help="Report existing chunks on standard output, for `dedupd send --negotiate`.",
)
@click.option(
    "--finish",
    "is_finish",
    is_flag=True,
    help="Switch to the received state, if an earlier `dedupd receive` stopped before it did this.",
)
@click.option("--drop", "is_drop", is_flag=True, help="Discard an interrupted stream.")
@click.option(
    "--end",
    "is_end",
    is_flag=True,
    help="Turn the replica into a writable volume, which receives no more streams.",
)
@click.option(
    "--token", "is_token", is_flag=True, help="Print the token for `dedupd send --resume`."
)
@json_option
@exits
def command(
    path: str,
    negotiate: bool,
    is_finish: bool,
    is_drop: bool,
    is_end: bool,
    is_token: bool,
    as_json: bool,
) -> None:
    """Update the replica PATH from the stream on standard input.

    PATH is an empty volume or a replica. It changes only after the complete stream has been
    received and verified. Until `dedupd receive --end PATH`, users can only read the replica.
    """
    if sum((is_finish, is_drop, is_end, is_token)) > 1:
        raise UsageError("--finish, --drop, --end and --token exclude each other")
    if not (is_finish or is_drop or is_end or is_token):
        require_standard_stream(0, "the stream")
        if negotiate:
            require_standard_stream(1, "the answers to `dedupd send`")
    with ReplicaVolume.open(path) as volume, volume.job_lock(), job_run("receive") as run:
        reception: Reception = RECEPTION.of(volume, "receive")(volume, run)
        if is_token:
            found = token(volume)
            answer(as_json, {"token": found}, found)
            sys.exit(EXIT_DONE if found else EXIT_FINDINGS)
        if is_finish or is_drop or is_end:
            if is_finish:
                finish(volume, run, reception)
            elif is_drop:
                drop(volume)
            else:
                end(volume)
            answer(as_json, {"path": path}, f"{path}: done.")
            return
        if sys.stdin.isatty():
            raise UsageError(
                "standard input is a terminal; connect it to the stream of `dedupd send`"
            )
        out = os.dup(sys.stdout.fileno()) if negotiate else None
        report = Receiver(volume, run, sys.stdin.fileno(), out, reception).run()
    _show(report, as_json and not negotiate)
    sys.exit(EXIT_FINDINGS if report.errors else EXIT_DONE)


def _show(report: ReceiveReport, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
        return
    click.echo(
        f"state {report.point}: {counted(report.nodes, 'name')}; {format_size(report.wire_bytes)}"
        f" received, {counted(report.chunks, 'chunk')}, {report.present} already present",
        err=True,
    )
    show_messages(len(report.messages), report.messages)
