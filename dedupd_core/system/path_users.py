"""Processes and mounts that use files of a directory or of a file system.

Users of a directory would continue to use the files below a mount over it.

A process that has a directory in it open, or another mount of it, sees the files below the mount:
stubs as zeros. The links in ``/proc`` show such processes; those of other users may not be visible.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from dedupd_core.system import mount_table

_LINKS = ("cwd", "root", "exe")
_REMOVED = " (deleted)"
_MAPPED_FIELDS = 5
"""The fields of a line of ``maps`` before the path. In the path, only newlines are escaped."""


def occupants(directory: str, ignored: str = "") -> Iterator[str]:
    """Yield messages about uses of files below ``directory`` (absolute, no links).

    The directory itself may be open, or mounted elsewhere: ``enable`` moves all entries out of it.
    The path ``ignored`` in it may be open, too.
    """
    place = mount_table.place_of(directory)
    namespaces: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            os.readlink(f"/proc/{pid}/exe")
        except FileNotFoundError:
            continue  # a kernel thread, or a process that has exited
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
                yield from _in_use(pid, directory, ignored)


def _in_use(pid: str, directory: str, ignored: str) -> Iterator[str]:
    below = directory + "/"
    for path in (*_opened(pid), *_mapped(pid, below)):
        if path.startswith(below) and path != ignored and not path.endswith(_REMOVED):
            yield f"{path} is in use by process {pid} ({_name(pid)})"
            return


def users_of_device(device: str) -> Iterator[str]:
    """Yield the processes, by number and name, that use a file system, and other mounts of it.

    ``device``: ``major:minor``. The mounts are those in other mount namespaces. This also finds
    users of an unmounted file system. It sends no request to the file system, which may not answer.
    """
    namespaces = {os.readlink("/proc/self/ns/mnt")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if int(pid) != os.getpid() and _uses_device(pid, device):
                yield f"process {pid} ({_name(pid)})"
        with suppress(OSError):
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace not in namespaces:
                namespaces.add(namespace)
                for row in mount_table.all_mounts(pid):
                    if row.device == device:
                        yield f"a mount at {row.point} that process {pid} ({_name(pid)}) sees"


def _uses_device(pid: str, device: str) -> bool:
    links = [f"/proc/{pid}/{link}" for link in _LINKS]
    with suppress(OSError):
        links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    if any(_device_of(link) == device for link in links):
        return True
    major, minor = map(int, device.split(":"))
    mapped = f" {major:02x}:{minor:02x} ".encode()
    with open(f"/proc/{pid}/maps", "rb") as file:
        return mapped in file.read()


_AT_FDCWD, _AT_STATX_DONT_SYNC = -100, 0x4000
_STATX_BYTES = 256
_STATX_DEVICE = struct.Struct("=2I")
_STATX_DEVICE_AT = 136


def _device_of(path: str) -> str | None:
    """Return the device of a file; None if there is no such file.

    Unlike ``os.stat``, this sends no request to its file system.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, 0, found):
        return None
    major, minor = _STATX_DEVICE.unpack_from(found, _STATX_DEVICE_AT)
    return f"{major}:{minor}"


def _name(pid: str) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _opened(pid: str) -> Iterator[str]:
    for link in _LINKS:
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/{link}")
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def _mapped(pid: str, below: str) -> Iterator[str]:
    """Yield the paths ``below`` a directory that a process has mapped.

    One file lists all of them. Following the links of ``map_files``, hundreds per process, took ten
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
