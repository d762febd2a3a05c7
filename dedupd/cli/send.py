"""``dedupd send``: write a volume, or the changes to it, as a stream."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable

import click

from dedupd.cli.common import PATH, exits, job_run, json_option
from dedupd.cli.report import show_messages
from dedupd_core.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_FINDINGS, DedupdError, UsageError
from dedupd_core.system.inherited import require_standard_stream
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.backup.sender import Resume, Sender, SendReport


@click.command("send")
@click.argument("path", type=PATH)
@click.option("--since", metavar="ID", default="", help="Send only the changes since this state.")
@click.option(
    "--resume",
    metavar="TOKEN",
    help="Continue an interrupted stream; `receive --token` prints TOKEN.",
)
@click.option(
    "--negotiate",
    is_flag=True,
    help="Read the answers of the receiver on standard input, and send only missing chunks.",
)
@click.option(
    "--through",
    metavar="COMMAND",
    help="Start COMMAND, connect to its standard input and output, and send as with --negotiate.",
)
@json_option
@exits
def command(
    path: str,
    since: str,
    resume: str | None,
    negotiate: bool,
    through: str | None,
    as_json: bool,
) -> None:
    """Write the volume PATH to standard output, for `dedupd receive`.

    PATH can be a snapshot. The command prints the ID of the state that it sent, or with --json the
    report, on standard error.
    """
    token = Resume.parse(resume) if resume else None
    if through is None:
        require_standard_stream(1, "the stream")
    if negotiate and through is None:
        require_standard_stream(0, "the answers of `dedupd receive`")
    if through is None and sys.stdout.isatty():
        raise UsageError(
            "standard output is a terminal; connect it to `dedupd receive`, or to a file"
        )
    with Volume.open(path) as volume, volume.tree_lock(reads_only=True), job_run("send") as run:
        if through is None:
            back = sys.stdin.fileno() if negotiate else None
            sender = Sender(volume, run, sys.stdout.fileno(), back, since=since, resume=token)
            report = sender.run()
        else:
            report = _through(
                through, lambda out, back: Sender(volume, run, out, back, since=since, resume=token)
            )
    _show(report, as_json)
    sys.exit(EXIT_DAMAGED if report.damaged else EXIT_FINDINGS if report.errors else EXIT_DONE)


def _through(command: str, sender: Callable[[int, int], Sender]) -> SendReport:
    process = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process.stdin as out, process.stdout as back:
        report = sender(out.fileno(), back.fileno()).run()
    if process.wait():
        raise DedupdError(f"{command}: exited with status {process.returncode}")
    return report


def _show(report: SendReport, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2), err=True)
        return
    click.echo(
        f"state {report.point}: {counted(report.files, 'file')}, {report.same} of them unchanged;"
        f" {format_size(report.wire_bytes)} sent, {counted(report.chunks, 'chunk')},"
        f" {report.known} known",
        err=True,
    )
    show_messages(len(report.messages), report.messages)
