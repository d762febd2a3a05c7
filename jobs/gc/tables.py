"""The redirection tables that a collection goes through, block by block."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import xxhash

from dedupd import native
from dedupd.format import table as tbl
from dedupd.format.container import FileHeader, Kind
from dedupd.store.container.container import table_name
from dedupd.store.container.recovery import recover_sound
from dedupd.system.files import opened, read_at
from dedupd.volume.volume import Volume
from jobs.frame.run import JobRun

BLOCK_ENTRIES = 1 << 16
"""Entries of a table that are looked at together: 4 MiB, however long the table is."""

_STATE_BYTE = 60
_IS_LIVE = bytes(state == tbl.State.LIVE for state in range(256))
"""What a compaction makes of the other states is no change."""

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """One container in order: its header, and how many entries its table has."""

    header: FileHeader
    count: int


def states_of(block: memoryview) -> bytes:
    """The state of each entry of a piece of a table."""
    return bytes(block[_STATE_BYTE :: tbl.ENTRY_BYTES])


def fingerprint_of(block: memoryview, at: int) -> bytes:
    """That of one entry of a piece of a table."""
    return bytes(block[at * tbl.ENTRY_BYTES :][: tbl.FINGERPRINT_BYTES])


class Tables:
    """All containers that can be opened. Those that can't are scrub's: they stay as they are."""

    def __init__(self, volume: Volume, run: JobRun) -> None:
        """Brings every container into a known state. Needs the job lock. Raises Cancelled."""
        self._volume = volume
        self._run = run
        self.shapes: dict[Kind, dict[int, Shape]] = {kind: self._in_order(kind) for kind in Kind}

    def _in_order(self, kind: Kind) -> dict[int, Shape]:
        shapes: dict[int, Shape] = {}
        uuid, disk = self._volume.space.volume, self._volume.disk
        with self.directory(kind) as dir_fd:
            self._run.update(phase=f"{kind.name.lower()} tables", done=0, total=0)
            for done, state in enumerate(recover_sound(dir_fd, kind, uuid, disk)):
                shapes[state.header.container] = Shape(state.header, len(state.entries))
                self._run.update(done=done + 1)
                self._run.check()
        return shapes

    def directory(self, kind: Kind) -> AbstractContextManager[int]:
        return opened(self._volume.open_directory(kind))

    def counts(self, kind: Kind) -> dict[int, int]:
        """Container → how many ordinals it has."""
        return {number: shape.count for number, shape in self.shapes[kind].items()}

    def blocks(self, dir_fd: int, shape: Shape) -> Iterator[tuple[int, memoryview]]:
        """The table of a container in pieces, each with the ordinal that it begins with.

        A safe place lies before each. Raises Cancelled.
        """
        for first, block in self._unchecked_blocks(dir_fd, shape):
            self._run.check()
            yield first, block

    def _unchecked_blocks(self, dir_fd: int, shape: Shape) -> Iterator[tuple[int, memoryview]]:
        name = table_name(shape.header.container)
        with opened(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
            for first in range(0, shape.count, BLOCK_ENTRIES):
                count = min(BLOCK_ENTRIES, shape.count - first)
                offset = tbl.HEADER_BYTES + first * tbl.ENTRY_BYTES
                yield first, memoryview(read_at(fd, count * tbl.ENTRY_BYTES, offset))

    def live(self, kind: Kind) -> dict[int, int]:
        """Of each container a digest of which of its records are live."""
        live: dict[int, int] = {}
        with self.directory(kind) as dir_fd:
            for number, shape in self.shapes[kind].items():
                digest = xxhash.xxh3_128()
                for _, block in self.blocks(dir_fd, shape):
                    digest.update(states_of(block).translate(_IS_LIVE))
                live[number] = digest.intdigest()
        return live

    def fingerprints(self, number: int, lengths: memoryview) -> int:
        """A digest of the fingerprints of those nodes of recipes of which any is needed, the same
        however much the container has grown since. ``lengths`` are bytes of u64. Also for a run
        that is being stopped."""
        digest = 0
        with self.directory(Kind.STREAMS) as dir_fd:
            shape = self.shapes[Kind.STREAMS][number]
            for first, block in self._unchecked_blocks(dir_fd, shape):
                end = first + len(block) // tbl.ENTRY_BYTES
                part = lengths[first * _LENGTH_BYTES : end * _LENGTH_BYTES]
                if part:
                    digest = native.upkeep.digest_needed(block, part, digest)
        return digest
