"""The service's memory of a volume: hints of its catalogue (``dedupd_core/volume/hints.py``).

Unlike jobs, the service says so where the catalogue cannot be used.
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
"""An hourly run for half a year; a sample of 200 bytes after each run that changed something."""


@dataclass(frozen=True, slots=True)
class Savings:
    """The content and the size of a volume at a time (seconds since 1970)."""

    time_s: float
    files: int
    files_optimized: int
    logical_bytes: int
    optimized_bytes: int
    plain_bytes: int
    """What all files would take if none was a stub, in blocks."""
    occupied_bytes: int
    free_bytes: int
    quarantined_records: int = 0
    """Records that scrub found damaged and could not repair."""
    garbage_bytes: int = 0
    """What a compaction would give back."""
    size_bytes: int = 0
    """Of the file system."""
    waiting_files: int = 0
    """Plain files, and bytes of them, that the next optimize takes (``jobs/usage/backlog.py``)."""
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
    """Why bytes are not stored (``jobs/usage/volume_figures.py``); 0 of a shared store."""
    compression_bytes: int = 0
    refined_bytes: int = 0
    local_bytes: int = 0
    """In optimized files' own blocks."""

    @property
    def saved_bytes(self) -> int:
        """0 where files and store take more than plain files would."""
        return max(0, self.plain_bytes - self.occupied_bytes)

    @property
    def in_policy_files(self) -> int:
        """Files that are optimized, and those that will be."""
        return self.files_optimized + self.waiting_files + self.young_files

    @property
    def saved_fraction(self) -> float:
        return self.saved_bytes / self.plain_bytes if self.plain_bytes else 0.0

    @classmethod
    def of_figures(cls, row: Mapping[str, Any], time_s: float) -> Self:
        """The part of a volume's figures (``jobs/usage/volume_figures.py``) that is kept."""
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
        """As it is told, with what follows from it."""
        return {
            **asdict(self),
            "saved_bytes": self.saved_bytes,
            "saved_fraction": self.saved_fraction,
            "in_policy_files": self.in_policy_files,
        }


WEEK_S = 7 * 86400.0

FLOW_S_MIN = 3600.0
"""A shorter time says little of a day."""

RUNS_AT_ONCE = 20
"""In memory: a report has some kilobytes, and up to a hundred messages."""


@dataclass(frozen=True, slots=True)
class Flow:
    """How many bytes a day come to be optimized, and are, between two times of the last week
    (seconds since 1970)."""

    since_s: float
    until_s: float
    in_bytes_per_day: float
    out_bytes_per_day: float


def flow_of(samples: Sequence[Savings], optimized: Iterable[tuple[float, int]]) -> Flow | None:
    """The flow between the first and the last sample; None where they tell too little.

    ``optimized``: when runs of optimize ended, and how many bytes they took. What came in is what
    they took, and what waits now beyond what waited at first.
    """
    if not samples or samples[-1].time_s - samples[0].time_s < FLOW_S_MIN:
        return None
    since_s, until_s = samples[0].time_s, samples[-1].time_s
    days = (until_s - since_s) / 86400
    out = sum(size_bytes for ended_s, size_bytes in optimized if since_s < ended_s <= until_s)
    first, last = (one.waiting_bytes + one.young_bytes for one in (samples[0], samples[-1]))
    return Flow(since_s, until_s, max(0, out + last - first) / days, out / days)


T = TypeVar("T", TaskHistory, Savings)


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything that is read when the service gets to know a volume."""

    tasks: Mapping[TaskName, TaskHistory]
    paused: bool
    savings: Savings | None


class History:
    """The catalogue of the volume whose ``.dedupd`` is ``base``. All raise CatalogUnusable."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._directory = catalogue_of(base)

    def load(self) -> Memory:
        with Catalogue(self._directory) as catalog:
            tasks = {
                name: history
                for name in TASKS
                if (history := _decoded(TaskHistory, catalog.get(HintKey.TASKS.of(name))))
                is not None
            }
            latest = catalog.latest(HintKey.SAVINGS, 1)
            savings = _decoded(Savings, latest[0]) if latest else None
            return Memory(tasks, catalog.get(HintKey.PAUSED) is True, savings)

    def note_task(self, name: TaskName, history: TaskHistory) -> None:
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.TASKS.of(name), asdict(history))

    def note_paused(self, paused: bool) -> None:
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.PAUSED, paused)

    def note_run(self, started_s: float, report: Mapping[str, Any]) -> None:
        """Keep a run that could not keep itself, because it failed."""
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.RUNS.at(started_s), dict(report))

    def note_savings(self, savings: Savings) -> None:
        with Catalog(self._directory) as catalog:
            catalog.put(HintKey.SAVINGS.at(savings.time_s), asdict(savings))
            catalog.keep_latest(HintKey.SAVINGS, SAVINGS_KEPT)
            catalog.keep_latest(HintKey.RUNS, RUNS_KEPT)

    def runs(self, count: int, before_ns: int | None = None) -> list[dict[str, Any]]:
        """The last runs that began before a time (ns since 1970, None: now), newest first."""
        return Hints(self._directory).runs(count, before_ns)

    def damage_met(self) -> int:
        """How many records readers could not read, since a scrub has looked."""
        directory = self._directory
        with opened(os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            membership = membership_at(fd)
        if membership is not None:
            directory = catalogue_of(membership.name)
        return len(RepairNotes(Hints(directory)).pending())

    def flow(self, now_s: float) -> Flow | None:
        """What came in and went out in the last week, as far as it was seen."""
        samples = [one for one in self.savings(SAVINGS_KEPT) if one.time_s >= now_s - WEEK_S]
        return flow_of(samples, self._optimized(now_s - WEEK_S)) if samples else None

    def _optimized(self, since_s: float) -> Iterator[tuple[float, int]]:
        """When the runs of optimize ended that began since then, and how many bytes they took."""
        before_ns = None
        while found := self.runs(RUNS_AT_ONCE, before_ns):
            for run in found:
                if run["started_s"] < since_s:
                    return
                if run.get("job") == "optimize":
                    ended_s = run["started_s"] + run["resources"]["wall_s"]
                    length_bytes = run.get("logical_bytes", 0)
                    # What waits is counted without holes, so what was done is, too.
                    yield ended_s, min(length_bytes, run.get("freed_bytes", length_bytes))
            before_ns = int(found[-1]["started_s"] * 1e9)

    def savings(self, count: int) -> list[Savings]:
        """The last samples, oldest first."""
        with Catalogue(self._directory) as catalog:
            found = catalog.latest(HintKey.SAVINGS, count)
        return [one for raw in reversed(found) if (one := _decoded(Savings, raw)) is not None]


def _decoded(kind: type[T], raw: Any) -> T | None:
    """A record; None where it is not there, or not one that this version wrote."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(raw, dict) or not needed <= set(raw) <= names:
        return None
    if not all(isinstance(value, (int, float)) for value in raw.values()):
        return None
    return kind(**raw)
