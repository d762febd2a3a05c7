"""The files of the sketches of containers. They are derived: one that is lost is made again."""

import os
import re
from contextlib import suppress

from dedupd_core.errors import DamagedTable
from dedupd_core.format.derived.sketch import decode_sketches, encode_sketches
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.system.files import opened, read_readable

_NAME = re.compile(r"([0-9]{8,10})\.sketch(\.new)?")


def _name(number: int) -> bytes:
    return b"%08d.sketch" % number


def load_sketches(directory: ContainerDirectory, number: int) -> bytes:
    """The sketches of a container, by ordinal; fewer than it has records, or none, where the others
    have not been made."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with opened(os.open(_name(number), flags, dir_fd=directory.fd)) as fd:
            data = read_readable(fd, os.fstat(fd).st_size, 0)
        return decode_sketches(data, number, directory.volume_id)
    except (OSError, DamagedTable):
        return b""


def save_sketches(directory: ContainerDirectory, number: int, sketches: bytes) -> None:
    """Keep the sketches of a container. Raises NoSpace."""
    data = encode_sketches(number, directory.volume_id, sketches)
    directory.room.require(len(data), f"the sketches of {directory.where(number)}", files=1)
    directory.disk.replace_file(directory.fd, _name(number), data)


def sketches_bytes(directory: ContainerDirectory, number: int) -> int:
    """The bytes of the file of the sketches of a container; 0 where there is none."""
    try:
        return os.stat(_name(number), dir_fd=directory.fd, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def remove_sketches(directory: ContainerDirectory, number: int) -> None:
    """Remove the sketches of a container, if there are any."""
    disk = directory.disk
    with suppress(FileNotFoundError):
        disk.unlink(directory.fd, _name(number))


def remove_stray_sketches(directory: ContainerDirectory, numbers: set[int]) -> None:
    """Remove the sketches of containers that are gone, and what an interrupted run has left."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd)
    with opened(fd), os.scandir(fd) as entries:
        found = [(entry.name, _NAME.fullmatch(entry.name)) for entry in entries]
    disk = directory.disk
    for name, match in found:
        if match is not None and (match[2] or int(match[1]) not in numbers):
            with suppress(FileNotFoundError):
                disk.unlink(directory.fd, os.fsencode(name))
