"""The service's memory of a volume: hints of its catalogue (``dedupd_core/volume/hints.py``).

Unlike jobs, the service reports a catalogue that it cannot use.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Self, TypeVar

from dedupd.service.scheduler import TaskHistory, TaskName
from dedupd_core.stores.membership import membership_at
from dedupd_core.system.files import opened
from dedupd_core.volume.catalog import Catalog, Catalogue, catalogue_of
from dedupd_core.volume.hints import HintKey, Hints
from dedupd_core.volume.repair_notes import RepairNotes
from jobs.specs import TASKS

RUNS_KEPT = 2000
SAVINGS_KEPT = 5000
"""Hourly runs for half a year: one sample of 200 bytes after each run that changed something."""


@dataclass(frozen=True, slots=True)
class Savings:
    """The content and the size of a volume at one time (seconds since 1970)."""

    time_s: float
    files: int
    files_optimized: int
    logical_bytes: int
    optimized_bytes: int
    plain_bytes: int
    """The blocks that all files would need if none was a stub."""
    occupied_bytes: int
    free_bytes: int
    quarantined_records: int = 0
    """Records that scrub found damaged and could not repair."""
    garbage_bytes: int = 0
    """The bytes that a compaction would free."""
    size_bytes: int = 0
    """The size of the file system."""
    waiting_files: int = 0
    """Plain files, and bytes, that the next optimize will process (``jobs/usage/backlog.py``)."""
    waiting_bytes: int = 0
    young_files: int = 0
    young_bytes: int = 0
    small_files: int = 0
    small_bytes: int = 0
    excluded_files: int = 0
    excluded_bytes: int = 0
    saves_little_files: int = 0
    saves_little_bytes: int = 0
    other_files: int = 0
    other_bytes: int = 0
    oldest_waiting_s: float = 0.0
    duplicates_bytes: int = 0
    """The savings by cause (``jobs/usage/volume_figures.py``); 0 for a shared store."""
    compression_bytes: int = 0
    refined_bytes: int = 0
    local_bytes: int = 0
    """The bytes in local blocks of stubs."""

    @property
    def saved_bytes(self) -> int:
        """The bytes saved; 0 if files and store use more space than plain files would."""
        return max(0, self.plain_bytes - self.occupied_bytes)

    @property
    def in_policy_files(self) -> int:
        """The number of files that are optimized or pending."""
        return self.files_optimized + self.waiting_files + self.young_files

    @property
    def saved_fraction(self) -> float:
        return self.saved_bytes / self.plain_bytes if self.plain_bytes else 0.0

    @classmethod
    def of_figures(cls, row: Mapping[str, Any], time_s: float) -> Self:
        """Take the values to keep from a volume's figures (``jobs/usage/volume_figures.py``)."""
        known = {field.name for field in fields(cls)}
        garbage = row["garbage"]
        return cls(
            time_s=time_s,
            quarantined_records=garbage["quarantined_records"],
            garbage_bytes=garbage["compaction_frees_bytes"],
            **{name: value for name, value in row.items() if name in known},
            **(row["causes"] or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the values computed from them."""
        return {
            **asdict(self),
            "saved_bytes": self.saved_bytes,
            "saved_fraction": self.saved_fraction,
            "in_policy_files": self.in_policy_files,
        }


WEEK_S = 7 * 86400.0

FLOW_S_MIN = 3600.0
"""A shorter period is no basis for a daily rate."""

RUNS_AT_ONCE = 20
"""The number of runs in memory: a report has several kilobytes, and up to a hundred messages."""


@dataclass(frozen=True, slots=True)
class DailyFlow:
    """The flow: bytes per day that became eligible, and that were optimized. Times are in the last
    week (seconds since 1970)."""

    since_s: float
    until_s: float
    in_bytes_per_day: float
    out_bytes_per_day: float


def flow_of(samples: Sequence[Savings], optimized: Iterable[tuple[float, int]]) -> DailyFlow | None:
    """Compute the flow from the first to the last sample; None if they cover too little time."""
    if not samples or samples[-1].time_s - samples[0].time_s < FLOW_S_MIN:
        return None
    since_s, until_s = samples[0].time_s, samples[-1].time_s
    days = (until_s - since_s) / 86400
    out = sum(size_bytes for ended_s, size_bytes in optimized if since_s < ended_s <= until_s)
    first, last = (one.waiting_bytes + one.young_bytes for one in (samples[0], samples[-1]))
    return DailyFlow(since_s, until_s, max(0, out + last - first) / days, out / days)


T = TypeVar("T", TaskHistory, Savings)


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """The state that the service reads when it starts to manage the volume."""

    tasks: Mapping[TaskName, TaskHistory]
    paused: bool
    savings: Savings | None


class History:
    """The catalogue of the volume with this ``.dedupd``. All methods raise CatalogUnusable."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._directory = catalogue_of(base)

    def load(self) -> StoredHistory:
        with Catalogue(self._directory) as catalog:
            tasks = {
                name: history
                for name in TASKS
                if (history := _decoded(TaskHistory, catalog.get(HintKey.TASKS.of(name))))
                is not None
            }
            latest = catalog.latest(HintKey.SAVINGS, 1)
            savings = _decoded(Savings, latest[0]) if latest else None
            return StoredHistory(tasks, catalog.get(HintKey.PAUSED) is True, savings)

    def note_task(self, name: TaskName, history: TaskHistory) -> None:
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.TASKS.of(name), asdict(history))

    def note_paused(self, paused: bool) -> None:
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.PAUSED, paused)

    def note_run(self, started_s: float, report: Mapping[str, Any]) -> None:
        """Record a run that failed before it could record itself."""
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.RUNS.at(started_s), dict(report))

    def note_savings(self, savings: Savings) -> None:
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.SAVINGS.at(savings.time_s), asdict(savings))
            catalog.keep_latest(HintKey.SAVINGS, SAVINGS_KEPT)
            catalog.keep_latest(HintKey.RUNS, RUNS_KEPT)

    def runs(self, count: int, before_ns: int | None = None) -> list[dict[str, Any]]:
        """Return the last runs that started before a time (ns since 1970), newest first."""
        return Hints(self._directory).runs(count, before_ns)

    def damage_met(self) -> int:
        """Count the records that readers could not read since the last scrub."""
        directory = self._directory
        with opened(os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            membership = membership_at(fd)
        if membership is not None:
            directory = catalogue_of(membership.name)
        return len(RepairNotes(Hints(directory)).pending())

    def flow(self, now_s: float) -> DailyFlow | None:
        """Compute the flow of the last week, as far as there are samples."""
        samples = [one for one in self.savings(SAVINGS_KEPT) if one.time_s >= now_s - WEEK_S]
        return flow_of(samples, self._optimized(now_s - WEEK_S)) if samples else None

    def _optimized(self, since_s: float) -> Iterator[tuple[float, int]]:
        """Yield the end and the bytes of each run of optimize that started after ``since_s``."""
        before_ns = None
        while found := self.runs(RUNS_AT_ONCE, before_ns):
            for run in found:
                if run["started_s"] < since_s:
                    return
                if run.get("job") == "optimize":
                    ended_s = run["started_s"] + run["resources"]["wall_s"]
                    length_bytes = run.get("logical_bytes", 0)
                    # Pending bytes are counted without holes, so the optimized bytes are, too.
                    yield ended_s, min(length_bytes, run.get("freed_bytes", length_bytes))
            before_ns = int(found[-1]["started_s"] * 1e9)

    def savings(self, count: int) -> list[Savings]:
        """Return the last samples, the oldest first."""
        with Catalogue(self._directory) as catalog:
            found = catalog.latest(HintKey.SAVINGS, count)
        return [one for raw in reversed(found) if (one := _decoded(Savings, raw)) is not None]


def _decoded(kind: type[T], raw: Any) -> T | None:
    """Decode a record; None if it is missing, or another version wrote it."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(raw, dict) or not needed <= set(raw) <= names:
        return None
    if not all(isinstance(value, (int, float)) for value in raw.values()):
        return None
    return kind(**raw)
