"""Processes and mounts that would go on using the files of a directory below a mount over it.

A process that has a directory in it open, or a mount of it elsewhere, shows the files below the
mount: stubs as zeros. The links of ``/proc`` name them; those of other users may not be visible.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from dedupd.system import mount_table

_LINKS = ("cwd", "root", "exe")
_DIRECTORIES_OF_LINKS = ("fd", "map_files")
_REMOVED = " (deleted)"


def occupants(directory: str) -> Iterator[str]:
    """Messages about uses of files below ``directory`` (absolute, no links).

    The directory itself may be open, or mounted elsewhere: ``enable`` moves all entries out of it.
    """
    place = mount_table.place_of(directory)
    namespaces: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it may have ended, or be another user's
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace not in namespaces:
                namespaces.add(namespace)
                for point in mount_table.parts_shown(place, pid):
                    yield f"a part of it is also mounted at {point}, where process {pid} sees it"
        if int(pid) != os.getpid():
            with suppress(OSError):
                yield from _in_use(pid, directory)


def _in_use(pid: str, directory: str) -> Iterator[str]:
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        name = file.read().strip()
    for link in _links(pid):
        with suppress(OSError):
            path = os.readlink(f"/proc/{pid}/{link}")
            if path.startswith(directory + "/") and not path.endswith(_REMOVED):
                yield f"{path} is in use by process {pid} ({name})"
                return


def _links(pid: str) -> Iterator[str]:
    yield from _LINKS
    for directory in _DIRECTORIES_OF_LINKS:
        with suppress(OSError):
            yield from (f"{directory}/{name}" for name in os.listdir(f"/proc/{pid}/{directory}"))
