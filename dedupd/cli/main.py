"""The program ``dedupd``: one command per module."""

import io
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from dedupd import __version__
from dedupd.cli.lazy_command import LazyGroup

COMMANDS = {
    "setup": "Make a volume in one conversation, from doctor to savings.",
    "enable": "Make a directory a volume: a tree whose files are deduplicated.",
    "adopt": "Take over a copy of a volume.",
    "store": "Make stores that several volumes share, and look after them.",
    "cluster": "Make stores in a Ceph cluster, and look after them.",
    "disable": "Make a volume a plain directory again.",
    "mount": "Show a volume's files.",
    "umount": "Hide a volume's files again.",
    "serve": "Run the service: mounts, schedule, control socket.",
    "run": "Run a job, like optimize, reconcile, gc, compact or scrub.",
    "jobs": "Show jobs that run, wait, and have run.",
    "cancel": "End a job of the service.",
    "pause": "Hold the jobs of a volume.",
    "resume": "Let the jobs of a volume go on.",
    "notify": "Try how somebody is told of problems.",
    "status": "Show what a volume saves, or every mounted volume.",
    "doctor": "Check this machine, and a volume or directory.",
    "policy": "Show and set what is optimized, and how.",
    "du": "Show what folders take, share, and would free.",
    "file": "Show what the store knows about files.",
    "expand": "Make files plain again.",
    "send": "Write a volume, or what is new in it, as a stream.",
    "receive": "Make a volume what a stream says.",
    "drill": "Damage a copy of a store, and show what would be lost.",
    "import": "Copy a tree into a volume, deduplicated as it comes.",
    "deleted": "Show what was deleted or overwritten lately.",
    "undelete": "Have files back that were deleted or overwritten.",
    "restore": "Take files out of a copy of a volume, without mounting it.",
    "analyze": "Report what deduplication would save on any directory.",
    "demo": "Try everything on real files, in a temporary volume.",
}
"""Each is the module of its name in this package. Help is here, so that showing it imports none."""


GROUPS = {
    "Begin": ("setup", "doctor", "analyze", "demo", "enable", "store", "cluster", "mount", "serve"),
    "See": ("status", "jobs", "du", "file"),
    "Work": ("run", "cancel", "pause", "resume", "policy", "expand", "notify"),
    "Copies": (
        *("send", "receive", "restore", "import", "adopt", "drill"),
        *("deleted", "undelete"),
    ),
    "Leave": ("umount", "disable"),
}
"""The commands by what they are for, as the help shows them. Those of none come last."""


class _Commands(LazyGroup):
    """Has a line of help for each command, without importing any."""

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
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in COMMANDS if name not in grouped)
        for title, names in (*GROUPS.items(), ("Others", others)):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, COMMANDS[name]) for name in names])


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
