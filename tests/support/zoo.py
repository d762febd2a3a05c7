"""A tree of names and files that break programs, each kind in a directory of its own.

:data:`ANIMALS` are made once; :func:`living` keeps some of them moving while the block runs.
"""

import ctypes
import errno
import fcntl
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dedupd_core.system.files import opened
from tests.support import odd_files
from tests.support.lab import RAW_SOCKETS, noise, prose
from tests.support.mounts import ALICE, BOB
from tests.support.odd_files import directory_made, write


class Scale(NamedTuple):
    """How far the kinds go that only time limits."""

    links: int
    sparse_bytes: int


SMALL = Scale(200, 1 << 33)
FULL = Scale(65_000, 4 << 40)
"""As many links as ext4 takes, and files that take minutes to be walked through."""

DEEPEST = b"/".join([b"%03d" % level + b"d" * 247 for level in range(270)])
"""A path of 68 KB: more than 16 bits can count."""

DEEP = b"/".join([b"%02d" % level + b"d" * 240 for level in range(22)])
"""A path of 5 KB."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_GET_FLAGS, _SET_FLAGS = 0x8008_6601, 0x4008_6602
IMMUTABLE, APPEND_ONLY = 0x10, 0x20
_RENAME_EXCHANGE = 2
YEAR_S = 31_557_600


def set_flag(path: bytes, flag: int) -> None:
    """``chattr``: this flag alone, or none of the two."""
    with opened(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
        (flags,) = struct.unpack("L", fcntl.ioctl(fd, _GET_FLAGS, bytes(8)))
        flags = flags & ~(IMMUTABLE | APPEND_ONLY) | flag
        fcntl.ioctl(fd, _SET_FLAGS, struct.pack("L", flags))


def deep(root: bytes, scale: Scale) -> None:
    """Files and special files below a path longer than ``PATH_MAX``."""
    with opened(os.open(root, os.O_RDONLY)) as fd, opened(directory_made(fd, DEEP)) as below:
        contents = {b"large": noise(300_000), b"small": prose(30_000), b"empty": b""}
        for name, content in contents.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(name, flags, 0o644, dir_fd=below), "wb") as file:
                file.write(content)
        if scale == FULL:
            with opened(directory_made(fd, DEEPEST)) as deepest:
                os.close(os.open(b"f", os.O_WRONLY | os.O_CREAT, dir_fd=deepest))
        os.mkfifo(b"fifo", dir_fd=below)
        os.symlink(b"large", b"link", dir_fd=below)
        os.link(b"small", b"small too", src_dir_fd=below, dst_dir_fd=below)


def names(root: bytes, scale: Scale) -> None:
    """Every byte that a name may have, alone and 255 times."""
    odd_files.names(root, random.Random(1))
    content = prose(20_000, 2)
    odd = [b"\x1b[31mred\x1b[0m", b"x (deleted)", b"#1", b"--help", b"-", b"%s%n", b"\x7f", b"~"]
    odd += [bytes([one]) * 255 for one in (1, 10, 27, 32, 92, 128, 255)]
    odd += [bytes([one]) for one in range(1, 256) if one not in b"/."]
    for name in odd:
        with suppress(FileExistsError):
            write(os.path.join(root, name), content)


def of_a_volume(root: bytes, scale: Scale) -> None:
    """Directories and files that are named like those of a volume."""
    for name in (b".dedupd/data/bob/.bash_profile", b"data/data/f", b".dedupd/data/.dedupd/data/f"):
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write(path, prose(50_000, 3))
    for name in (b".dedupd/volume.json", b".dedupd/lock", b".dedupd-undelete-0"):
        write(os.path.join(root, name), b"{}")


def links(root: bytes, scale: Scale) -> None:
    """A file with as many names as the file system takes, and symbolic links of all kinds."""
    odd_files.links(root, random.Random(2))
    first = os.path.join(root, b"first")
    write(first, prose(60_000, 4))
    os.mkdir(os.path.join(root, b"many"))
    for number in range(1, scale.links):
        try:
            os.link(first, os.path.join(root, b"many/%d" % number))
        except OSError as error:
            assert error.errno == errno.EMLINK
            break


def times(root: bytes, scale: Scale) -> None:
    """Times before and after what anything takes."""
    for number, seconds in enumerate(
        (-(2**31), -1, 0, 2**31, 2**32, 2**34 - 1, 530 * YEAR_S, 2**38, 2**50, -(2**40))
    ):
        path = os.path.join(root, b"%d" % number)
        write(path, prose(40_000, number))
        with suppress(OverflowError, OSError):
            os.utime(path, (seconds, seconds))


def sparse(root: bytes, scale: Scale) -> None:
    """Files of which most is holes, up to 4 TiB."""
    size = scale.sparse_bytes
    for name, length, places in (
        (b"large", size, (0, 1 << 30, size // 4 * 3, size - 100_000)),
        (b"hole", size // 4, ()),
    ):
        with open(os.path.join(root, name), "xb") as file:
            for at in places:
                file.seek(at)
                file.write(prose(100_000, at % 7))
            file.truncate(length)


def attributes(root: bytes, scale: Scale) -> None:
    """Files whose attributes leave room for none."""
    for number, size in enumerate((1, 200, 3000)):
        path = os.path.join(root, b"%d" % size)
        write(path, prose(40_000, number))
        for count in range(10_000):
            try:
                os.setxattr(path, f"user.\n\x1b{count:05}", b"v" * size)
            except OSError as error:
                assert error.errno in (errno.ENOSPC, errno.E2BIG)
                break
    empty = os.path.join(root, b"empty")
    write(empty, prose(40_000))
    os.setxattr(empty, b"user.\xff\xfe", b"")


def protected(root: bytes, scale: Scale) -> None:
    """Immutable and append-only files and directories: plain, and later stubs."""
    for name in (b"immutable", b"append-only"):
        write(os.path.join(root, name), prose(40_000))
        os.mkdir(os.path.join(root, name + b"-directory"))
        write(os.path.join(root, name + b"-directory", b"f"), prose(40_000))


def protect(root: bytes, *, is_on: bool) -> None:
    """Set their flags, or take them away."""
    for name, flag in ((b"immutable", IMMUTABLE), (b"append-only", APPEND_ONLY)):
        for path in (name, name + b"-directory"):
            set_flag(os.path.join(root, b"protected", path), flag if is_on else 0)


def special(root: bytes, scale: Scale) -> None:
    """What is no file, and is never to be opened."""
    odd_files.special(root, random.Random(3))


def closed(root: bytes, scale: Scale) -> None:
    """Files and directories that nobody may do anything with, of users."""
    for mode in (0o000, 0o100, 0o200, 0o400):
        directory = os.path.join(root, b"%04o" % mode)
        os.makedirs(os.path.join(directory, b"below"))
        for name in (b"f", b"below/f"):
            path = os.path.join(directory, name)
            write(path, prose(40_000, mode))
            os.chown(path, ALICE, BOB)
            os.chmod(path, mode)
        os.chmod(directory, mode)


def privileged(root: bytes, scale: Scale) -> None:
    """Programs with set-user-id, set-group-id and capabilities."""
    for number, mode in enumerate((0o4755, 0o2755, 0o6711, 0o1777, 0o2644)):
        path = os.path.join(root, b"%04o" % mode)
        write(path, prose(40_000, number))
        os.chown(path, ALICE, BOB)
        os.chmod(path, mode)
    path = os.path.join(root, b"capable")
    write(path, prose(40_000))
    os.setxattr(path, "security.capability", RAW_SOCKETS)


def empty(root: bytes, scale: Scale) -> None:
    """Nothing, of every kind."""
    write(os.path.join(root, b"file"), b"")
    write(os.path.join(root, b"zeros"), bytes(100_000))
    os.mkdir(os.path.join(root, b"directory"))
    os.makedirs(os.path.join(root, b"nothing", *[b"d"] * 50))


def swapped(root: bytes, scale: Scale) -> None:
    """A directory and a link that lead elsewhere, which :func:`living` exchanges."""
    os.mkdir(os.path.join(root, b"directory"))
    write(os.path.join(root, b"directory/f"), prose(50_000, 5))
    os.symlink(b"/etc", os.path.join(root, b"link"))
    write(os.path.join(root, b"file"), prose(50_000, 6))
    os.symlink(b"/dev/zero", os.path.join(root, b"file-link"))


def written(root: bytes, scale: Scale) -> None:
    """Files that :func:`living` writes to, cuts, and removes while they are open."""
    for name in (b"grows", b"rewritten", b"open"):
        write(os.path.join(root, name), prose(200_000, 7))


ANIMALS: dict[str, Callable[[bytes, Scale], None]] = {
    one.__name__: one
    for one in (
        *(deep, names, of_a_volume, links, times, sparse, attributes, protected, special),
        *(closed, privileged, empty, swapped, written),
    )
}


def made(root: Path, scale: Scale = SMALL) -> None:
    """All of them, below ``root``."""
    for name, make in ANIMALS.items():
        directory = os.path.join(os.fsencode(root), os.fsencode(name))
        os.mkdir(directory)
        make(directory, scale)


def used(root: Path) -> None:
    """Use what jobs have made stubs of: it is written to, cut, dated and removed."""
    top = os.fsencode(root)
    with (
        opened(os.open(os.path.join(top, b"deep"), os.O_RDONLY)) as deep_fd,
        opened(directory_made(deep_fd, DEEP)) as below,
    ):
        with opened(os.open(b"large", os.O_RDWR, dir_fd=below)) as fd:
            os.pwrite(fd, b"new", 5000)
        os.unlink(b"small", dir_fd=below)
        os.unlink(b"small too", dir_fd=below)
    path = os.path.join(top, b"of_a_volume/.dedupd/data/bob/.bash_profile")
    os.truncate(path, 100)
    os.unlink(path)
    for number, name in enumerate(sorted(os.listdir(os.path.join(top, b"names")))):
        path = os.path.join(top, b"names", name)
        if number % 3 or not os.path.isfile(path):
            continue
        os.unlink(path)
    for number, seconds in enumerate((2**33, 530 * YEAR_S, -(2**31))):
        path = os.path.join(top, b"privileged/%04o" % (0o4755, 0o2755, 0o6711)[number])
        os.utime(path, (seconds, seconds))
        with open(path, "r+b") as file:
            file.write(b"new")
        os.utime(path, (seconds, seconds))
        if number:
            os.unlink(path)


def exchange(one: bytes, other: bytes) -> None:
    _LIBC.renameat2(-100, one, -100, other, _RENAME_EXCHANGE)


@contextmanager
def living(root: Path) -> Iterator[None]:
    """Files are written to, exchanged and removed while the block runs."""
    top, over = os.fsencode(root), threading.Event()

    def at(name: bytes) -> bytes:
        return os.path.join(top, name)

    def swap() -> None:
        exchange(at(b"swapped/directory"), at(b"swapped/link"))
        exchange(at(b"swapped/file"), at(b"swapped/file-link"))

    def rewrite() -> None:
        with open(at(b"written/grows"), "ab") as file:
            file.write(b"more")
        with open(at(b"written/rewritten"), "r+b") as file:
            file.write(b"new")
            file.truncate(100_000 + file.tell())

    def make_and_remove() -> None:
        path = at(b"written/passing")
        with suppress(FileExistsError):
            write(path, prose(5_000))
        os.unlink(path)

    def repeat(action: Callable[[], None]) -> None:
        while not over.wait(0.005):
            with suppress(OSError):  # a job may have the file right now
                action()

    with ExitStack() as stack:
        if os.path.exists(at(b"written/open")):
            stack.enter_context(opened(os.open(at(b"written/open"), os.O_RDWR)))
            os.unlink(at(b"written/open"))
        threads = [
            threading.Thread(target=repeat, args=(one,)) for one in (swap, rewrite, make_and_remove)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
