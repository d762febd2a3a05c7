"""Stores the content of a stream: its chunks, its recipes, and stubs for its files."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Protocol

from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.format.container import Record, RecordKind
from dedupd_core.format.domain import FIRST
from dedupd_core.format.ids import HOLE
from dedupd_core.format.stream import Frame
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd_core.store.recipe.recipe_writer import RecipeBuilder
from dedupd_core.volume.volume import Volume
from jobs.backup.received import Received, ReceivedChunk, ReceivedRecipe
from jobs.backup.switch import TreeBuilder
from jobs.frame.run import JobRun
from jobs.optimize.store_session import StoreSession


class RecipeIntake(Protocol):
    """A recipe that is being received."""

    def push(self, number: int, chunk: ReceivedChunk) -> None:
        """Add the next part: the chunk with this number, counted from 0."""

    def push_hole(self, length: int) -> None: ...

    def finish(self) -> ReceivedRecipe:
        """Return the recipe, for the caller to record."""


class Intake(Protocol):
    """A store that receives a stream. ``present`` counts the chunks that it already had;
    ``group_bytes`` counts the bytes added since the last :meth:`sync`."""

    present: int
    group_bytes: int

    def has(self, fingerprints: bytes) -> bytes:
        """Return a byte per fingerprint: 1 if the store has the chunk."""

    def add(self, frames: Sequence[Frame]) -> list[ReceivedChunk]:
        """Add received chunks. Their content matches their fingerprints."""

    def add_known(self, rows: Sequence[tuple[bytes, int]]) -> list[ReceivedChunk]:
        """Add chunks that the sender expects in this store, by fingerprint and length.

        Raises UsageError, now or at the next :meth:`sync`, if one is missing.
        """

    def begin_recipe(self) -> RecipeIntake: ...

    def sync(self) -> None:
        """Make all additions durable."""


class Reception(ABC):
    """The steps of receiving that depend on the kind of store."""

    def __init__(self, volume: Volume, run: JobRun) -> None:
        self._volume, self._run = volume, run

    @abstractmethod
    def intake(self, received: Received) -> AbstractContextManager[Intake]:
        """Open the store for a stream."""

    @abstractmethod
    def build(self, received: Received) -> None:
        """Make the tree of a completely received stream, durably."""

    @abstractmethod
    def end(self, held: Sequence[str]) -> None:
        """Finish after the switch. Until now, the file versions ``held`` have kept chunks."""


class LocalReception(Reception):
    """Receives into containers."""

    def __init__(self, volume: Volume, run: JobRun) -> None:
        """Raises UsageError for a volume whose chunks are in a cluster."""
        volume.require_containers("receive")
        super().__init__(volume, run)

    @contextmanager
    def intake(self, received: Received) -> Iterator[Intake]:
        volume = self._volume
        policy = volume.policy()
        with closing(StoreSession(volume, policy.index, FIRST, self._run.safe_point)) as store:
            yield LocalIntake(volume, store)
            store.save_index()

    def build(self, received: Received) -> None:
        self._volume.note_stubs()
        TreeBuilder(self._volume, self._run, received).build()

    def end(self, held: Sequence[str]) -> None:
        """Do nothing: containers keep their records."""


class LocalIntake:
    """Containers that receive a stream."""

    def __init__(self, volume: Volume, store: StoreSession) -> None:
        self._volume, self._store = volume, store
        self.present = self.group_bytes = 0

    def has(self, fingerprints: bytes) -> bytes:
        return bytes(bool(record_id) for record_id in self._store.index.lookup(fingerprints))

    def add(self, frames: Sequence[Frame]) -> list[ReceivedChunk]:
        store = self._store
        ids = list(store.index.lookup(b"".join(frame.fingerprint for frame in frames)))
        new: dict[bytes, Frame] = {}
        for frame, known in zip(frames, ids, strict=True):
            if not known:
                new.setdefault(frame.fingerprint, frame)
        made: dict[bytes, int] = {}
        if new:
            stored = sum(len(frame.payload) for frame in new.values())
            first = store.chunks.reserve(len(new), stored)
            records = [(_record(frame), frame.stored) for frame in new.values()]
            store.chunks.append_copies(first, records, RecordKind.DATA)
            made = {fingerprint: first + at for at, fingerprint in enumerate(new)}
            store.index.insert(b"".join(new), range(first, first + len(new)))
            self.group_bytes += stored
        rows = []
        for frame, known in zip(frames, ids, strict=True):
            fingerprint = frame.fingerprint
            rows.append(ReceivedChunk(known or made[fingerprint], frame.raw_length, fingerprint))
            self.present += bool(known)
        return rows

    def add_known(self, rows: Sequence[tuple[bytes, int]]) -> list[ReceivedChunk]:
        ids = self._store.index.lookup(b"".join(fingerprint for fingerprint, _ in rows))
        if not all(ids):
            raise lacking(self._volume)
        self.present += len(rows)
        return [
            ReceivedChunk(chunk, length, fingerprint)
            for chunk, (fingerprint, length) in zip(ids, rows, strict=True)
        ]

    def begin_recipe(self) -> RecipeIntake:
        return _LocalRecipe(self._store)

    def sync(self) -> None:
        noted = self._store.begin_sync()
        self._store.finish_sync(noted)
        self._store.keep(noted)
        self.group_bytes = 0


class _LocalRecipe:
    def __init__(self, store: StoreSession) -> None:
        self._builder = RecipeBuilder(store.recipes)

    def push(self, number: int, chunk: ReceivedChunk) -> None:
        self._builder.push(chunk.chunk, chunk.length, chunk.fingerprint)

    def push_hole(self, length: int) -> None:
        self._builder.push(HOLE, length, HOLE_FINGERPRINT)

    def finish(self) -> ReceivedRecipe:
        length = self._builder.length
        return ReceivedRecipe(self._builder.finish(), length)


def lacking(volume: Volume) -> UsageError:
    """Return the error for a chunk that is missing here."""
    return UsageError(
        f"{volume.root}: lacks a chunk of the previous state; send with --negotiate, or without"
        " --since"
    )


def _record(frame: Frame) -> Record:
    fingerprint, stored = frame.fingerprint, frame.stored
    return Record(
        kind=RecordKind.DATA,
        codec=frame.codec,
        raw_length=frame.raw_length,
        stored_length=len(stored),
        fingerprint=fingerprint,
        checksum=native.hashing.xxh3_64(stored),
    )
