"""Groups of commands that import only the command that is used."""

import importlib
from collections.abc import Iterable
from typing import Any

import click


class LazyGroup(click.Group):
    """Each of its ``names`` is a module of ``package``, whose ``command`` it is."""

    def __init__(self, package: str, names: Iterable[str], **options: Any) -> None:
        super().__init__(**options)
        self._package = package
        self._names = tuple(names)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._names:
            return None
        module = importlib.import_module(f"{self._package}.{cmd_name}")
        command: click.Command = module.command
        return command
