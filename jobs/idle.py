"""Whether the machine has nothing better to do, by what its processes wait for."""

import re

PRESSURE_MAX = 10.0
"""Percent of the last ten seconds in which some process waited; above it, the machine is busy."""

_SOME = re.compile(r"some avg10=([0-9.]+)")
RESOURCES = ("cpu", "io", "memory")


def pressure_of(text: str) -> float:
    """Percent of the last ten seconds, from a file of ``/proc/pressure``; 0 where it says none."""
    found = _SOME.search(text)
    return float(found[1]) if found else 0.0


def busy_with(directory: str = "/proc/pressure") -> str:
    """What processes wait for now, or nothing; also where the kernel doesn't tell."""
    for resource in RESOURCES:
        try:
            with open(f"{directory}/{resource}", encoding="ascii") as file:
                pressure = pressure_of(file.read())
        except OSError:
            continue
        if pressure > PRESSURE_MAX:
            return f"{resource} ({pressure:.0f} % of the time)"
    return ""
