"""Schedules: what people write is what is meant, whatever the clock does."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.config.schedule import (
    Calendar,
    Every,
    Off,
    Schedule,
    TimeWindow,
    between_s,
    parse_schedule,
    show_schedule,
)
from dedupd_core.errors import UsageError

BERLIN = ZoneInfo("Europe/Berlin")

calendars = st.builds(
    Calendar,
    days=st.frozensets(st.integers(0, 6), min_size=1),
    start_minute=st.integers(0, 24 * 60 - 1),
    length_s=st.integers(60, 86400 * 7).map(float),
    first_of_month=st.booleans(),
)
schedules = st.one_of(
    st.just(Off()), st.integers(1, 10**6).map(lambda s: Every(float(s))), calendars
)
instants = st.integers(1_600_000_000, 1_900_000_000).map(float)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("off", Off()),
        ("every 90min", Every(5400)),
        ("daily 01:00 for 5h", Calendar(frozenset(range(7)), 60, 18000)),
        ("Sat 2:45 for 8h", Calendar(frozenset({5}), 165, 28800)),
        ("mon-fri 22:00 for 4h", Calendar(frozenset(range(5)), 1320, 14400)),
        ("Sat-Mon 22:00 for 4h", Calendar(frozenset({5, 6, 0}), 1320, 14400)),
        ("Tue,Thu 22:00 for 4h", Calendar(frozenset({1, 3}), 1320, 14400)),
        ("first Sun 03:00 for 12h", Calendar(frozenset({6}), 180, 43200, True)),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, meant: Schedule) -> None:
    assert parse_schedule(text) == meant


@given(schedules)
def test_a_schedule_that_is_shown_is_read_back_as_the_same(schedule: Schedule) -> None:
    assert parse_schedule(show_schedule(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "write"),
        ("hourly", "write"),
        ("every", "write"),
        ("every 0s", "at least one second"),
        ("every soon", "'soon' is not a duration"),
        ("daily 24:00 for 5h", "not a time of day"),
        ("daily 12:60 for 5h", "not a time of day"),
        ("Someday 12:00 for 5h", "'Someday' is not a day"),
        ("Mon- 12:00 for 5h", "'' is not a day"),
        ("daily 12:00", "write"),
        ("daily 12:00 for 8d", "of one second to one week"),
        ("daily 12:00 for 0s", "of one second to one week"),
    ],
)
def test_a_wrong_schedule_says_what_to_write(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_schedule(text)


@given(st.text(max_size=40))
def test_no_text_does_more_than_being_refused(text: str) -> None:
    try:
        parse_schedule(text)
    except UsageError:
        pass


@given(calendars, instants)
def test_the_latest_window_is_the_last_that_began(calendar: Calendar, now_s: float) -> None:
    window = calendar.latest(now_s, BERLIN)
    coming = calendar.next_start(now_s, BERLIN)
    assert window is not None
    assert window.start_s <= now_s < coming
    # No other one begins between the two.
    assert calendar.next_start(window.start_s, BERLIN) == coming
    assert calendar.latest(coming - 1, BERLIN) == window


@given(calendars, instants)
def test_a_window_begins_on_one_of_its_days_at_its_time(calendar: Calendar, now_s: float) -> None:
    start = datetime.fromtimestamp(calendar.next_start(now_s, BERLIN), BERLIN)
    assert start.weekday() in calendar.days
    assert not calendar.first_of_month or start.day <= 7
    # In spring an hour is left out; nothing else moves it.
    late = start.hour * 60 + start.minute - calendar.start_minute
    assert late == 0 or (late == 60 and start.dst() == timedelta(hours=1))


def test_a_night_on_which_the_clock_is_put_forward_has_its_window() -> None:
    nightly = parse_schedule("daily 02:30 for 1h")
    assert isinstance(nightly, Calendar)
    start_s = at("2026-03-29T03:30")
    assert nightly.latest(at("2026-03-29T12:00"), BERLIN) == TimeWindow(start_s, start_s + 3600)


def test_a_night_on_which_the_clock_is_put_back_has_one_window() -> None:
    nightly = parse_schedule("daily 02:30 for 1h")
    assert isinstance(nightly, Calendar)
    first = nightly.latest(at("2026-10-25T12:00"), BERLIN)
    assert first is not None
    assert nightly.next_start(first.start_s, BERLIN) == at("2026-10-26T02:30")


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("off", None),
        ("every 90min", 1.5),
        ("Sun 05:00 for 12h", 168),
        ("Mon-Fri 22:00 for 4h", 24),
        ("daily 02:30 for 1h", 24),
    ],
)
def test_how_far_apart_two_beginnings_are(text: str, hours: float | None) -> None:
    found = between_s(parse_schedule(text), at("2026-11-25T12:00"), BERLIN)
    assert found == (None if hours is None else hours * 3600)
