"""Notes of damage that a reader has met, for the next scrub to see to first."""

import threading
from collections.abc import Iterable
from typing import NamedTuple

from dedupd_core.format.container import Kind
from dedupd_core.volume.hints import HintKey, Hints

NOTES_MAX = 10_000
"""In one process: a store that is damaged all over is a case for a full scrub."""


class Note(NamedTuple):
    """A record that could not be read."""

    kind: Kind
    record: int


class RepairNotes:
    """Takes notes in the catalogue, each once. Safe to use from several threads."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._noted: set[Note] = set()
        self._lock = threading.Lock()

    def add(self, kind: Kind, record: int) -> None:
        """Note a record; where the catalogue cannot be used now, a later reader does."""
        note = Note(kind, record)
        with self._lock:
            if note in self._noted or len(self._noted) >= NOTES_MAX:
                return
            self._noted.add(note)
        warning = f"damage to record {record} could not be recorded for repair"
        if not self._hints.put(_key(note), list(note), warning):
            with self._lock:
                self._noted.discard(note)

    def pending(self) -> list[Note]:
        """All notes that were not cleared."""
        values = self._hints.latest(HintKey.REPAIRS, NOTES_MAX)
        return sorted(note for note in map(_decode, values) if note is not None)

    def clear(self, notes: Iterable[Note]) -> None:
        """Forget these notes, and those taken here: a scrub has looked at their records."""
        with self._lock:
            done = {*notes, *self._noted}
            self._noted.clear()
        self._hints.delete(map(_key, done))


def _key(note: Note) -> str:
    return HintKey.REPAIRS.of(f"{note.kind.name.lower()}/{note.record:020d}")


def _decode(value: object) -> Note | None:
    if not (isinstance(value, list) and [type(part) for part in value] == [int, int]):
        return None
    try:
        return Note(Kind(value[0]), value[1])
    except ValueError:
        return None
