"""Files that break file system tools: names that are no text, deep paths, sparse files, special
files, extended attributes, lengths at the borders of blocks. Each part fills one directory.
"""

import os
import random
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress

from dedupd_core.system.files import opened
from dedupd_core.units import MIB

EPOCH_NS = 1_400_000_000 * 10**9
"""Times of the files lie after this, in 2014, and so are older than any policy's minimum."""

_SYLLABLES = (
    "ka",
    "lo",
    "mi",
    "ne",
    "ru",
    "sta",
    "ve",
    "zo",
    "pla",
    "tri",
    "den",
    "gor",
    "hun",
    "sil",
)


def text(rng: random.Random, size: int) -> bytes:
    """Prose of made-up words, which compresses about as well as prose."""
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(3000)]
    parts: list[str] = []
    length = 0
    while length < size:
        line = " ".join(rng.choices(words, k=12)) + "\n"
        parts.append(line)
        length += len(line)
    return "".join(parts).encode()[:size]


def write(path: bytes, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)


def sizes(root: bytes, rng: random.Random) -> None:
    """Files whose lengths are at the borders of blocks and chunks, and the empty file."""
    content = text(rng, 300_000)
    for size in (
        0,
        1,
        4095,
        4096,
        4097,
        32767,
        32768,
        32769,
        65536,
        131071,
        131072,
        131073,
        262144,
    ):
        write(os.path.join(root, b"%06d" % size), content[:size])
    write(os.path.join(root, b"zeros"), bytes(200_000))
    write(os.path.join(root, b"zeros-then-data"), bytes(150_000) + content[:100_000])
    write(os.path.join(root, b"data-then-zeros"), content[:100_000] + bytes(150_000))


def sparse(root: bytes, rng: random.Random) -> None:
    """Files with holes at the start, inside and at the end, one of a size beyond any memory."""
    layouts = {
        b"only-a-hole": (5 * MIB, []),
        b"hole-at-the-start": (3 * MIB, [2 * MIB]),
        b"hole-at-the-end": (40 * MIB, [0]),
        b"holes-inside": (20 * MIB, [0, 3 * MIB, 7 * MIB + 4096, 19 * MIB]),
        b"large": (64 << 30, [0, 1 << 30, (40 << 30) + 12288, (64 << 30) - 300_000]),
    }
    for name, (size, offsets) in layouts.items():
        with open(os.path.join(root, name), "xb") as file:
            for offset in offsets:
                file.seek(offset)
                file.write(text(rng, 300_000))
            file.truncate(size)


def links(root: bytes, rng: random.Random) -> None:
    """Hard links within and across directories; symbolic links of every sort."""
    os.mkdir(os.path.join(root, b"other"))
    shared = os.path.join(root, b"shared")
    write(shared, text(rng, 200_000))
    for name in (b"shared too", b"other/shared"):
        os.link(shared, os.path.join(root, name))
    small = os.path.join(root, b"other/small")
    write(small, b"small")
    os.link(small, os.path.join(root, b"small"))
    targets = {
        b"to-file": b"shared",
        b"to-directory": b"other",
        b"to-nothing": b"no such \xff\xfe file",
        b"to-itself": b"to-itself",
        b"up": b"../../..",
        b"absolute": b"/etc/hostname",
        b"long": b"a/" * 2000,
    }
    for name, target in targets.items():
        os.symlink(target, os.path.join(root, name))


def names(root: bytes, rng: random.Random) -> None:
    """Names that are legal and that nobody expects; content large enough to be optimized."""
    data = text(rng, 80_000)
    odd = [
        b"name with spaces ",
        b" leading",
        b"new\nline",
        b"tab\tquote'\"`$HOME;&|",
        b"back\\slash",
        b"-rf",
        b"...",
        b"*?[a]",
        b"#comment#",
        b"no\xff\xfetext\x80",
        b"half\xc3",
        bytes(range(1, 32)),
        "κόσμε 文件 🗄".encode(),
        b"e\xcc\x81 decomposed",
        b"\xc3\xa9 composed",
        b"x" * 255,
        b"\xff" * 255,
        "文".encode() * 85,
        b".hidden",
        b"File",
        b"file",
    ]
    for number, name in enumerate(odd):
        write(os.path.join(root, name), data + b"%d" % (number % 3))
        os.makedirs(os.path.join(root, b"d", name))
        write(os.path.join(root, b"d", name, name), data)


def deep(root: bytes, rng: random.Random) -> None:
    """Directories as deep as a path can say, with a file on every tenth level."""
    path = root
    data = text(rng, 60_000)
    for level in range(90):
        path = os.path.join(path, b"level-%02d-of-a-deep-tree" % level)
        os.mkdir(path)
        if level % 10 == 9:
            write(os.path.join(path, b"file"), data + b"%d" % level)
    wide = os.path.join(root, b"wide")
    os.mkdir(wide)
    for number in range(150):
        write(os.path.join(wide, b"%03d" % number), rng.randbytes(number))


def metadata(root: bytes, rng: random.Random) -> None:
    """Every mode bit, owners, times before and after everything, attributes, access lists."""
    data = text(rng, 70_000)
    for mode in (0o000, 0o400, 0o200, 0o111, 0o644, 0o777, 0o4755, 0o2755, 0o6711, 0o1644):
        path = os.path.join(root, b"mode-%04o" % mode)
        write(path, data + b"%o" % mode)
        os.chmod(path, mode)
    for mode in (0o700, 0o1777, 0o2755, 0o000):
        path = os.path.join(root, b"directory-%04o" % mode)
        os.mkdir(path)
        write(os.path.join(path, b"inside"), data)
        os.chmod(path, mode)
    for name, value in (
        (b"user.short", b"1"),
        (b"user.long", rng.randbytes(1500)),
        (b"user.e", b""),
    ):
        path = os.path.join(root, b"attribute-" + name)
        write(path, data + name)
        os.setxattr(path, name, value)
    os.mkdir(os.path.join(root, b"attribute-directory"))
    os.setxattr(os.path.join(root, b"attribute-directory"), b"user.d", b"\0\xff")
    listed = os.path.join(root, b"access-list")
    write(listed, data + b"acl")
    inherited = os.path.join(root, b"access-list-directory")
    os.mkdir(inherited)
    with suppress(OSError):  # a file system without access control lists
        os.setxattr(listed, b"system.posix_acl_access", access_list(33, 0o6))
        os.setxattr(inherited, b"system.posix_acl_default", access_list(34, 0o5))
    if os.geteuid() == 0:
        _metadata_of_root(root, data)


def access_list(user: int, permissions: int) -> bytes:
    """A POSIX access control list that gives one user more, as the kernel keeps it."""
    owner, named, group, mask, others = 0x01, 0x02, 0x04, 0x10, 0x20
    nobody = 0xFFFFFFFF
    entries = [
        (owner, 6, nobody),
        (named, permissions, user),
        (group, 4, nobody),
        (mask, 7, nobody),
        (others, 0, nobody),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def _metadata_of_root(root: bytes, data: bytes) -> None:
    for owner, group in ((1, 1), (65534, 65534), (0, 50), (123456789, 2**31)):
        path = os.path.join(root, b"owner-%d-%d" % (owner, group))
        write(path, data + b"%d" % owner)
        os.chown(path, owner, group)
        os.symlink(b"nothing", path + b"-link")
        os.chown(path + b"-link", owner, group, follow_symlinks=False)
    path = os.path.join(root, b"attribute-trusted")
    write(path, data)
    os.setxattr(path, b"trusted.note", b"of the administrator")


def special(root: bytes, rng: random.Random) -> None:
    """What is not a file, a directory or a link."""
    os.mkfifo(os.path.join(root, b"fifo"), 0o640)
    here = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{here}/socket")  # the whole path may be too long for one
    finally:
        os.close(here)
    if os.geteuid() == 0:
        for name, kind, device in (
            (b"null", stat.S_IFCHR, os.makedev(1, 3)),
            (b"block", stat.S_IFBLK, os.makedev(7, rng.randrange(200, 250))),
        ):
            with suppress(PermissionError):  # a container that may make no devices
                os.mknod(os.path.join(root, name), kind | 0o600, device)


PARTS: dict[str, Callable[[bytes, random.Random], None]] = {
    part.__name__: part for part in (sizes, sparse, links, names, deep, metadata, special)
}
"""What fills a directory with them."""


FAR_DOWN = b"/".join([b"far-down-the-tree-%03d" % level for level in range(300)])
"""A path that is longer than PATH_MAX."""


def directory_made(root_fd: int, path: bytes) -> int:
    """A descriptor of a directory, made with those above it, however long the path is."""
    current = os.dup(root_fd)
    for name in path.split(b"/"):
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
        os.close(current)
        current = below
    return current


def deeper_than_a_path(root: bytes) -> None:
    """A chain of directories whose path is longer than PATH_MAX, with a file at its end."""
    with opened(os.open(root, os.O_RDONLY | os.O_DIRECTORY)) as root_fd:
        fd = directory_made(root_fd, FAR_DOWN)
    with open(os.open(b"file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=fd), "wb") as file:
        file.write(text(random.Random(300), 100_000))
        file.flush()
        os.utime(file.fileno(), ns=(EPOCH_NS, EPOCH_NS))
    os.close(fd)
