"""Print the steps of a crash scenario, to read a crash state that failed.

    python -m tests.crash.steps NAME [STEP]

A failure says "after 41 of 208 steps". With 41 as STEP, a line marks where the power failed. Needs
root, as the tests do.
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.crash.exploring import SCENARIOS, file_system_for_states, record
from tests.support.simulated_disk import SYNC_FS, Entry, Inode, Link, Rename

SHOWN_BYTES = 16
"""Of a value that a step writes."""


def names_of(before: dict[int, Inode], top: int) -> dict[int, str]:
    """The name of each inode below ``top``, relative to it."""
    names, pending = {top: ".", SYNC_FS: "the file system"}, [top]
    while pending:
        parent = pending.pop()
        for name, child in before[parent].entries.items():
            if child not in names:
                names[child] = os.path.normpath(f"{names[parent]}/{os.fsdecode(name)}")
                pending.append(child)
    return names


def shown(entry: Entry, names: dict[int, str]) -> str:
    """One step: the file, the kind and its values. Long bytes are shown by start and length."""
    values = []
    for field, value in entry.event._asdict().items():
        if isinstance(value, bytes) and len(value) > SHOWN_BYTES:
            values.append(f"{field}={value[:SHOWN_BYTES]!r}… of {len(value):,} bytes")
        else:
            values.append(f"{field}={value!r}")
    kind = type(entry.event).__name__
    return f"{names.get(entry.inode, entry.inode)}: {kind} {', '.join(values)}".rstrip()


def follow(entry: Entry, names: dict[int, str]) -> None:
    """Give an inode its new name."""
    match entry.event:
        case Link(name, inode):
            names[inode] = os.path.normpath(f"{names.get(entry.inode)}/{os.fsdecode(name)}")
        case Rename(target=target, new=new, inode=inode):
            names[inode] = os.path.normpath(f"{names.get(target)}/{os.fsdecode(new)}")


def main(scenario: str, last: int | None = None) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as directory,
        file_system_for_states(Path(directory)) as fast,
    ):
        recorded = record(fast / "root", SCENARIOS[scenario])
    names = names_of(recorded.before, recorded.top)
    for number, entry in enumerate(recorded.log, 1):
        print(f"{number:5} {shown(entry, names)}")
        follow(entry, names)
        if number == last:
            print("----- the power fails here")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in SCENARIOS:
        sys.exit(f"{__doc__}\nNames: {', '.join(SCENARIOS)}")
    main(sys.argv[1], *map(int, sys.argv[2:]))
