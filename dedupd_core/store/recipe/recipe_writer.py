"""Recipes: writing the tree of nodes for a file's chunks."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import recipe
from dedupd_core.format.ids import HOLE
from dedupd_core.format.recipe import DIGEST_BYTES, RecipeRef
from dedupd_core.store.chunk_index import ChunkIndex
from dedupd_core.store.encoded_records import encode_records
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT, RecipeRow
from dedupd_core.store.writer import ContainerWriter, NewRecords


@dataclass(slots=True)
class _Run:
    """Nodes with consecutive ids, all in one container, that are not appended yet."""

    first_id: int
    payloads: list[bytes] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)

    @property
    def next_id(self) -> int:
        return self.first_id + len(self.payloads)


class RecipeWriter:
    """Stores recipe nodes; equal nodes are stored once.

    A lost recipe is a lost file, and recipes are small, about a thousandth of their files: so each
    is to be stored twice. :meth:`take_copies` gives the records to be repeated.
    """

    def __init__(self, writer: ContainerWriter, index: ChunkIndex, fingerprint: str) -> None:
        self._writer = writer
        self._copies: list[tuple[fmt.Record, bytes]] = []
        self._index = index
        self._algorithm = fingerprint
        self._runs: list[_Run] = []
        self._pending: dict[bytes, int] = {}

    def use_index(self, index: ChunkIndex) -> None:
        """Look nodes up in another index from here on. Everything must have been flushed."""
        assert not self._runs
        self._index = index

    def add_node(self, level: int, rows: Sequence[RecipeRow]) -> tuple[RecipeRow, bytes]:
        """A node over ``rows``: as a row of the level above, and its record's fingerprint."""
        content = recipe.content_digest([(row.fingerprint, row.length) for row in rows])
        payload = recipe.encode_node(
            level, content, [(row.chunk, row.length, row.fingerprint) for row in rows]
        )
        fingerprint = native.hashing.fingerprint(payload, self._algorithm)
        node = self._pending.get(fingerprint) or self._index.lookup(fingerprint)[0]
        if node == 0:
            node = self._writer.reserve(1, len(payload))
            if not self._runs or node != self._runs[-1].next_id:
                self._runs.append(_Run(node))
            self._runs[-1].payloads.append(payload)
            self._runs[-1].fingerprints.append(fingerprint)
            self._pending[fingerprint] = node
        return RecipeRow(node, sum(row.length for row in rows), content), fingerprint

    def flush(self) -> None:
        """Append the nodes added since the last flush. Raises NoSpace, and may be tried again."""
        while self._runs:
            self._append(self._runs[0])
            self._runs.pop(0)
        self._pending.clear()

    def _append(self, run: "_Run") -> None:
        lengths = array("I", (len(p) for p in run.payloads))
        starts = array("I", accumulate(lengths[:-1], initial=0))
        encoded = encode_records(b"".join(run.payloads), starts, lengths)
        fingerprints = b"".join(run.fingerprints)
        hints = bytes(lengths.itemsize * len(lengths))
        self._writer.append(run.first_id, NewRecords(fingerprints, lengths, hints), encoded)
        self._index.insert(fingerprints, range(run.first_id, run.next_id))
        self._note_copies(run, encoded)

    def _note_copies(self, run: "_Run", encoded: native.codec.Encoded) -> None:
        view = memoryview(encoded)
        columns = zip(
            run.fingerprints,
            map(len, run.payloads),
            memoryview(encoded.starts).cast("I"),
            memoryview(encoded.stored_lengths).cast("I"),
            encoded.codecs,
            memoryview(encoded.checksums).cast("Q"),
            strict=True,
        )
        for at, (fingerprint, length, start, stored, codec, checksum) in enumerate(columns):
            payload = view[start + fmt.RECORD_HEADER_BYTES :][:stored]
            record = fmt.Record(
                kind=fmt.RecordKind.COPY,
                codec=codec,
                raw_length=length,
                stored_length=stored,
                fingerprint=fingerprint,
                target=run.first_id + at,
                checksum=checksum,
            )
            self._copies.append((record, bytes(payload)))

    def take_copies(self) -> list[tuple[fmt.Record, bytes]]:
        """The records that were appended since the last call, each to be repeated once it is
        durable: until then a crash may give its id to another one."""
        taken, self._copies = self._copies, []
        return taken


class RecipeProgress(NamedTuple):
    """How far the recipe of a file has grown: ``length`` bytes, in chunks and finished nodes."""

    length: int
    rows: tuple[RecipeRow, ...]
    levels: tuple[tuple[RecipeRow, ...], ...]

    def to_json(self) -> list[Any]:
        """For the catalogue."""
        return [self.length, *(_rows_to_json(r) for r in (self.rows, *self.levels))]

    @classmethod
    def from_json(cls, value: list[Any]) -> "RecipeProgress":
        """Raises ValueError, TypeError where it is not what :meth:`to_json` gave."""
        length, rows, *levels = value
        return cls(int(length), _rows_from_json(rows), tuple(_rows_from_json(r) for r in levels))


def _rows_to_json(rows: Sequence[RecipeRow]) -> list[tuple[int, int, str]]:
    return [(row.chunk, row.length, row.fingerprint.hex()) for row in rows]


def _rows_from_json(rows: list[Any]) -> tuple[RecipeRow, ...]:
    return tuple(RecipeRow(int(c), int(n), bytes.fromhex(f)) for c, n, f in rows)


class RecipeBuilder:
    """The recipe of one file, grown chunk by chunk in bounded memory."""

    def __init__(self, writer: RecipeWriter) -> None:
        self._writer = writer
        self._rows: list[RecipeRow] = []
        self._levels: list[list[RecipeRow]] = []
        self.length = 0

    @classmethod
    def resumed(cls, writer: RecipeWriter, growth: RecipeProgress) -> "RecipeBuilder":
        """A builder that goes on where another one was."""
        builder = cls(writer)
        builder.length = growth.length
        builder._rows = list(growth.rows)
        builder._levels = [list(rows) for rows in growth.levels]
        return builder

    @property
    def growth(self) -> RecipeProgress:
        """How far the recipe is now."""
        return RecipeProgress(self.length, tuple(self._rows), tuple(map(tuple, self._levels)))

    def push(self, chunk: int, length: int, fingerprint: bytes) -> None:
        """Add the next chunk; a ``HOLE`` (fingerprint of zeros) grows the hole before it."""
        rows = self._rows
        self.length += length
        if chunk == HOLE and rows and rows[-1].chunk == HOLE:
            rows[-1] = RecipeRow(HOLE, rows[-1].length + length, HOLE_FINGERPRINT)
            return
        if len(rows) == recipe.FANOUT_MAX:
            self._close(0, rows)
            rows = self._rows = []
        rows.append(RecipeRow(chunk, length, fingerprint if chunk != HOLE else HOLE_FINGERPRINT))

    def _close(self, level: int, rows: list[RecipeRow]) -> None:
        """Turn a full list of rows into a node of the level above."""
        node, _ = self._writer.add_node(level, rows)
        if len(self._levels) == level:
            self._levels.append([])
        above = self._levels[level]
        if len(above) == recipe.FANOUT_MAX:
            self._close(level + 1, above)
            above = self._levels[level] = []
        above.append(node)

    def finish(self) -> RecipeRef:
        """The complete recipe; durable once flushed and synced. The file must not be empty."""
        level, rows = 0, self._rows
        if not self._levels and len(rows) == 1 and rows[0].chunk != HOLE:
            return RecipeRef(rows[0].chunk, rows[0].fingerprint[:DIGEST_BYTES], direct=True)
        while level < len(self._levels):
            self._close(level, rows)
            rows = self._levels[level]
            level += 1
        node, fingerprint = self._writer.add_node(level, rows)
        return RecipeRef(node.chunk, fingerprint[:DIGEST_BYTES])
