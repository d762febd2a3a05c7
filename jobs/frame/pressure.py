"""What processes wait for, and how much: the kernel's pressure stall information (PSI)."""

import re
from typing import NamedTuple

RESOURCES = "cpu", "io", "memory"

BUSY_SHARE = 0.1
"""Of the last ten seconds; where some process waited for longer, the machine is busy."""

_SOME = re.compile(r"some avg10=([0-9.]+) .*\btotal=([0-9]+)")


class Pressure(NamedTuple):
    """For how long at least one process has waited for a resource."""

    recent_share: float
    """Of the last ten seconds, from 0 to 1."""
    total_s: float
    """Since the machine started."""


def pressure_of(resource: str, directory: str = "/proc/pressure") -> Pressure:
    """The pressure on one of ``RESOURCES``; none where the kernel does not say (CONFIG_PSI)."""
    try:
        with open(f"{directory}/{resource}", encoding="ascii") as file:
            found = _SOME.search(file.read())
    except OSError:
        found = None
    return Pressure(float(found[1]) / 100, int(found[2]) / 1e6) if found else Pressure(0.0, 0.0)


def busy_with(directory: str = "/proc/pressure") -> str:
    """What processes wait for now, or nothing."""
    for resource in RESOURCES:
        share = pressure_of(resource, directory).recent_share
        if share > BUSY_SHARE:
            return f"{resource} ({share:.0%} of the time)"
    return ""
