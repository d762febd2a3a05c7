"""The program ``dedupd``: one command per module."""

import importlib

import click

from dedupd import __version__

COMMANDS = {
    "enable": "dedupd.cli.enable",
    "disable": "dedupd.cli.disable",
    "mount": "dedupd.cli.mount",
    "umount": "dedupd.cli.umount",
    "run": "dedupd.cli.run",
    "jobs": "dedupd.cli.jobs",
    "status": "dedupd.cli.status",
    "policy": "dedupd.cli.policy",
    "file": "dedupd.cli.file",
    "expand": "dedupd.cli.expand",
    "analyze": "dedupd.cli.analyze",
    "demo": "dedupd.cli.demo",
}


class _Commands(click.Group):
    """Imports a command's module only when it is used: start-up stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dedupd")
def main() -> None:
    """Deduplicate a primary volume after the data has been written.

    \b
    Exit status: 0 done, 1 finished with findings, 2 wrong usage or configuration,
    3 the volume is busy or the service unreachable, 4 damaged beyond repair.
    """


if __name__ == "__main__":
    main()
