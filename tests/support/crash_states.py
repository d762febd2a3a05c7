"""The states that a power cut can leave of a tree, on three file systems and a wider model.

:class:`CrashStates` takes the tree as it was before, a prefix of the log of a ``RecordingDisk``,
and builds trees that may be found after the power fails there. What each file system may lose,
keep, reorder and tear is in docs/design/crash-safety.md ("The model").
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.support.simulated_disk import (
    BLOCK_BYTES,
    SECTOR_BYTES,
    SYNC_FS,
    Entry,
    Event,
    Inode,
    Link,
    Rename,
    SyncAll,
    SyncData,
    Truncate,
    Unlink,
    Write,
    change,
    freed,
    last_block,
)


class Order(Enum):
    """In what order changes of the metadata of several inodes become durable."""

    JOURNAL = "journal"
    """All up to one place: a sync of one inode takes all earlier changes of the others with it."""
    TREE = "tree"
    """All up to one place, but synced inodes as they were at their last sync."""
    FREE = "free"
    """Each inode up to a place of its own."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """What a file system may do to changes that were not synced.

    ``in_place``: a block that has a place is overwritten there, whatever becomes of the metadata,
    and may be torn. ``leaves_unwritten``: blocks may be allocated without being written.
    ``length_first``: the length may reach further than the blocks that are there.
    """

    name: str
    order: Order
    in_place: bool
    leaves_unwritten: bool
    length_first: bool


EXT4 = FileSystem("ext4", Order.JOURNAL, True, True, True)
XFS = FileSystem("xfs", Order.JOURNAL, True, True, False)
BTRFS = FileSystem("btrfs", Order.TREE, False, False, True)
ANY = FileSystem("any", Order.FREE, True, True, True)
"""Wider than any file system: none of the three reorders changes of two inodes so freely."""

FILE_SYSTEMS = (EXT4, XFS, BTRFS, ANY)


class Choice(NamedTuple):
    """How much of what was not synced a power cut keeps.

    ``block_share`` is the likelihood that a block which may or may not have been written was;
    ``unwritten_share`` that one which was not is allocated at least. ``torn``: blocks are written
    by halves. ``length_first``: blocks that were not written count in the length of the file. The
    last three are choices only where the file system can do that.
    """

    file_system: FileSystem
    metadata_share: float
    block_share: float
    unwritten_share: float = 0.0
    torn: bool = False
    length_first: bool = False

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in zip(self._fields[1:], self[1:], strict=True)]
        return f"{self.file_system.name}: {', '.join(parts)}"


def choices(rng: random.Random, file_system: FileSystem) -> Iterator[Choice]:
    """The extremes first, then mixtures without end."""
    yield Choice(file_system, 0.0, 0.0)
    yield Choice(file_system, 1.0, 1.0)
    yield Choice(file_system, 0.0, 1.0)
    yield Choice(file_system, 1.0, 0.0, unwritten_share=1.0)
    yield Choice(file_system, 1.0, 0.0, length_first=True)
    while True:
        yield Choice(
            file_system,
            metadata_share=0.5,
            block_share=rng.choice([0.0, 0.3, 0.7, 1.0]),
            unwritten_share=rng.choice([0.0, 0.5, 1.0]),
            torn=rng.random() < 0.5,
            length_first=rng.random() < 0.5,
        )


class CrashStates:
    """The states that a power cut can leave after a prefix of a log."""

    def __init__(self, before: dict[int, Inode], log: Sequence[Entry]) -> None:
        self._before = before
        self._log = log

    def state(self, length: int, choice: Choice, rng: random.Random) -> dict[int, Inode]:
        """One state after the first ``length`` entries of the log."""
        log = self._log[:length]
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
        cuts = _Cuts(log, by_inode, state, choice, rng)
        for number, events in by_inode.items():
            inode = state[number] = state[number].copy()
            _replay(inode, events, cuts.metadata(number), cuts.data(number), choice, rng)
        for at, entry in namespace:
            _apply_name(state, self._before, at, entry, cuts)
        return state


class _Cuts:
    """For every inode, up to where the log is on disk: as far as syncs force it, and some more."""

    def __init__(
        self,
        log: Sequence[Entry],
        by_inode: dict[int, list[tuple[int, Event]]],
        state: dict[int, Inode],
        choice: Choice,
        rng: random.Random,
    ) -> None:
        self._choice = choice
        self._order = choice.file_system.order
        self._rng = rng
        self._end = len(log)
        self._whole = 0
        self._synced: dict[int, int] = {}
        self._data: dict[int, int] = {}
        self._names: dict[int, int] = {}
        for at, entry in enumerate(log):
            if isinstance(entry.event, SyncAll):
                if entry.inode == SYNC_FS:
                    self._whole = at
                self._synced[entry.inode] = self._data[entry.inode] = at
                self._names[entry.inode] = at
            elif isinstance(entry.event, SyncData):
                self._data[entry.inode] = at
        self._forced = {
            number: self._forced_metadata(state[number], number, events)
            for number, events in by_inode.items()
        }
        self._renames = [
            (at, entry.event) for at, entry in enumerate(log) if isinstance(entry.event, Rename)
        ]
        self._force_renames()
        self._common = self._pick(self._common_floor(log))
        self._directories: dict[int, int] = {}
        for directory in {n for _, r in self._renames for n in (r.source, r.target)}:
            self.names(directory)
        self._hold_renames_together()

    def _forced_metadata(
        self, before: Inode, number: int, events: Sequence[tuple[int, Event]]
    ) -> int:
        """Up to where syncs of an inode have made its metadata durable."""
        synced = self._synced.get(number, 0)
        changes = [at for at, event in events if at < synced and not _is_sync(event)]
        last = changes[-1] + 1 if changes else 0
        in_place = self._choice.file_system.in_place
        forced = forced_by_allocation(before, events, self.data(number), in_place=in_place)
        return max(last, forced)

    def _common_floor(self, log: Sequence[Entry]) -> int:
        """The least place that is common to all inodes."""
        if self._order is not Order.JOURNAL:
            return self._whole
        changed = {
            directory: at + 1
            for at, entry in enumerate(log)
            if isinstance(entry.event, Link | Unlink | Rename)
            for directory in _directories(entry)
            if at < self.names_forced(directory)
        }
        return max([self._whole, *self._forced.values(), *changed.values()])

    def _pick(self, least: int) -> int:
        """A place from ``least`` to the end of the log."""
        share = self._choice.metadata_share
        if share in (0.0, 1.0):
            return self._end if share else least
        return self._rng.randint(least, self._end)

    def _place(self, forced: int) -> int:
        """Where the metadata of an inode, or the names of a directory, are cut off."""
        match self._order:
            case Order.JOURNAL:
                return self._common
            case Order.TREE:
                return max(self._common, forced)
            case Order.FREE:
                return self._pick(max(self._whole, forced))

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
            self._directories[directory] = self._place(self.names_forced(directory))
        return self._directories[directory]

    def metadata(self, inode: int) -> int:
        """Metadata of an inode that changed before this place is on disk."""
        return self._place(self._forced.get(inode, 0))

    def data(self, inode: int) -> int:
        """Bytes of an inode that were written before this place are on disk."""
        return max(self._whole, self._data.get(inode, 0))


def _is_sync(event: Event) -> bool:
    return isinstance(event, SyncData | SyncAll)


def _directories(entry: Entry) -> tuple[int, ...]:
    event = entry.event
    return (event.source, event.target) if isinstance(event, Rename) else (entry.inode,)


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
    metadata, unless the file system never overwrites. A block that needs an allocation appears
    whole or not at all, and only after all earlier metadata of its inode.
    """
    live = inode.copy()
    """As programs saw it: what is written back of a block is all that the cache holds of it."""
    moved: set[int] = set()
    """Blocks that a punch or truncation freed which is not on disk: what is written to them since
    lies elsewhere."""
    behind = False
    for at, event in events:
        if isinstance(event, SyncData | SyncAll):
            continue
        change(live, event)
        if isinstance(event, Write):
            if at < metadata_cut:
                inode.mtime_ns = event.mtime_ns
            # In an order that is common to all, its own allocation comes after the cut, too.
            is_free = choice.file_system.order is Order.FREE
            in_order = at < metadata_cut or (is_free and not behind)
            _write_back(inode, live, event, at < data_cut, in_order, moved, choice, rng)
        elif at < metadata_cut:
            change(inode, event)
        else:
            behind = True
            moved |= freed(inode, event)


def forced_by_allocation(
    before: Inode, events: Sequence[tuple[int, Event]], data_cut: int, *, in_place: bool
) -> int:
    """Up to where fdatasync has to write metadata: it must be able to find the bytes again."""
    inode = before.copy()
    forced = 0
    for at, event in events:
        if at >= data_cut:
            break
        if isinstance(event, Write):
            first, last = event.offset // BLOCK_BYTES, last_block(event)
            grows = event.offset + len(event.data) > inode.size
            moves = any(block not in inode.blocks for block in range(first, last + 1))
            if grows or moves or not in_place:
                forced = at + 1
        elif isinstance(event, Truncate):
            forced = at + 1
        if not isinstance(event, SyncData | SyncAll):
            change(inode, event)
    return forced


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
    file_system = choice.file_system
    end = event.offset + len(event.data)
    for block in range(event.offset // BLOCK_BYTES, last_block(event) + 1):
        is_place = file_system.in_place and block in inode.blocks and block not in moved
        if not is_place and (moved or not in_order):
            continue
        length = max(inode.size, min(end, (block + 1) * BLOCK_BYTES)) if in_order else inode.size
        if not certain and rng.random() >= choice.block_share:
            may_be_unwritten = file_system.leaves_unwritten and block not in inode.blocks
            if may_be_unwritten and rng.random() < choice.unwritten_share:
                inode.unwritten.add(block)
            if choice.length_first and file_system.length_first:
                inode.size = length
            continue
        new = live.blocks[block]
        if is_place and choice.torn and not certain:
            new = _torn(inode.blocks[block], new, rng)
        inode.blocks[block] = new
        inode.unwritten.discard(block)
        inode.size = length


def _torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Some sectors of the new block, the rest of the old one."""
    return b"".join(
        (new if rng.random() < 0.5 else old)[at : at + SECTOR_BYTES]
        for at in range(0, BLOCK_BYTES, SECTOR_BYTES)
    )
