"""The candidates of one walk, kept for later passes.

An optimize run counts its candidates before it begins, and goes through them once for every
partition. Walking the tree each time costs more than a tenth of a run over small files.
"""

import marshal
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.partition_map import type_of, type_of_suffix
from jobs.tree.candidates import Candidate, PlainFiles
from jobs.tree.file_classes import ALL, Choice, FileClass, top_of

_PER_BLOCK = 1024
_LEVEL = 1
"""Names and times of files repeat much: 30 to 40 bytes are left of each candidate."""

_One = tuple[bytes, tuple[int, ...], bytes | None, int, int]
_Plain = tuple[bytes, bytes, list[bytes], int]
Row = _One | _Plain
"""A candidate; or the plain ones of a directory as they were found, what their names end in, and
their owner."""

ROW_BYTES = 256
"""Memory for a row beside its bytes, about."""


def row_of(found: Candidate | PlainFiles) -> Row:
    """Candidates in little memory."""
    if isinstance(found, PlainFiles):
        suffixes = [suffix for suffix, _ in found.chunks]
        return found.directory, found.packed, suffixes, found.owner
    path, identity, attribute, work_bytes, owner = found
    return path, tuple(identity), attribute, work_bytes, owner


def size_of(row: Row) -> int:
    """The memory that a row takes, about."""
    return ROW_BYTES + len(row[0]) + (len(row[1]) if len(row) == 4 else 0)


class _Block(NamedTuple):
    """Rows, packed; what the codec needs to unpack them."""

    stored: bytes
    codec: int
    raw_bytes: int
    checksum: int

    @classmethod
    def of(cls, rows: list[Row]) -> "_Block":
        raw = marshal.dumps(rows)
        packed = native.codec.encode(
            raw,
            array("I", [0]),
            array("I", [len(raw)]),
            level=_LEVEL,
            saving_min=0.0,
            header_bytes=0,
            align_bytes=1,
        )
        checksum = int.from_bytes(packed.checksums, "little")
        return cls(bytes(packed), packed.codecs[0], len(raw), checksum)

    def rows(self) -> list[Row]:
        raw = native.codec.decode(self.stored, self.codec, self.raw_bytes, self.checksum)
        rows: list[Row] = marshal.loads(raw)
        return rows


class CandidateCache:
    """Candidates in the order in which they were found, in ``bytes_max`` of memory at most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._blocks: list[_Block] = []
        self._rows: list[Row] = []
        self._count = 0
        self.is_complete = True
        """Whether all that were added are here: else there was no room, and none is."""

    def add(self, found: Candidate | PlainFiles) -> None:
        """Keep candidates, where there is room for all so far."""
        if not self.is_complete:
            return
        self._rows.append(row_of(found))
        self._count += found.count if isinstance(found, PlainFiles) else 1
        if self._count >= _PER_BLOCK:
            self._close_block()

    def _close_block(self) -> None:
        block = _Block.of(self._rows)
        self._rows, self._count = [], 0
        self._bytes_left -= len(block.stored)
        if self._bytes_left < 0:
            self.is_complete = False
            self._blocks.clear()
        else:
            self._blocks.append(block)

    def through(
        self,
        is_wanted: Callable[[str], bool] | None = None,
        compresses: Callable[[str], bool] = lambda file_type: True,
        choice: Choice = ALL,
    ) -> Iterator[Candidate | native.ingest.FileList]:
        """Those of a choice, and of a type that is wanted, in order: plain files by the directory,
        with whether to compress them by their type."""
        yield from chosen_work(self.rows(), is_wanted, compresses, choice)

    def rows(self) -> Iterator[Row]:
        """All, in order."""
        for block in self._blocks:
            yield from block.rows()
        yield from self._rows


def chosen_work(
    rows: Iterable[Row],
    is_wanted: Callable[[str], bool] | None,
    compresses: Callable[[str], bool],
    choice: Choice,
) -> Iterator[Candidate | native.ingest.FileList]:
    """As :meth:`CandidateCache.through`, of some rows."""
    for row in rows:
        if len(row) == 4:
            directory, packed, suffixes, _ = row
            types = {suffix: type_of_suffix(suffix) for suffix in suffixes}
            as_is = {suffix for suffix, name in types.items() if not compresses(name)}
            chosen = None
            if is_wanted is not None or choice is not ALL:
                top = top_of(directory)
                chosen = {
                    suffix
                    for suffix, name in types.items()
                    if (is_wanted is None or is_wanted(name)) and choice.has(FileClass(top, name))
                }
            if chosen != set():
                yield native.ingest.FileList(
                    directory, packed, chosen, as_is, choice.sample, choice.sizes
                )
        else:
            path, identity, attribute, work_bytes, owner = row
            is_chosen = is_wanted is None or is_wanted(type_of(path))
            found = FileIdentity._make(identity)
            if is_chosen and choice.takes(path, found.inode, found.size):
                yield Candidate(path, found, attribute, work_bytes, owner)
