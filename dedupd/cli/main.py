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
    "Set up": {
        "setup": "Set up a volume interactively: check, estimate, enable, optimize.",
        "doctor": "Check this machine, and a volume or directory.",
        "analyze": "Estimate the savings for a directory.",
        "demo": "Demonstrate deduplication on copies of real files.",
        "enable": "Turn a directory into a volume.",
        "store": "Create and manage shared stores.",
        "cluster": "Create and manage stores in a Ceph cluster.",
        "mount": "Mount a volume.",
        "serve": "Run the service: mounts, scheduled jobs, control socket.",
    },
    "Inspect": {
        "status": "Show the state and savings of volumes.",
        "jobs": "List running, queued and finished jobs.",
        "du": "Show the disk usage of folders and what deleting them would free.",
        "file": "Show how files are stored.",
    },
    "Operate": {
        "run": "Run a job, for example optimize, gc, compact or scrub.",
        "cancel": "Stop running or queued jobs.",
        "pause": "Pause the jobs of a volume.",
        "resume": "Resume the jobs of a volume.",
        "policy": "Show or change the policy: which files are optimized, and when.",
        "expand": "Expand stubs into plain files.",
        "notify": "Send a test notification.",
    },
    "Back up and move": {
        "send": "Write a volume, or the changes to it, as a stream.",
        "receive": "Update a replica from a stream.",
        "restore": "Restore files from an unmounted volume or a copy of one.",
        "import": "Copy a directory into a volume and deduplicate it on the fly.",
        "adopt": "Verify a copied volume and put it into use.",
        "drill": "Simulate damage to a store, and list the lost files.",
        "deleted": "List recently deleted or overwritten files.",
        "undelete": "Restore deleted or overwritten files.",
    },
    "Remove": {
        "umount": "Unmount a volume.",
        "disable": "Turn a volume back into a plain directory.",
    },
}
"""The commands by purpose, as in the help. Each command is a module of this package. The help takes
the summaries from this table, so it imports no command."""

COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class _Commands(LazyGroup):
    """A group that prints the help of all commands without importing them."""

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
    """Deduplicate the files of a file server after they have been written.

    \b
    Exit status: 0 done, 1 finished with findings, or stopped early, 2 wrong
    usage or configuration, 3 the volume is busy or the service unreachable,
    4 damaged beyond repair.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names of files need not be UTF-8, and must not make a message fail.
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main(prog_name="dedupd")
