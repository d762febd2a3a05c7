"""The reserve (policy ``reserve``): the free space that jobs leave to users."""

import re
from dataclasses import dataclass

from dedupd_core.config.config_values import size
from dedupd_core.errors import UsageError
from dedupd_core.units import GIB, exact_size

DEFAULT_BYTES_MIN = 1 * GIB
DEFAULT_SHARE = 0.03
DEFAULT_SHARE_MAX = 0.1
"""The limit for a small file system, where a gibibyte would be most of the space."""

_AUTO = "auto"
_PERCENTAGE = re.compile(r"\s*([0-9]{1,2}(?:\.[0-9]{1,6})?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Reserve:
    """A size, or a percentage of the file system; the default if neither is set."""

    size_bytes: int | None = None
    percent: float | None = None

    def bytes_of(self, total_bytes: int) -> int:
        """Return the reserve of a file system of ``total_bytes``."""
        if self.size_bytes is not None:
            return self.size_bytes
        if self.percent is not None:
            return int(total_bytes * self.percent / 100)
        wanted = max(DEFAULT_BYTES_MIN, int(total_bytes * DEFAULT_SHARE))
        return min(wanted, int(total_bytes * DEFAULT_SHARE_MAX))


def parse_reserve(value: object) -> Reserve:
    """Parse a reserve: ``"auto"``, a size or a percentage. Raises UsageError."""
    if value == _AUTO:
        return Reserve()
    if isinstance(value, str) and (match := _PERCENTAGE.fullmatch(value)):
        return Reserve(percent=float(match[1]))
    try:
        return Reserve(size_bytes=size(value))
    except UsageError:
        valid = 'write a size, for example "20 GiB", a percentage, for example "5%", or "auto"'
        raise UsageError(valid) from None


def parse_threshold(value: object) -> Reserve:
    """Like :func:`parse_reserve`, without ``"auto"``. Raises UsageError."""
    try:
        if value != _AUTO:
            return parse_reserve(value)
    except UsageError:
        pass
    raise UsageError('write a size, for example "20 GiB", a percentage, for example "5%", or 0')


def show_reserve(reserve: Reserve) -> str:
    """Format a reserve as a text that :func:`parse_reserve` reads as an equal value."""
    if reserve.size_bytes is not None:
        return exact_size(reserve.size_bytes)
    if reserve.percent is None:
        return _AUTO
    return f"{reserve.percent:.6f}".rstrip("0").rstrip(".") + "%"


DEFAULT = Reserve()
