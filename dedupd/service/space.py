"""The free space of a volume's file system: whether it is short, and when it will be gone.

Below ``space_low`` of the policy the service collects garbage and gives its space back at once, and
optimizes at full speed what is old enough; below ``space_critical`` also younger files.
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
"""Between two looks at the free space; a look takes microseconds."""

RESTORE_IDLE_S = 3600.0

SAMPLE_S = 300.0
SAMPLES_MAX = 12 * 24 * 7
"""A week, for the forecast."""

FORECAST_S_MIN = 1800.0
"""A shorter time says little of the next days."""

FORECAST_S_MAX = 10 * 365 * 86400.0
"""What is further away is not worth a warning, nor true."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The file system at a time (seconds since 1970)."""

    time_s: float
    free_bytes: int
    total_bytes: int
    inodes_used: int
    """0 where the file system does not count them (btrfs)."""


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
    """What was seen of one file system, look by look."""

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
        """Take a sample in. Whether something may have to be done now that had not before."""
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
        """Take in, oldest first, what an earlier life of the service saw, for the forecast."""
        self._samples.extendleft(sorted(samples, key=lambda one: -one.time_s))

    def state(self, policy: Policy) -> SpaceState:
        """The space as the scheduler sees it."""
        age_s = policy.space_min_age_s
        shrinks = self.level is SpaceLevel.CRITICAL and age_s < policy.strictest_age_s
        age = exact_duration(age_s) if shrinks else ""
        restores = policy.restore_mode is RestoreMode.ON
        return SpaceState(self.level, self._since_s, self._removed_s, age, restores)

    @property
    def rate_bytes_per_s(self) -> float | None:
        """How fast the free space becomes less, below zero where it becomes more; None where too
        little was seen."""
        return rate_of([*self._samples, *([self.latest] if self.latest else [])])

    @property
    def full_s(self) -> float | None:
        """When nothing will be free at this rate (seconds since 1970); None for never, or where
        that cannot be told."""
        rate, latest = self.rate_bytes_per_s, self.latest
        if rate is None or latest is None or rate <= 0:
            return None
        left_s = latest.free_bytes / rate
        return latest.time_s + left_s if left_s <= FORECAST_S_MAX else None


class RestoreWatch:
    """When a restore is over (policy ``restore_mode``): nothing has come for an hour."""

    def __init__(self) -> None:
        self._latest_s = 0.0

    def is_over(self, policy: Policy, files_optimized: int, now_s: float) -> bool:
        """Asked at the end of each run of optimize."""
        if policy.restore_mode is RestoreMode.OFF:
            self._latest_s = 0.0
        elif files_optimized or not self._latest_s:
            self._latest_s = now_s
        return 0.0 < self._latest_s < now_s - RESTORE_IDLE_S


@dataclass(frozen=True, slots=True)
class Reclaimable:
    """Space that a job would free. ``bytes`` is None where only the job itself can tell;
    ``length_s`` is the time that its last run took, None where there was none."""

    job: str
    bytes: int | None
    length_s: float | None


def reclaimable(
    histories: Mapping[TaskName, TaskHistory],
    garbage_bytes: int,
    young_bytes: int,
    saved_fraction: float,
) -> list[Reclaimable]:
    """Jobs that free space, the cheapest first, by what the last runs have seen.

    ``young_bytes`` are in files that are too young to be optimized; what comes of them is reckoned
    by what the volume saves altogether.
    """

    def length_s(task: TaskName) -> float | None:
        last = histories.get(task)
        return None if last is None else last.took_s

    return [
        Reclaimable("compact", garbage_bytes, length_s("compact")),
        Reclaimable("gc", None, length_s("gc")),
        Reclaimable("optimize", int(young_bytes * saved_fraction), length_s("throughput")),
    ]


def level_of(
    free_bytes: int, low_bytes: int, critical_bytes: int, before: SpaceLevel
) -> SpaceLevel:
    """How short the space is; a level ends a little above where it begins."""
    for level, threshold in ((SpaceLevel.CRITICAL, critical_bytes), (SpaceLevel.LOW, low_bytes)):
        end = threshold * (CALM_SHARE if before >= level else 1.0)
        if free_bytes < end:
            return level
    return SpaceLevel.ENOUGH


def rate_of(samples: list[Sample]) -> float | None:
    """The slope of a line through the samples, by least squares; None for too short a time."""
    if len(samples) < 3 or samples[-1].time_s - samples[0].time_s < FORECAST_S_MIN:
        return None
    start_s = samples[0].time_s
    times = [one.time_s - start_s for one in samples]
    taken = [float(samples[0].free_bytes - one.free_bytes) for one in samples]
    return linear_regression(times, taken).slope
