"""Processes and mounts that would go on using the files of a directory below a mount over it.

A process that has a directory in it open, or a mount of it elsewhere, shows the files below the
mount: stubs as zeros. The links of ``/proc`` name them; those of other users may not be visible.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from dedupd.system import mount_table

_LINKS = ("cwd", "root", "exe")
_REMOVED = " (deleted)"
_MAPPED_FIELDS = 5
"""Of a line of ``maps``, before the path, which is as it stands but for newlines."""


def occupants(directory: str) -> Iterator[str]:
    """Messages about uses of files below ``directory`` (absolute, no links).

    The directory itself may be open, or mounted elsewhere: ``enable`` moves all entries out of it.
    """
    place = mount_table.place_of(directory)
    namespaces: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            os.readlink(f"/proc/{pid}/exe")
        except FileNotFoundError:
            continue  # a thread of the kernel, or a process that has ended
        except OSError:
            pass  # another user's
        with suppress(OSError):
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace not in namespaces:
                namespaces.add(namespace)
                for point in mount_table.parts_shown(place, pid):
                    yield f"a part of it is also mounted at {point}, where process {pid} sees it"
        if int(pid) != os.getpid():
            with suppress(OSError):
                yield from _in_use(pid, directory)


def _in_use(pid: str, directory: str) -> Iterator[str]:
    below = directory + "/"
    for path in (*_opened(pid), *_mapped(pid, below)):
        if path.startswith(below) and not path.endswith(_REMOVED):
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                name = file.read().strip()
            yield f"{path} is in use by process {pid} ({name})"
            return


def _opened(pid: str) -> Iterator[str]:
    for link in _LINKS:
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/{link}")
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def _mapped(pid: str, below: str) -> Iterator[str]:
    """What a process has mapped that lies ``below``.

    One file names it all. To follow the links of ``map_files``, hundreds of a process, took ten
    times as long.
    """
    shown = os.fsencode(below).replace(b"\n", rb"\012")
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read()
    except OSError:
        return
    for line in text.split(b"\n") if shown in text else ():
        if shown in line:
            *_, path = line.split(maxsplit=_MAPPED_FIELDS)
            if path.startswith(shown):
                yield below + os.fsdecode(path.removeprefix(shown))
