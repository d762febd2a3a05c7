"""Mounts that are gone from the mount table, and that a process still serves.

After ``umount -l`` the kernel keeps a mount until no file of it is open, and the process of the
mount holds the volume that long.
"""

from dataclasses import dataclass

from dedupd_core.errors import Busy, ServiceUnreachable
from dedupd_core.system import mount_table
from dedupd_core.system.path_users import users_of_device
from dedupd_core.volume.volume import Volume

USERS_SHOWN = 5
"""Users in a message: enough to find out what goes on."""


@dataclass(frozen=True, slots=True)
class DetachedMount:
    """A mount that is served, and that the mount table does not have. ``pid`` serves it."""

    root: str
    pid: int
    users: tuple[str, ...]
    """Processes and mounts that use it; none if the kernel still writes data at an unmount."""

    @property
    def message(self) -> str:
        if not self.users:
            return (
                f"{self.root}: is unmounted, but process {self.pid} still serves the mount: the"
                " kernel writes data to it, or an unknown process has files open. Wait until"
                f" process {self.pid} has ended, then run `dedupd mount {self.root}`"
            )
        users = ", ".join(self.users[:USERS_SHOWN])
        more = f" and {len(self.users) - USERS_SHOWN} more" if self.users[USERS_SHOWN:] else ""
        return (
            f"{self.root}: the mount was detached while in use (`umount -l`), and process"
            f" {self.pid} still serves it for {users}{more}; close these files, or stop these"
            f" processes, then run `dedupd mount {self.root}`"
        )


def detached_mount(volume: Volume) -> DetachedMount | None:
    """Find the detached mount of a volume. None if its process does not answer."""
    if mount_table.points_of(volume.parameters.uuid):
        return None
    try:
        client = volume.mount_client()
        if client is None:
            return None
        with client:
            status = client.call("status")
    except (Busy, ServiceUnreachable):
        return None
    device = status.get("mount_device")
    users = tuple(users_of_device(device)) if device else ()
    return DetachedMount(volume.root, status["pid"], users)
