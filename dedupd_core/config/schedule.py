"""Schedules of jobs as an administrator writes them, and their time windows.

    "off"                            never
    "every 1h"                       this time after the start of its last run, all day
    "daily 01:00 for 5h"             a window each day
    "Sat 02:45 for 8h"               a window on days of the week: "Mon-Fri", "Tue,Thu"
    "first Sun 03:00 for 12h"        a window on the first such day of a month

A window starts at a time of the local clock and lasts a number of hours of real time, even if the
clock changes. A time that the clock skips in spring means the time after the gap. A time that
occurs twice in autumn means the first one.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

from dedupd_core.errors import UsageError
from dedupd_core.units import brief, exact_duration, parse_duration

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

INTERVAL_S_MIN = 1.0
LENGTH_S_MIN, LENGTH_S_MAX = 1.0, 7 * 86400.0

_LOOK_DAYS = 45
"""Each kind of first day recurs within five weeks, and a window lasts at most one week."""

_CALENDAR = re.compile(
    r"(?:(first)\s+)?([A-Za-z,\-]+)\s+([0-9]{1,2}):([0-9]{2})\s+for\s+(\S+)", re.ASCII
)

_HOW = 'write "off", "every 1h", "daily 01:00 for 5h", "Mon-Fri 22:00 for 4h" or "first Sun …"'


@dataclass(frozen=True, slots=True)
class Off:
    """Never."""


@dataclass(frozen=True, slots=True)
class Every:
    """All the time, with this interval."""

    interval_s: float


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The time from one instant up to, but not including, another; seconds since 1970."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Calendar:
    """A window on some days, starting at a time of the local clock."""

    days: frozenset[int]
    """0 is Monday."""
    start_minute: int
    length_s: float
    first_of_month: bool = False

    def latest(self, now_s: float, zone: tzinfo | None = None) -> TimeWindow | None:
        """Return the last window that has started. ``zone`` None means the local time zone."""
        day = datetime.fromtimestamp(now_s, zone).date() + timedelta(1)
        for _ in range(_LOOK_DAYS):
            if self._matches(day) and (start := self._start(day, zone)) <= now_s:
                return TimeWindow(start, start + self.length_s)
            day -= timedelta(1)
        return None

    def next_start(self, now_s: float, zone: tzinfo | None = None) -> float:
        """Return the start of the next window."""
        day = datetime.fromtimestamp(now_s, zone).date() - timedelta(1)
        for _ in range(_LOOK_DAYS):
            if self._matches(day) and (start := self._start(day, zone)) > now_s:
                return start
            day += timedelta(1)
        raise AssertionError("every kind of day occurs")

    def _matches(self, day: date) -> bool:
        return day.weekday() in self.days and (not self.first_of_month or day.day <= 7)

    def _start(self, day: date, zone: tzinfo | None) -> float:
        hour, minute = divmod(self.start_minute, 60)
        return datetime.combine(day, time(hour, minute), zone).timestamp()


Schedule = Off | Every | Calendar


def between_s(schedule: Schedule, now_s: float, zone: tzinfo | None = None) -> float | None:
    """Return the time between two starts, around now; None for never."""
    if isinstance(schedule, Off):
        return None
    if isinstance(schedule, Every):
        return schedule.interval_s
    window = schedule.latest(now_s, zone)
    return None if window is None else schedule.next_start(now_s, zone) - window.start_s


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule. Raises UsageError with an example of a valid one."""
    words = text.split()
    if words == ["off"]:
        return Off()
    if len(words) == 2 and words[0] == "every":
        interval_s = parse_duration(words[1])
        if interval_s < INTERVAL_S_MIN:
            raise UsageError("write at least one second")
        return Every(interval_s)
    match = _CALENDAR.fullmatch(" ".join(words))
    if match is None:
        raise UsageError(_HOW)
    first, days, hour, minute, length = match.groups()
    if int(hour) > 23 or int(minute) > 59:
        raise UsageError(f"{hour}:{minute} is not a time of day; write 00:00 to 23:59")
    length_s = parse_duration(length)
    if not LENGTH_S_MIN <= length_s <= LENGTH_S_MAX:
        raise UsageError("write a window of one second to one week")
    return Calendar(_days(days), int(hour) * 60 + int(minute), length_s, first is not None)


def _days(text: str) -> frozenset[int]:
    if text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start, end = _day(first), _day(last) if dash else _day(first)
        found.update(day % 7 for day in range(start, end + 1 if end >= start else end + 8))
    return frozenset(found)


def _day(text: str) -> int:
    name = text.capitalize()
    if name not in DAYS:
        raise UsageError(f"{brief(text)} is not a day; write daily, or {', '.join(DAYS)}")
    return DAYS.index(name)


def show_schedule(schedule: Schedule) -> str:
    """Format a schedule as a text that :func:`parse_schedule` reads as an equal one."""
    if isinstance(schedule, Off):
        return "off"
    if isinstance(schedule, Every):
        return f"every {exact_duration(schedule.interval_s)}"
    days = ",".join(DAYS[day] for day in sorted(schedule.days))
    if len(schedule.days) == 7:
        days = "daily"
    if schedule.first_of_month:
        days = f"first {days}"
    hour, minute = divmod(schedule.start_minute, 60)
    return f"{days} {hour:02d}:{minute:02d} for {exact_duration(schedule.length_s)}"
