"""A disk that remembers what it was told.

:class:`RecordingDisk` does everything for real and keeps a log of what happened to which inode.
``crash_states.py`` makes the states of it that a power cut could leave; :func:`materialise` builds
one of them as a real directory.
"""

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from dedupd_core import native
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import data_ranges, read_at

Bytes = memoryview | bytes | bytearray

BLOCK_BYTES = 4096
SECTOR_BYTES = 512
"""What a device writes whole, or not at all."""


@dataclass(slots=True)
class Inode:
    """A file or directory, as the disk would hold it.

    Blocks that are missing are holes; those in ``unwritten`` are allocated as well, and read as
    zeros.
    """

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    blocks: dict[int, bytes] = field(default_factory=dict)
    unwritten: set[int] = field(default_factory=set)
    attributes: dict[bytes, bytes] = field(default_factory=dict)
    entries: dict[bytes, int] = field(default_factory=dict)

    def copy(self) -> "Inode":
        return replace(
            self,
            blocks=dict(self.blocks),
            unwritten=set(self.unwritten),
            attributes=dict(self.attributes),
            entries=dict(self.entries),
        )


# One class per thing that happens to an inode. Times are what the real file showed afterwards.


class Write(NamedTuple):
    offset: int
    data: bytes
    mtime_ns: int


class Punch(NamedTuple):
    offset: int
    length: int
    mtime_ns: int


class Allocate(NamedTuple):
    offset: int
    length: int


class Truncate(NamedTuple):
    length: int
    mtime_ns: int


class SetAttribute(NamedTuple):
    name: bytes
    value: bytes


class RemoveAttribute(NamedTuple):
    name: bytes


class SetTimes(NamedTuple):
    mtime_ns: int


class SetOwner(NamedTuple):
    uid: int
    gid: int


class SetMode(NamedTuple):
    mode: int


class Link(NamedTuple):
    """A new inode appears in a directory."""

    name: bytes
    inode: int
    mode: int


class Unlink(NamedTuple):
    name: bytes


class Rename(NamedTuple):
    """A name moves; recorded for both directories under one log position.

    ``other`` is the inode that gets the old name in exchange, None where the name is free then.
    """

    source: int
    old: bytes
    target: int
    new: bytes
    inode: int
    other: int | None = None


class SyncData(NamedTuple):
    """fdatasync"""


class SyncAll(NamedTuple):
    """fsync"""


Event = (
    Write
    | Punch
    | Allocate
    | Truncate
    | SetAttribute
    | RemoveAttribute
    | SetTimes
    | SetOwner
    | SetMode
    | Link
    | Unlink
    | Rename
    | SyncData
    | SyncAll
)

FIRST_MADE = 1 << 48
"""Numbers of inodes that were made while recording; above those of file systems here."""

SYNC_FS = 0
"""Inode number under which a sync of the whole file system is logged."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A position of the log: an event, and the inode that it happened to."""

    inode: int
    event: Event


def scan(root: Path) -> dict[int, Inode]:
    """The tree below ``root`` as inodes by number."""
    inodes: dict[int, Inode] = {}
    pending = [root]
    while pending:
        path = pending.pop()
        status = path.lstat()
        if status.st_ino in inodes:
            continue
        inode = Inode(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        inodes[status.st_ino] = inode
        for name in map(os.fsencode, os.listxattr(path, follow_symlinks=False)):
            inode.attributes[name] = os.getxattr(path, name, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            for child in path.iterdir():
                inode.entries[os.fsencode(child.name)] = child.lstat().st_ino
                pending.append(child)
        elif stat.S_ISREG(status.st_mode):
            inode.size = status.st_size
            _scan_blocks(path, inode)
    return inodes


def _scan_blocks(path: Path, inode: Inode) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        for start, end in data_ranges(fd, 0, inode.size):
            for at in range(start, end, BLOCK_BYTES):
                inode.blocks[at // BLOCK_BYTES] = read_at(fd, BLOCK_BYTES, at).ljust(
                    BLOCK_BYTES, b"\0"
                )
    finally:
        os.close(fd)


class RecordingDisk(Disk):
    """Durable effects on a real directory, each also put on a log. Safe to use from threads."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self._lock = threading.RLock()
        self._made: dict[int, int] = {}

    def _number(self, inode: int) -> int:
        """A number that no other inode gets, although file systems use theirs again."""
        return self._made.get(inode, inode)

    def _new_number(self, inode: int) -> int:
        self._made[inode] = FIRST_MADE + len(self.log)
        return self._made[inode]

    def _add(self, fd: int, event: Event) -> None:
        self.log.append(Entry(self._number(os.fstat(fd).st_ino), event))

    def create(self, dir_fd: int, name: bytes, mode: int = 0o600) -> int:
        with self._lock:
            fd = super().create(dir_fd, name, mode)
            made = os.fstat(fd)
            self._add(dir_fd, Link(name, self._new_number(made.st_ino), made.st_mode))
            return fd

    def write_at(self, fd: int, data: Sequence[Bytes], offset: int) -> int:
        with self._lock:
            written = super().write_at(fd, data, offset)
            self._add(fd, _write_event(fd, data, offset, written))
            return written

    def write_out(self, fd: int, data: memoryview, offset: int) -> None:
        self.write_at(fd, [data], offset)

    def write_some(
        self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int
    ) -> int:
        with self._lock:
            written = super().write_some(fd, data, offset)
            self._add(fd, _write_event(fd, data, offset, written))
            return written

    def allocate(self, fd: int, offset: int, length: int) -> None:
        with self._lock:
            super().allocate(fd, offset, length)
            self._add(fd, Allocate(offset, length))

    def sync_data(self, fd: int) -> None:
        with self._lock:
            self._add(fd, SyncData())

    def sync_file(self, fd: int) -> None:
        with self._lock:
            self._add(fd, SyncAll())

    def sync_dir(self, dir_fd: int) -> None:
        with self._lock:
            self._add(dir_fd, SyncAll())

    def sync_file_system(self, fd: int) -> None:
        with self._lock:
            self.log.append(Entry(SYNC_FS, SyncAll()))

    def truncate(self, fd: int, length: int) -> None:
        with self._lock:
            super().truncate(fd, length)
            self._add(fd, Truncate(length, os.fstat(fd).st_mtime_ns))

    def punch(self, fd: int, offset: int, length: int) -> None:
        with self._lock:
            super().punch(fd, offset, length)
            self._add(fd, Punch(offset, length, os.fstat(fd).st_mtime_ns))

    def set_attribute(self, fd: int, name: bytes, value: bytes) -> None:
        with self._lock:
            super().set_attribute(fd, name, value)
            self._add(fd, SetAttribute(name, bytes(value)))

    def remove_attribute(self, fd: int, name: bytes) -> None:
        with self._lock:
            super().remove_attribute(fd, name)
            self._add(fd, RemoveAttribute(name))

    def remove_attribute_of(self, fd: int, name: bytes) -> None:
        with self._lock:
            super().remove_attribute_of(fd, name)
            self._add(fd, RemoveAttribute(name))

    def set_times(self, fd: int, atime_ns: int, mtime_ns: int) -> None:
        with self._lock:
            super().set_times(fd, atime_ns, mtime_ns)
            self._add(fd, SetTimes(mtime_ns))

    def set_owner(self, fd: int, uid: int, gid: int) -> None:
        with self._lock:
            super().set_owner(fd, uid, gid)
            self._add(fd, SetOwner(uid, gid))

    def set_mode(self, fd: int, mode: int) -> None:
        with self._lock:
            super().set_mode(fd, mode)
            self._add(fd, SetMode(os.fstat(fd).st_mode))

    def rename(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        with self._lock:
            moved = os.stat(old, dir_fd=from_fd, follow_symlinks=False).st_ino
            super().rename(from_fd, old, to_fd, new)
            self._add_rename(from_fd, old, to_fd, new, moved)

    def rename_new(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        with self._lock:
            moved = os.stat(old, dir_fd=from_fd, follow_symlinks=False).st_ino
            super().rename_new(from_fd, old, to_fd, new)
            self._add_rename(from_fd, old, to_fd, new, moved)

    def rename_leaving(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        raise NotImplementedError("nothing that is recorded makes an overlay")

    def exchange(self, one_fd: int, one: bytes, other_fd: int, other: bytes) -> None:
        with self._lock:
            first = os.stat(one, dir_fd=one_fd, follow_symlinks=False).st_ino
            second = os.stat(other, dir_fd=other_fd, follow_symlinks=False).st_ino
            super().exchange(one_fd, one, other_fd, other)
            self._add_rename(one_fd, one, other_fd, other, first, self._number(second))

    def _add_rename(
        self,
        from_fd: int,
        old: bytes,
        to_fd: int,
        new: bytes,
        moved: int,
        other: int | None = None,
    ) -> None:
        source, target = map(self._number, (os.fstat(from_fd).st_ino, os.fstat(to_fd).st_ino))
        rename = Rename(source, old, target, new, self._number(moved), other)
        self.log.append(Entry(source, rename))

    def unlink(self, dir_fd: int, name: bytes) -> None:
        with self._lock:
            super().unlink(dir_fd, name)
            self._add(dir_fd, Unlink(name))

    def remove_dir(self, dir_fd: int, name: bytes) -> None:
        with self._lock:
            super().remove_dir(dir_fd, name)
            self._add(dir_fd, Unlink(name))

    def make_dir(self, dir_fd: int, name: bytes) -> None:
        with self._lock:
            super().make_dir(dir_fd, name)
            made = os.stat(name, dir_fd=dir_fd)
            parent, _, last = name.rpartition(b"/")
            directory = self._number(os.stat(parent or b".", dir_fd=dir_fd).st_ino)
            link = Link(last, self._new_number(made.st_ino), made.st_mode)
            self.log.append(Entry(directory, link))


class Forgetful(RecordingDisk):
    """Forgets some kinds of steps: bugs that exploring must find."""

    def __init__(self, forgotten: Sequence[str]) -> None:
        super().__init__()
        for name in forgotten:
            setattr(self, name, lambda *_: None)


COMPOSED = {"remove_all", "replace_file"}
"""Methods that are made of others."""


def _write_event(fd: int, data: Sequence[Buffer], offset: int, written: int) -> Write:
    joined = b"".join(bytes(part) for part in data)[:written]
    return Write(offset, joined, os.fstat(fd).st_mtime_ns)


def last_block(event: Write) -> int:
    return (event.offset + len(event.data) - 1) // BLOCK_BYTES


def _merged(old: bytes, event: Write, block: int) -> bytes:
    """The block after a write."""
    base = block * BLOCK_BYTES
    start = max(event.offset, base)
    stop = min(event.offset + len(event.data), base + BLOCK_BYTES)
    new = event.data[start - event.offset : stop - event.offset]
    return old[: start - base] + new + old[stop - base :]


def freed(inode: Inode, event: Event) -> set[int]:
    if isinstance(event, Punch):
        first = -(-event.offset // BLOCK_BYTES)
        return set(range(first, (event.offset + event.length) // BLOCK_BYTES))
    if isinstance(event, Truncate):
        first = -(-event.length // BLOCK_BYTES)
        return {block for block in (*inode.blocks, *inode.unwritten) if block >= first}
    return set()


def change(inode: Inode, event: Event) -> None:
    """Apply an event in full."""
    match event:
        case Write(offset, data, mtime_ns):
            for block in range(offset // BLOCK_BYTES, last_block(event) + 1):
                old = inode.blocks.get(block, bytes(BLOCK_BYTES))
                inode.blocks[block] = _merged(old, event, block)
                inode.unwritten.discard(block)
            inode.size = max(inode.size, offset + len(data))
            inode.mtime_ns = mtime_ns
        case Punch(offset, length, mtime_ns):
            for block in freed(inode, event):
                inode.blocks.pop(block, None)
                inode.unwritten.discard(block)
            for block in {offset // BLOCK_BYTES, (offset + length) // BLOCK_BYTES}:
                if block in inode.blocks:
                    zeros = Write(offset, bytes(length), mtime_ns)
                    if offset < (block + 1) * BLOCK_BYTES and offset + length > block * BLOCK_BYTES:
                        inode.blocks[block] = _merged(inode.blocks[block], zeros, block)
            inode.mtime_ns = mtime_ns
        case Truncate(length, mtime_ns):
            for block in freed(inode, event):
                inode.blocks.pop(block, None)
                inode.unwritten.discard(block)
            last, rest = divmod(length, BLOCK_BYTES)
            if rest and last in inode.blocks:
                inode.blocks[last] = inode.blocks[last][:rest].ljust(BLOCK_BYTES, b"\0")
            inode.size, inode.mtime_ns = length, mtime_ns
        case Allocate(offset, length):
            blocks = range(offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES))
            inode.unwritten.update(block for block in blocks if block not in inode.blocks)
        case SetAttribute(name, value):
            inode.attributes[name] = value
        case RemoveAttribute(name):
            inode.attributes.pop(name, None)
        case SetTimes(mtime_ns):
            inode.mtime_ns = mtime_ns
        case SetOwner(uid, gid):
            inode.uid, inode.gid = uid, gid
        case SetMode(mode):
            inode.mode = mode


def materialise(state: dict[int, Inode], number: int, path: Path) -> None:
    """Make the tree of inode ``number`` of a state as a real directory at ``path``."""
    made: dict[int, Path] = {}
    for at, inode in reversed(list(_make(state, number, path, made))):
        os.utime(at, ns=(inode.mtime_ns, inode.mtime_ns))


def _make(
    state: dict[int, Inode], number: int, path: Path, made: dict[int, Path]
) -> Iterator[tuple[Path, Inode]]:
    inode = state[number]
    if number in made:
        os.link(made[number], path)
        return
    made[number] = path
    if stat.S_ISDIR(inode.mode):
        path.mkdir()
        _set_metadata(path, inode)
        yield path, inode
        for name, child in inode.entries.items():
            yield from _make(state, child, path / os.fsdecode(name), made)
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for block, data in inode.blocks.items():
            if block * BLOCK_BYTES < inode.size:
                os.pwrite(fd, data[: inode.size - block * BLOCK_BYTES], block * BLOCK_BYTES)
        os.ftruncate(fd, inode.size)
        for block in inode.unwritten:
            native.system.fallocate_keep_size(fd, block * BLOCK_BYTES, BLOCK_BYTES)
    finally:
        os.close(fd)
    _set_metadata(path, inode)
    yield path, inode


def _set_metadata(path: Path, inode: Inode) -> None:
    os.chown(path, inode.uid, inode.gid)
    os.chmod(path, stat.S_IMODE(inode.mode))
    for name, value in inode.attributes.items():
        os.setxattr(path, name, value)


def summary(state: dict[int, Inode], number: int) -> int:
    """A value that is equal for equal trees."""
    parts: list[object] = []
    pending = [number]
    while pending:
        at = pending.pop()
        inode = state[at]
        parts.append(
            (
                at,
                inode.mode,
                inode.uid,
                inode.gid,
                inode.mtime_ns,
                inode.size,
                tuple(sorted((b, hash(d)) for b, d in inode.blocks.items())),
                tuple(sorted(inode.unwritten)),
                tuple(sorted(inode.attributes.items())),
                tuple(sorted(inode.entries.items())),
            )
        )
        pending += inode.entries.values()
    return hash(tuple(parts))
