"""Disabling a volume without the command, which also expands its stubs."""

from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.base import held_to_disable
from dedupd_core.volume.enabling.enable import disable_held


def disable(path: str, *, disk: Disk) -> None:
    """Make a volume without stubs a plain directory."""
    with held_to_disable(path) as held:
        disable_held(held, disk=disk)
