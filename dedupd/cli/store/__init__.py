"""``dedupd store``: stores that several volumes share.

Each command is a module in this package.
"""

import click

from dedupd.cli.lazy_command import LazyGroup

COMMANDS = ("create", "forget", "move", "rejoin", "status")


@click.group("store", cls=LazyGroup, package=__name__, names=COMMANDS)
def command() -> None:
    """Create and manage stores that several volumes share."""
