"""What a volume remembers in its catalogue, and may lose: hints.

No hint is believed: the code that uses one checks it. Each can be lost at any time, and a catalogue
that cannot be used now has none and takes none.
"""

import enum
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dedupd.errors import CatalogUnusable
from dedupd.volume.catalog import Catalog

_log = logging.getLogger("dedupd")

HINTS_MAX = 1 << 20
"""Of one kind, read at a time."""


class HintKey(enum.StrEnum):
    """Where the hints of each kind are kept, and what losing them costs. A key that ends in a slash
    begins those of many."""

    RUNS = "run/"
    """Reports of runs, by time. The history."""
    TASKS = "task/"
    """The last run of each task of the schedule. A task may run again before it is due."""
    SAVINGS = "savings/"
    """What the volume saved, by time. The curve of savings."""
    PAUSED = "paused"
    """Whether the jobs of the volume are paused. They go on."""
    PARTITIONS = "partitions"
    """Where each type of file goes. Duplicates in several partitions until the next reconcile."""
    CONTAINER_NUMBERS = "containers"
    """The highest container numbers. Where a last container and its table are lost, too: their
    second copies, because their ids come to name other records."""
    UNFINISHED_FILES = "resume/"
    """How far very large files are, by inode. They are read again from the start."""
    LAST_COLLECTION = "gc/last"
    """What the last gc left. The next one reads recipes although nothing has changed."""
    SCRUB_PROGRESS = "scrub/progress"
    """How far a full scrub is. It begins at the beginning."""
    REPAIRS = "repair/"
    """Damaged records that readers met. A scrub finds them when it comes to them."""

    def of(self, name: object) -> str:
        """The key of one of many."""
        return f"{self}{name}"

    def at(self, time_s: float) -> str:
        """The key of what happened then; such keys sort by time."""
        return self.of(f"{int(time_s * 1e9):020d}")


class Hints:
    """The hints of a volume."""

    def __init__(self, catalogue: str) -> None:
        """``catalogue`` is the directory of the volume's catalogue."""
        self._catalogue = catalogue

    def get(self, key: str) -> Any:
        """A hint, or None."""
        with suppress(CatalogUnusable), Catalog(self._catalogue) as catalog:
            return catalog.get(key)
        return None

    def latest(self, prefix: str, count: int = HINTS_MAX) -> list[Any]:
        """The last ``count`` hints whose keys begin with ``prefix``, newest first."""
        with suppress(CatalogUnusable), Catalog(self._catalogue) as catalog:
            return catalog.latest(prefix, count)
        return []

    def runs(self, count: int) -> list[dict[str, Any]]:
        """The reports of the last runs, newest first: users ask for them, so this raises
        CatalogUnusable."""
        with Catalog(self._catalogue) as catalog:
            return catalog.latest(HintKey.RUNS, count)

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
