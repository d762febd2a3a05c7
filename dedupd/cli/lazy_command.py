"""Groups of commands that import only the command that is used."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

import click

SPELLINGS = {
    "optimise": "optimize",
    "unoptimise": "unoptimize",
    "analyse": "analyze",
    "unmount": "umount",
}
"""Other spellings of commands. Help and documents use only the second spelling."""


class LazyGroup(click.Group):
    """A group of commands: ``command`` of each module in ``names`` of ``package``."""

    def __init__(self, package: str, names: Iterable[str], **options: Any) -> None:
        super().__init__(**options)
        self._package = package
        self._names = tuple(names)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = SPELLINGS.get(cmd_name, cmd_name)
        if cmd_name not in self._names:
            return None
        module = importlib.import_module(f"{self._package}.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; an unknown name raises an error that lists similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self._names, n=3) if args else []
            if not near:
                raise
            meant = f"{error.message} Did you mean {', '.join(map(repr, near))}?"
            raise click.UsageError(meant, ctx) from None
