"""Sizes and durations as people write and read them."""

import re

from dedupd.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_AGE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min|h|d|w)?\s*$", re.IGNORECASE)
_AGE_FACTOR = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_size(text: str) -> int:
    """Bytes meant by ``32k``, ``1.5 GiB`` or ``4096`` (powers of 1024). Raises UsageError."""
    match = _SIZE.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size; write bytes, or a number with k, M, G or T")
    return int(float(match[1]) * _SIZE_FACTOR[match[2].lower()])


def parse_duration(text: str) -> float:
    """Seconds meant by ``3d``, ``12h``, ``0s``; a bare number is days. Raises UsageError."""
    match = _AGE.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration; write a number with s, min, h, d or w")
    return float(match[1]) * _AGE_FACTOR[(match[2] or "d").lower()]


def format_size(size_bytes: float) -> str:
    """A size for people: three digits and a binary unit."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_duration(duration_s: float) -> str:
    """A duration for people."""
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def align_up(value: int, alignment: int) -> int:
    """The least multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment


def align_down(value: int, alignment: int) -> int:
    """The greatest multiple of ``alignment`` that is not above ``value``."""
    return value // alignment * alignment
