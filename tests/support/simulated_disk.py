"""A disk that remembers what it was told, and makes the states that a power cut could leave.

:class:`RecordingDisk` does everything for real and keeps a log. :class:`CrashStates` takes the tree
as it was before, a prefix of the log, and builds trees that may be found after the power fails
there. What may be lost, kept, reordered and torn is in docs/crash-safety.md ("The model").
"""

import os
import random
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Buffer

from dedupd import native
from dedupd.system.disk import Disk
from dedupd.system.files import data_ranges, read_at

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

    def write_at(self, fd: int, data: Sequence[Buffer], offset: int) -> int:
        with self._lock:
            written = super().write_at(fd, data, offset)
            self._add(fd, _write_event(fd, data, offset, written))
            return written

    def write_out(self, fd: int, data: memoryview, offset: int) -> None:
        self.write_at(fd, [data], offset)

    def write_some(self, fd: int, data: Sequence[Buffer], offset: int) -> int:
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

    def make_dir(self, dir_fd: int, name: bytes, mode: int = 0o700) -> None:
        with self._lock:
            super().make_dir(dir_fd, name, mode)
            made = os.stat(name, dir_fd=dir_fd)
            parent, _, last = name.rpartition(b"/")
            directory = self._number(os.stat(parent or b".", dir_fd=dir_fd).st_ino)
            link = Link(last, self._new_number(made.st_ino), made.st_mode)
            self.log.append(Entry(directory, link))


COMPOSED = {"replace_file"}
"""Methods that are made of others."""


def _write_event(fd: int, data: Sequence[Buffer], offset: int, written: int) -> Write:
    joined = b"".join(bytes(part) for part in data)[:written]
    return Write(offset, joined, os.fstat(fd).st_mtime_ns)


class Choice(NamedTuple):
    """How much of what was not synced a power cut keeps.

    ``one_journal``: metadata of all inodes is kept in the order of the log, up to one place.
    Otherwise every inode and every directory has a place of its own. ``block_share`` is the
    likelihood that a block which may or may not have been written was; ``unwritten_share`` that one
    which was not was allocated at least. ``torn`` blocks are written by halves.
    """

    one_journal: bool
    metadata_share: float
    block_share: float
    unwritten_share: float = 0.0
    torn: bool = False


NOTHING = Choice(False, 0.0, 0.0)
EVERYTHING = Choice(True, 1.0, 1.0)


class CrashStates:
    """The states that a power cut can leave after a prefix of a log."""

    def __init__(self, before: dict[int, Inode], log: Sequence[Entry]) -> None:
        self._before = before
        self._log = log

    def state(self, length: int, choice: Choice, rng: random.Random) -> dict[int, Inode]:
        """One state after the first ``length`` entries of the log."""
        log = self._log[:length]
        cuts = _Cuts(log, choice, rng)
        by_inode: dict[int, list[tuple[int, Event]]] = {}
        namespace: list[tuple[int, Entry]] = []
        for at, entry in enumerate(log):
            if isinstance(entry.event, Link | Unlink | Rename):
                namespace.append((at, entry))
            elif entry.inode != SYNC_FS:
                by_inode.setdefault(entry.inode, []).append((at, entry.event))
        state = dict(self._before)
        for _, entry in namespace:
            if isinstance(entry.event, Link):
                state[entry.event.inode] = Inode(entry.event.mode, 0, 0, 0)
        for number in by_inode:
            inode = state[number] = state[number].copy()
            events = by_inode.get(number, [])
            _replay(inode, events, cuts.metadata(number), cuts.data(number), choice, rng)
        for at, entry in namespace:
            _apply_name(state, self._before, at, entry, cuts)
        return state


class _Cuts:
    """For every inode, up to where the log is on disk: as far as syncs force it, and some more."""

    def __init__(self, log: Sequence[Entry], choice: Choice, rng: random.Random) -> None:
        self._choice = choice
        self._rng = rng
        self._end = len(log)
        self._whole = 0
        self._metadata: dict[int, int] = {}
        self._data: dict[int, int] = {}
        self._names: dict[int, int] = {}
        self._chosen: dict[int, int] = {}
        for at, entry in enumerate(log):
            if isinstance(entry.event, SyncAll):
                if entry.inode == SYNC_FS:
                    self._whole = at
                self._metadata[entry.inode] = self._data[entry.inode] = at
                self._names[entry.inode] = at
            elif isinstance(entry.event, SyncData):
                self._data[entry.inode] = at
        self._renames = [
            (at, entry.event) for at, entry in enumerate(log) if isinstance(entry.event, Rename)
        ]
        self._force_renames()
        journal = max([0, *self._metadata.values(), *self._names.values()])
        self._journal = self._pick(journal)
        self._directories = {
            number: self._journal if choice.one_journal else self._pick(self.names_forced(number))
            for number in {n for _, r in self._renames for n in (r.source, r.target)}
        }
        self._hold_renames_together()

    def _pick(self, least: int) -> int:
        """A place from ``least`` to the end of the log."""
        share = self._choice.metadata_share
        if share in (0.0, 1.0):
            return self._end if share else least
        return self._rng.randint(least, self._end)

    def names_forced(self, directory: int) -> int:
        return max(self._whole, self._names.get(directory, 0))

    def _force_renames(self) -> None:
        """A rename is on disk in both directories, or in neither."""
        changed = True
        while changed:
            changed = False
            for at, rename in self._renames:
                one, other = rename.source, rename.target
                if max(self.names_forced(one), self.names_forced(other)) > at:
                    for directory in (one, other):
                        if self.names_forced(directory) <= at:
                            self._names[directory] = at + 1
                            changed = True

    def _hold_renames_together(self) -> None:
        changed = True
        while changed:
            changed = False
            for at, rename in self._renames:
                least = min(self._directories[rename.source], self._directories[rename.target])
                for directory in (rename.source, rename.target):
                    if self._directories[directory] > at >= least:
                        self._directories[directory] = at
                        changed = True

    def names(self, directory: int) -> int:
        """Names of a directory that changed before this place of the log are on disk."""
        if directory not in self._directories:
            self._directories[directory] = (
                self._journal
                if self._choice.one_journal
                else self._pick(self.names_forced(directory))
            )
        return self._directories[directory]

    def metadata(self, inode: int) -> int:
        """Metadata of an inode that changed before this place is on disk."""
        if self._choice.one_journal:
            return self._journal
        return self._pick(max(self._whole, self._metadata.get(inode, 0)))

    def data(self, inode: int) -> int:
        """Bytes of an inode that were written before this place are on disk."""
        return max(self._whole, self._data.get(inode, 0))


def _apply_name(
    state: dict[int, Inode], before: dict[int, Inode], at: int, entry: Entry, cuts: _Cuts
) -> None:
    event = entry.event
    if isinstance(event, Rename):
        if at < cuts.names(event.source):
            _entries(state, before, event.source).pop(event.old, None)
            if event.other is not None:
                _entries(state, before, event.source)[event.old] = event.other
            _entries(state, before, event.target)[event.new] = event.inode
    elif at < cuts.names(entry.inode):
        if isinstance(event, Link):
            _entries(state, before, entry.inode)[event.name] = event.inode
        elif isinstance(event, Unlink):
            _entries(state, before, entry.inode).pop(event.name, None)


def _entries(state: dict[int, Inode], before: dict[int, Inode], number: int) -> dict[bytes, int]:
    if state[number] is before.get(number):
        state[number] = state[number].copy()
    return state[number].entries


def _replay(
    inode: Inode,
    events: Sequence[tuple[int, Event]],
    metadata_cut: int,
    data_cut: int,
    choice: Choice,
    rng: random.Random,
) -> None:
    """Bring an inode from its durable state to one that the events may have left on disk.

    A block that is written where one is allocated goes to the same place, whatever becomes of the
    metadata. A block that needs an allocation appears whole or not at all, and only after all
    earlier metadata of its inode.
    """
    metadata_cut = max(metadata_cut, _forced_by_allocation(inode, events, data_cut))
    live = inode.copy()
    """As programs saw it: what is written back of a block is all that the cache holds of it."""
    moved: set[int] = set()
    """Blocks that a punch or truncation freed which is not on disk: what is written to them since
    lies elsewhere."""
    behind = False
    for at, event in events:
        if isinstance(event, SyncData | SyncAll):
            continue
        _change(live, event)
        if isinstance(event, Write):
            if at < metadata_cut:
                inode.mtime_ns = event.mtime_ns
            in_order = at < metadata_cut or not behind
            _write_back(inode, live, event, at < data_cut, in_order, moved, choice, rng)
        elif at < metadata_cut:
            _change(inode, event)
        else:
            behind = True
            moved |= _freed(inode, event)


def _forced_by_allocation(before: Inode, events: Sequence[tuple[int, Event]], data_cut: int) -> int:
    """Up to where fdatasync has to write metadata: it must be able to find the bytes again."""
    inode = before.copy()
    forced = 0
    for at, event in events:
        if at >= data_cut:
            break
        if isinstance(event, Write):
            first, last = event.offset // BLOCK_BYTES, _last_block(event)
            grows = event.offset + len(event.data) > inode.size
            if grows or any(block not in inode.blocks for block in range(first, last + 1)):
                forced = at + 1
        elif isinstance(event, Truncate):
            forced = at + 1
        if not isinstance(event, SyncData | SyncAll):
            _change(inode, event)
    return forced


def _last_block(event: Write) -> int:
    return (event.offset + len(event.data) - 1) // BLOCK_BYTES


def _merged(old: bytes, event: Write, block: int) -> bytes:
    """The block after a write."""
    base = block * BLOCK_BYTES
    start = max(event.offset, base)
    stop = min(event.offset + len(event.data), base + BLOCK_BYTES)
    new = event.data[start - event.offset : stop - event.offset]
    return old[: start - base] + new + old[stop - base :]


def _write_back(
    inode: Inode,
    live: Inode,
    event: Write,
    certain: bool,
    in_order: bool,
    moved: set[int],
    choice: Choice,
    rng: random.Random,
) -> None:
    """Decide for every block of a write whether it reached the disk, and put it there."""
    end = event.offset + len(event.data)
    for block in range(event.offset // BLOCK_BYTES, _last_block(event) + 1):
        is_place = block in inode.blocks and block not in moved
        if not is_place and (moved or not in_order):
            continue
        if not certain and rng.random() >= choice.block_share:
            if not is_place and rng.random() < choice.unwritten_share:
                inode.unwritten.add(block)
            continue
        new = live.blocks[block]
        if is_place and choice.torn and not certain:
            new = _torn(inode.blocks[block], new, rng)
        inode.blocks[block] = new
        inode.unwritten.discard(block)
        if in_order:
            inode.size = max(inode.size, min(end, (block + 1) * BLOCK_BYTES))


def _torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Some sectors of the new block, the rest of the old one."""
    return b"".join(
        (new if rng.random() < 0.5 else old)[at : at + SECTOR_BYTES]
        for at in range(0, BLOCK_BYTES, SECTOR_BYTES)
    )


def _freed(inode: Inode, event: Event) -> set[int]:
    if isinstance(event, Punch):
        first = -(-event.offset // BLOCK_BYTES)
        return set(range(first, (event.offset + event.length) // BLOCK_BYTES))
    if isinstance(event, Truncate):
        first = -(-event.length // BLOCK_BYTES)
        return {block for block in (*inode.blocks, *inode.unwritten) if block >= first}
    return set()


def _change(inode: Inode, event: Event) -> None:
    """Apply an event in full."""
    match event:
        case Write(offset, data, mtime_ns):
            for block in range(offset // BLOCK_BYTES, _last_block(event) + 1):
                old = inode.blocks.get(block, bytes(BLOCK_BYTES))
                inode.blocks[block] = _merged(old, event, block)
                inode.unwritten.discard(block)
            inode.size = max(inode.size, offset + len(data))
            inode.mtime_ns = mtime_ns
        case Punch(offset, length, mtime_ns):
            for block in _freed(inode, event):
                inode.blocks.pop(block, None)
                inode.unwritten.discard(block)
            for block in {offset // BLOCK_BYTES, (offset + length) // BLOCK_BYTES}:
                if block in inode.blocks:
                    zeros = Write(offset, bytes(length), mtime_ns)
                    if offset < (block + 1) * BLOCK_BYTES and offset + length > block * BLOCK_BYTES:
                        inode.blocks[block] = _merged(inode.blocks[block], zeros, block)
            inode.mtime_ns = mtime_ns
        case Truncate(length, mtime_ns):
            for block in _freed(inode, event):
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
