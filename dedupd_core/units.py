"""Sizes and durations as people write and read them."""

import re
from datetime import datetime
from decimal import Decimal

from dedupd_core.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

SIZE_BYTES_MAX = (1 << 63) - 1
"""The largest offset in a file."""

DURATION_S_MAX = 1000 * 366 * 86400

_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(?:i?b)?\s*$", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_PERCENTAGE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")
_AGE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(s|sec|m|min|h|d|w)?\s*$", re.IGNORECASE)
_AGE_FACTOR = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


SHOWN_CHARACTERS_MAX = 200


def brief(value: object) -> str:
    """Return a value as Python writes it, shortened for a message: input may have any length."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return cut(text)


def cut(text: str) -> str:
    """Shorten a text of any length for a message."""
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def counted(count: int, what: str) -> str:
    """Return for example ``1 chunk``, ``2 chunks``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def parse_size(text: str) -> int:
    """Return the bytes of ``32k``, ``1.5 GiB`` or ``4096`` (powers of 1024). Raises UsageError."""
    match = _SIZE.match(text)
    if match is None:
        raise UsageError(f"{brief(text)} is not a size; write bytes, or a number with k, M, G or T")
    factor = _SIZE_FACTOR[match[2].lower()]
    # A Decimal is exact; a float has only 53 bits.
    size = Decimal(match[1]) * factor
    if size > SIZE_BYTES_MAX:
        raise UsageError(f"{brief(text)} is larger than any file")
    return int(size)


def parse_duration(text: str) -> float:
    """Return the seconds of ``3d``, ``12h``, ``0s``; a bare number is days. Raises UsageError."""
    match = _AGE.match(text)
    if match is None:
        raise UsageError(f"{brief(text)} is not a duration; write a number with s, min, h, d or w")
    duration = float(match[1]) * _AGE_FACTOR[(match[2] or "d").lower()]
    if duration > DURATION_S_MAX:
        raise UsageError(f"{brief(text)} is longer than a thousand years")
    return duration


def parse_percentage(text: str) -> float:
    """Return the fraction of ``5%``. Raises UsageError."""
    match = _PERCENTAGE.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(
            f'{brief(text)} is not a percentage; write one up to 100, for example "5%"'
        )
    return float(match[1]) / 100


def parse_moment(text: str, now_s: float) -> float:
    """Return the time (seconds since 1970) of an age such as ``2d``, or of a date. The date may
    include a time of day, by the local clock. Raises UsageError."""
    try:
        return now_s - parse_duration(text)
    except UsageError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f'{brief(text)} is not a time; write a duration, for example "2d", or a date, for'
            ' example "2026-01-31" or "2026-01-31 14:00"'
        ) from None


def format_size(size_bytes: float) -> str:
    """Format a size for people: three digits and a binary unit."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def exact_size(size_bytes: int) -> str:
    """Format a size so that :func:`parse_size` returns the same number."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"


def exact_duration(duration_s: float) -> str:
    """Format a duration so that :func:`parse_duration` returns the same number."""
    for unit, factor in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration_s and duration_s % factor == 0:
            return f"{duration_s // factor:.0f}{unit}"
    return f"{Decimal(duration_s):f}s"


def format_duration(duration_s: float) -> str:
    """Format a duration for people."""
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_moment(time_s: float) -> str:
    """Format a time (seconds since 1970) for people, by the local clock."""
    return f"{datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M}"


def align_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment


def align_down(value: int, alignment: int) -> int:
    """Return the greatest multiple of ``alignment`` that is not above ``value``."""
    return value // alignment * alignment


def in_64_bits(time_ns: int) -> int:
    """Return a time in the range of formats and native code, or the nearest limit."""
    return min(max(time_ns, -(1 << 63)), (1 << 63) - 1)
