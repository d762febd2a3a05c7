"""Sizes and durations: read as people write them, and written so that they can be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import UsageError
from dedupd_core.units import (
    DURATION_S_MAX,
    SIZE_BYTES_MAX,
    align_down,
    align_up,
    brief,
    counted,
    exact_duration,
    exact_size,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

sizes = st.integers(0, SIZE_BYTES_MAX)
durations = st.floats(0, DURATION_S_MAX)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("32k", 32768),
        ("32 KiB", 32768),
        ("32KB", 32768),
        ("1.5 GiB", 3 << 29),
        ("2M", 2 << 20),
        (" 1t ", 1 << 40),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_are_read_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "1x", "1..5k", "1e3", "nan", "9" * 400, "9" * 30 + ".5k", "\u00b2k"]
)
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert brief(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3d", 259200), ("12h", 43200), ("0s", 0), ("90min", 5400), ("2", 172800), ("1.5 h", 5400)],
)
def test_durations_are_read_with_a_unit_and_as_days_without(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1d", "3y", "inf", "9" * 400, "1h30"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert brief(text) in str(caught.value)


@given(sizes)
def test_an_exact_size_reads_back_as_the_same(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@given(durations)
def test_an_exact_duration_reads_back_as_the_same(seconds: float) -> None:
    assert parse_duration(exact_duration(seconds)) == seconds


@given(st.integers(0, 2**60))
def test_a_size_for_people_is_near_the_truth_and_short(size: int) -> None:
    text = format_size(size)
    assert len(text) <= 14
    assert abs(parse_size(text) - size) <= size * 0.005 + 1  # the fraction of a byte


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.4, "59.4 s"),
        (60, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 2**64), st.integers(1, 2**20))
def test_aligning_goes_to_the_nearest_multiple_on_each_side(value: int, unit: int) -> None:
    low, high = align_down(value, unit), align_up(value, unit)
    assert low % unit == high % unit == 0
    assert value - unit < low <= value <= high < value + unit


def test_messages_show_long_values_in_brief() -> None:
    assert brief("ab") == "'ab'"
    assert len(brief("x" * 100_000)) < 250
    assert brief(1 << 100_000) == "a number of thousands of digits"


def test_a_size_of_any_number_of_digits_is_refused_or_exact() -> None:
    with pytest.raises(UsageError, match="larger than any file"):
        parse_size("9" * 5000)
    assert parse_size(str(SIZE_BYTES_MAX)) == SIZE_BYTES_MAX
    assert parse_size("9007199254740993") == 9007199254740993


def test_one_is_not_many() -> None:
    assert [counted(count, "chunk") for count in range(3)] == ["0 chunks", "1 chunk", "2 chunks"]
