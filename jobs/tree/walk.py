"""Walking the tree of a volume: every file once."""

import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dedupd import native
from dedupd.stub.transition import FileIdentity
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath, show_path
from dedupd.volume.volume import Volume
from jobs.frame.run import checked

_Identity = tuple[int, int, int, int]
_NativeFile = tuple[bytes, _Identity, int, int, bytes | None]
_Entries = tuple[list[bytes], list[_NativeFile]]
_File = tuple[bytes, _Identity, int, bytes | None]
"""What :class:`Found` has, in its order."""
Check = Callable[[], None]
"""A safe place of the job: waits where it is to give way, raises where it is to stop."""


class Found(NamedTuple):
    """A regular file of the tree. ``path`` is relative to the tree.

    ``attribute`` is the stub attribute as it was found, None for a plain file, and empty where it
    could not be read.
    """

    path: bytes
    identity: FileIdentity
    allocated_bytes: int
    attribute: bytes | None

    @property
    def is_stub(self) -> bool:
        return self.attribute is not None


def walk(
    volume: Volume,
    below: bytes = b"",
    errors: list[str] | None = None,
    check: Check | None = None,
) -> Iterator[Found]:
    """Every regular file below a path of the tree, hard links once, other file systems never.

    Follows no link. What vanishes meanwhile is passed over; what cannot be read is added to
    ``errors``. ``check`` is called every few milliseconds.
    """
    files = _files(volume, below, errors, check)
    for path, identity, allocated, attribute in checked(files, check):
        yield Found(path, FileIdentity._make(identity), allocated, attribute)


def _files(
    volume: Volume, below: bytes, errors: list[str] | None, check: Check | None
) -> Iterator[_File]:
    """As :func:`walk`, in plain tuples."""
    device = os.fstat(volume.data_fd).st_dev
    seen: set[int] = set()
    pending = [below]
    while pending:
        if check is not None:
            check()
        directory = pending.pop()
        try:
            fd = open_beneath(volume.data_fd, directory, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        except OSError as error:
            if errors is not None:
                errors.append(f"{os.fsdecode(directory)}: {error.strerror}")
            continue
        with opened(fd):
            status = os.fstat(fd)
            if status.st_dev != device:
                continue
            if stat.S_ISDIR(status.st_mode):
                try:
                    entries = native.tree.scan_directory(fd, volume.space.name, check)
                except OSError as error:
                    if errors is not None:
                        errors.append(f"{show_path(directory) or '.'}: {error.strerror}")
                    continue
                yield from _in_directory(directory, entries, seen, pending)
            elif stat.S_ISREG(status.st_mode):
                allocated = status.st_blocks * 512
                value = native.system.fgetxattr(fd, volume.space.name)
                yield directory, FileIdentity.of(status), allocated, value


def _in_directory(
    directory: bytes,
    entries: _Entries,
    seen: set[int],
    pending: list[bytes],
) -> Iterator[_File]:
    prefix = directory + b"/" if directory else b""
    directories, files = entries
    for name, identity, links, allocated, value in files:
        if links > 1:
            if identity[0] in seen:
                continue
            seen.add(identity[0])
        yield prefix + name, identity, allocated, value
    pending.extend(prefix + name for name in sorted(directories, reverse=True))


def _is_readable(volume: Volume, path: bytes) -> bool:
    """Whether a file can be opened, and so its attribute be read."""
    try:
        os.close(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        return False
    return True
