"""Notes of damage that a reader has met, for the next scrub to see to first.

They are derived state: a note that is lost costs a little time, because scrub finds the damage
again by itself.
"""

import logging
import threading
from collections.abc import Iterable
from typing import NamedTuple

from dedupd.errors import CatalogUnusable
from dedupd.format.container import Kind
from dedupd.volume.catalog import Catalog

_log = logging.getLogger("dedupd")

PREFIX = "repair/"
NOTES_MAX = 10_000
"""In one process: a store that is damaged all over is a case for a full scrub."""


class Note(NamedTuple):
    """A record that could not be read."""

    kind: Kind
    record: int


class RepairNotes:
    """Takes notes in the catalogue, each once. Safe to use from several threads."""

    def __init__(self, directory: str) -> None:
        """``directory`` is the catalogue's."""
        self._directory = directory
        self._noted: set[Note] = set()
        self._lock = threading.Lock()

    def add(self, kind: Kind, record: int) -> None:
        """Note a record; where the catalogue cannot be used now, a later reader does."""
        note = Note(kind, record)
        with self._lock:
            if note in self._noted or len(self._noted) >= NOTES_MAX:
                return
            self._noted.add(note)
        try:
            with Catalog(self._directory) as catalog:
                catalog.put(_key(note), list(note))
        except CatalogUnusable as error:
            _log.warning("damage to record %d is not noted for repair: %s", record, error)
            with self._lock:
                self._noted.discard(note)

    def pending(self) -> list[Note]:
        """All notes that nobody has cleared."""
        try:
            with Catalog(self._directory) as catalog:
                values = catalog.latest(PREFIX, NOTES_MAX)
        except CatalogUnusable:
            return []
        return sorted(note for note in map(_decode, values) if note is not None)

    def clear(self, notes: Iterable[Note]) -> None:
        """Forget these, and what was noted here: a scrub has seen to them."""
        with self._lock:
            done = {*notes, *self._noted}
            self._noted.clear()
        try:
            with Catalog(self._directory) as catalog:
                for note in done:
                    catalog.delete(_key(note))
        except CatalogUnusable:
            pass  # the next scrub looks at them again


def _key(note: Note) -> str:
    return f"{PREFIX}{note.kind.name.lower()}/{note.record:020d}"


def _decode(value: object) -> Note | None:
    if not (isinstance(value, list) and [type(part) for part in value] == [int, int]):
        return None
    try:
        return Note(Kind(value[0]), value[1])
    except ValueError:
        return None
