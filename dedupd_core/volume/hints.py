"""Hints: the facts of a volume that its catalogue remembers and may lose.

No hint is believed: the code that uses one checks it. Each can be lost at any time, and a catalogue
that cannot be used now has none and takes none.
"""

import enum
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dedupd_core.errors import CatalogUnusable
from dedupd_core.volume.catalog import Catalog, Catalogue

_log = logging.getLogger("dedupd")

HINTS_MAX = 1 << 20
"""Of one kind, read at a time."""


class HintKey(enum.StrEnum):
    """The key of each kind of hint, and the cost of its loss. A key that ends in a slash is a
    prefix."""

    RUNS = "run/"
    """Reports of runs, by time. A loss costs the history."""
    TASKS = "task/"
    """The last run of each task of the schedule. After a loss a task may run before it is due."""
    SAVINGS = "savings/"
    """Savings of the volume, by time. A loss costs their curve."""
    PAUSED = "paused"
    """Whether the jobs of the volume are paused. A loss resumes them."""
    PARTITIONS = "partitions"
    """The partition of each type of file. A loss costs duplicates, until the next reconcile."""
    CONTAINER_NUMBERS = "containers"
    """The highest container numbers. Where the last container and its table are lost as well, their
    ids come to name other records, so that their second copies cannot be used."""
    UNFINISHED_FILES = "resume/"
    """How far very large files have been read, by inode. A loss has them read from the start."""
    CLASSES = "classes"
    """What classes of files have saved for their cost. Without it a large run learns it anew."""
    LAST_COLLECTION = "gc/last"
    """A digest of the state that the last gc left. Without it the next gc reads recipes even where
    nothing has changed."""
    SCRUB_PROGRESS = "scrub/progress"
    """How far a full scrub is. Without it a full scrub begins at the beginning."""
    HEADERS_SEEN = "headers/"
    """The containers of a kind in which records were seen in their places, how many, and a digest
    of these places. Without it gc reads the headers of what it punches."""
    REFINED = "refined/"
    """How many records of a container a refine run has looked at, by its number, how closely, and
    what was to be won there in vain. A loss has the next one look again."""
    HELD = "held/"
    """The records of a container that only others need which lean on them, by its number, as of the
    last gc. A loss leaves them where they are until the next one."""
    JUDGING = "judging"
    """Whether a run of optimize is at work while a restore fills the volume: one that was killed
    has lost what it noted of files, so that they are read again. A loss costs copies of them."""
    LEFT = "left"
    """The names of files that the last optimize run left, and why. A loss costs the names."""
    DICTIONARIES = "dictionaries"
    """The dictionaries that refine uses, and from how much they were trained. After a loss it uses
    those that records lean on."""
    REPAIRS = "repair/"
    """Damaged records that readers met. Without a note the next scrub finds them in its turn."""

    def of(self, name: object) -> str:
        """The key of one of many."""
        return f"{self}{name}"

    def at(self, time_s: float) -> str:
        """The key of an event; such keys sort by time."""
        return self.at_ns(int(time_s * 1e9))

    def at_ns(self, time_ns: int) -> str:
        return self.of(f"{time_ns:020d}")


class Hints:
    """The hints of a volume."""

    def __init__(self, catalogue: str) -> None:
        """``catalogue`` is the directory of the volume's catalogue."""
        self._catalogue = catalogue

    def get(self, key: str) -> Any:
        """A hint, or None."""
        with suppress(CatalogUnusable), Catalogue(self._catalogue) as catalog:
            return catalog.get(key)
        return None

    def latest(self, prefix: str, count: int = HINTS_MAX) -> list[Any]:
        """The last ``count`` hints whose keys begin with ``prefix``, newest first."""
        with suppress(CatalogUnusable), Catalogue(self._catalogue) as catalog:
            return catalog.latest(prefix, count)
        return []

    def runs(self, count: int, before_ns: int | None = None) -> list[dict[str, Any]]:
        """The reports of the last runs that began before a time (None: now), newest first: users
        ask for them, so this raises CatalogUnusable."""
        end = "" if before_ns is None else HintKey.RUNS.at_ns(before_ns)
        with Catalogue(self._catalogue) as catalog:
            return catalog.latest(HintKey.RUNS, count, end)

    def put(self, key: str, value: Any, warning: str = "") -> bool:
        """Keep a hint; says whether it is kept. ``warning`` is logged where it is not."""
        try:
            with Catalog(self._catalogue) as catalog:
                catalog.put(key, value)
        except CatalogUnusable as error:
            if warning:
                _log.warning("%s: %s", warning, error)
            return False
        return True

    def delete(self, keys: Iterable[str]) -> None:
        with suppress(CatalogUnusable), Catalog(self._catalogue) as catalog:
            for key in keys:
                catalog.delete(key)

    def delete_all(self, prefix: str) -> None:
        """Delete every hint whose key begins with ``prefix``."""
        with suppress(CatalogUnusable), Catalog(self._catalogue) as catalog:
            catalog.delete_all(prefix)
