"""The free space of a volume's file system: its level, and when it will run out.

Below ``space_low`` of the policy, the service collects garbage and frees its space at once, and
optimizes at full speed all files that are old enough. Below ``space_critical`` it also optimizes
younger files.
"""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import linear_regression

from dedupd.service.scheduler import SpaceLevel, SpaceState, TaskHistory, TaskName
from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.deleted.expiry import CALM_SHARE
from dedupd_core.units import exact_duration

LOOK_S = 5.0
"""The interval between checks of the free space; a check takes microseconds."""

RESTORE_IDLE_S = 3600.0

SAMPLE_S = 300.0
SAMPLES_MAX = 12 * 24 * 7
"""One week of samples, for the forecast."""

FORECAST_S_MIN = 1800.0
"""A shorter period is no basis for a forecast."""

FORECAST_S_MAX = 10 * 365 * 86400.0
"""A forecast beyond this is neither useful nor accurate."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The file system at one time (seconds since 1970)."""

    time_s: float
    free_bytes: int
    total_bytes: int
    inodes_used: int
    """0 if the file system does not count inodes (btrfs)."""


def sample_of(directory: str, now_s: float) -> Sample:
    """Raises OSError."""
    status = os.statvfs(directory)
    return Sample(
        now_s,
        status.f_bavail * status.f_frsize,
        status.f_blocks * status.f_frsize,
        status.f_files - status.f_ffree if status.f_files else 0,
    )


class SpaceWatch:
    """The measurements of one file system."""

    def __init__(self) -> None:
        self.latest: Sample | None = None
        self.level = SpaceLevel.ENOUGH
        self.low_bytes = 0
        self.critical_bytes = 0
        self._since_s = 0.0
        self._removed_s = 0.0
        self._restores = False
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def look(self, sample: Sample, policy: Policy) -> bool:
        """Add a sample. Returns whether the scheduler may have new work now."""
        before, last = self.level, self.latest
        self.low_bytes = policy.space_low.bytes_of(sample.total_bytes)
        self.critical_bytes = policy.space_critical.bytes_of(sample.total_bytes)
        self.level = level_of(sample.free_bytes, self.low_bytes, self.critical_bytes, before)
        if self.level > before:
            self._since_s = sample.time_s
        is_removed = last is not None and sample.inodes_used < last.inodes_used
        if is_removed:
            self._removed_s = sample.time_s
        before_restores, self._restores = self._restores, policy.restore_mode is RestoreMode.ON
        begins = self._restores and not before_restores
        self.latest = sample
        if not self._samples or sample.time_s >= self._samples[-1].time_s + SAMPLE_S:
            self._samples.append(sample)
        return begins or self.level > before or (is_removed and self.level > SpaceLevel.ENOUGH)

    def recall(self, samples: Iterable[Sample]) -> None:
        """Add samples of an earlier service process, oldest first, for the forecast."""
        self._samples.extendleft(sorted(samples, key=lambda one: -one.time_s))

    def state(self, policy: Policy) -> SpaceState:
        """Return the scheduler's view of the space."""
        age_s = policy.space_min_age_s
        shrinks = self.level is SpaceLevel.CRITICAL and age_s < policy.strictest_age_s
        age = exact_duration(age_s) if shrinks else ""
        restores = policy.restore_mode is RestoreMode.ON
        return SpaceState(self.level, self._since_s, self._removed_s, age, restores)

    @property
    def rate_bytes_per_s(self) -> float | None:
        """The rate at which free space shrinks, negative if it grows; None if there are too few
        samples."""
        return rate_of([*self._samples, *([self.latest] if self.latest else [])])

    @property
    def full_s(self) -> float | None:
        """The time when the space runs out at this rate (seconds since 1970); None if never or
        unknown."""
        rate, latest = self.rate_bytes_per_s, self.latest
        if rate is None or latest is None or rate <= 0:
            return None
        left_s = latest.free_bytes / rate
        return latest.time_s + left_s if left_s <= FORECAST_S_MAX else None


class RestoreWatch:
    """Detects the end of a restore (policy ``restore_mode``): no new files for an hour."""

    def __init__(self) -> None:
        self._latest_s = 0.0

    def is_over(self, policy: Policy, files_optimized: int, now_s: float) -> bool:
        """Return whether the restore has ended. Call this after each run of optimize."""
        if policy.restore_mode is RestoreMode.OFF:
            self._latest_s = 0.0
        elif files_optimized or not self._latest_s:
            self._latest_s = now_s
        return 0.0 < self._latest_s < now_s - RESTORE_IDLE_S


@dataclass(frozen=True, slots=True)
class ReclaimableSpace:
    """Space that a job would free. ``bytes`` is None if only the job itself can find out;
    ``length_s`` is the time of its last run, None without a run."""

    job: str
    bytes: int | None
    length_s: float | None


def reclaimable(
    histories: Mapping[TaskName, TaskHistory],
    garbage_bytes: int,
    young_bytes: int,
    saved_fraction: float,
) -> list[ReclaimableSpace]:
    """List jobs that free space, the cheapest first, as estimated from the last runs.

    ``young_bytes`` are in files that are too young for optimize; their savings are estimated from
    the savings of the entire volume.
    """

    def length_s(task: TaskName) -> float | None:
        last = histories.get(task)
        return None if last is None else last.took_s

    return [
        ReclaimableSpace("compact", garbage_bytes, length_s("compact")),
        ReclaimableSpace("gc", None, length_s("gc")),
        ReclaimableSpace("optimize", int(young_bytes * saved_fraction), length_s("throughput")),
    ]


def level_of(
    free_bytes: int, low_bytes: int, critical_bytes: int, before: SpaceLevel
) -> SpaceLevel:
    """Return the level of free space; a level ends slightly above its start."""
    for level, threshold in ((SpaceLevel.CRITICAL, critical_bytes), (SpaceLevel.LOW, low_bytes)):
        end = threshold * (CALM_SHARE if before >= level else 1.0)
        if free_bytes < end:
            return level
    return SpaceLevel.ENOUGH


def rate_of(samples: list[Sample]) -> float | None:
    """Return the slope of a least-squares line through the samples; None for too short a time."""
    if len(samples) < 3 or samples[-1].time_s - samples[0].time_s < FORECAST_S_MIN:
        return None
    start_s = samples[0].time_s
    times = [one.time_s - start_s for one in samples]
    taken = [float(samples[0].free_bytes - one.free_bytes) for one in samples]
    return linear_regression(times, taken).slope
