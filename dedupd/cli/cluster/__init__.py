"""``dedupd cluster``: stores in a Ceph cluster.

Each command is a module in this package.
"""

import click

from dedupd.cli.lazy_command import LazyGroup

COMMANDS = ("audit", "create", "metrics", "recover", "status")


@click.group("cluster", cls=LazyGroup, package=__name__, names=COMMANDS)
def command() -> None:
    """Create and manage stores in a Ceph cluster.

    STORE is rados:POOL/NAME[?conf=FILE&user=NAME&keyring=FILE&timeout=30s].
    """
