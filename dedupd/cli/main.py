"""The program ``dedupd``: one command per module."""

import io
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from dedupd.cli.lazy_command import LazyGroup
from dedupd_core import __version__
from dedupd_core.system.inherited import open_standard_streams
from dedupd_core.system.processes import register

GROUPS = {
    "Begin": {
        "setup": "Make a volume in one conversation, from doctor to savings.",
        "doctor": "Check this machine, and a volume or directory.",
        "analyze": "Report what deduplication would save on any directory.",
        "demo": "Try everything on real files, in a temporary volume.",
        "enable": "Make a directory a volume: a tree whose files are deduplicated.",
        "store": "Make stores that several volumes share, and look after them.",
        "cluster": "Make stores in a Ceph cluster, and look after them.",
        "mount": "Show a volume's files.",
        "serve": "Run the service: mounts, schedule, control socket.",
    },
    "See": {
        "status": "Show what a volume saves, or every mounted volume.",
        "jobs": "Show jobs that run, wait, and have run.",
        "du": "Show what folders take, share, and would free.",
        "file": "Show what the store knows about files.",
    },
    "Work": {
        "run": "Run a job, like optimize, reconcile, gc, compact or scrub.",
        "cancel": "End a job of the service.",
        "pause": "Hold the jobs of a volume.",
        "resume": "Let the jobs of a volume go on.",
        "policy": "Show and set what is optimized, and how.",
        "expand": "Make files plain again.",
        "notify": "Try how somebody is told of problems.",
    },
    "Copies": {
        "send": "Write a volume, or what is new in it, as a stream.",
        "receive": "Make a volume what a stream says.",
        "restore": "Take files out of a copy of a volume, without mounting it.",
        "import": "Copy a tree into a volume, deduplicated as it comes.",
        "adopt": "Take over a copy of a volume.",
        "drill": "Damage a copy of a store, and show what would be lost.",
        "deleted": "Show what was deleted or overwritten lately.",
        "undelete": "Have files back that were deleted or overwritten.",
    },
    "Leave": {
        "umount": "Hide a volume's files again.",
        "disable": "Make a volume a plain directory again.",
    },
}
"""The commands by what they are for, as the help shows them. Each is the module of its name in this
package. Help is here, so that showing it imports none."""

COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class _Commands(LazyGroup):
    """Has a line of help for each command, without importing any."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_standard_streams()
        register()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        is_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not is_json:
                raise
            from dedupd.cli.common import fail

            fail(error.format_message(), error.exit_code, True, "UsageError")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=summary)
            for name, summary in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*group.items()])


@click.group(
    cls=_Commands,
    package="dedupd.cli",
    names=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="dedupd")
def main() -> None:
    """Deduplicate a primary volume after the data has been written.

    \b
    Exit status: 0 done, 1 finished with findings or stopped, 2 wrong usage or
    configuration, 3 the volume is busy or the service unreachable, 4 damaged
    beyond repair.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files need not be UTF-8, and no message may fail because of that.
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main(prog_name="dedupd")
