"""The file systems with a guard, and the mounts on them that are exempt."""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import QUESTION_TIMEOUT_S, ControlClient, socket_path

MountProcess = tuple[str, int]
"""The uuid of a mounted volume, and a number that differs for each mount process of the volume."""


@dataclass(slots=True)
class FileSystem:
    """A file system below mounted volumes. The descriptors are open until :meth:`close`."""

    point: str
    """A mount point, for messages."""
    fds: list[int] = field(default_factory=list)
    """Directories in the mounts that mount processes and jobs use."""
    processes: set[MountProcess] = field(default_factory=set)
    obstacle: str = ""
    """The reason why this file system cannot have a guard."""

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def mount_processes() -> frozenset[MountProcess]:
    """Return the mount processes of all volumes."""
    found = set()
    for volume in {mount.volume for mount in mount_table.volumes()}:
        with suppress(OSError):
            found.add((volume, os.stat(socket_path(volume)).st_ctime_ns))
    return frozenset(found)


def below(
    processes: Collection[MountProcess], served: Collection[str]
) -> tuple[dict[str, FileSystem], bool]:
    """Return the file systems of the ``served`` volumes by device, with all ``processes`` on them;
    and whether all processes have answered."""
    found: dict[str, FileSystem] = {}
    all_answered = True
    for process in processes:
        try:
            _add(process, found)
        except (ServiceUnreachable, OSError):
            all_answered = False
    for device, one in [*found.items()]:
        if not any(volume in served for volume, _ in one.processes):
            found.pop(device).close()
    return found, all_answered


def _add(process: MountProcess, found: dict[str, FileSystem]) -> None:
    volume, _ = process
    with ControlClient(socket_path(volume), QUESTION_TIMEOUT_S) as client:
        reply, fds = client.call_for_fds("own_mounts")
        is_old = not fds
        if is_old:
            reply, fds = client.call_for_fds("volume")
    if not fds:
        raise ServiceUnreachable(f"{socket_path(volume)}: {reply.get('error', 'no descriptor')}")
    for fd in fds:
        os.set_inheritable(fd, False)
    row = _mount_of(fds[0])
    if row is None:
        for fd in fds:
            os.close(fd)
        return
    one = found.setdefault(row.device, FileSystem(row.point))
    one.fds += fds
    one.processes.add(process)
    if is_old:
        one.obstacle = (
            f"the mount process of volume {volume} is from an older version; unmount the volume"
            " and mount it again"
        )


def _mount_of(fd: int) -> mount_table.Row | None:
    """Return the mount that contains a descriptor; None if this process does not see it."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        fields = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
    rows = mount_table.all_mounts()
    return next((row for row in rows if row.mount_id == fields.get("mnt_id", "")), None)
