"""An alarm that stops garbage collection: many stubs were overwritten with incompressible data.

It is kept in a file next to the logs until an administrator has accepted the changes.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from dedupd_core.deleted.log import DIRECTORY, made_directory, open_directory
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_at
from dedupd_core.system.paths import show_text
from dedupd_core.units import format_moment

ALARM_FILE = b"alarm.json"


@dataclass(frozen=True, slots=True)
class Alarm:
    """``files`` were overwritten between two times (ns since 1970). Of ``sampled`` of these,
    ``noisy`` had content that compresses, and are incompressible now."""

    start_ns: int
    end_ns: int
    files: int
    sampled: int
    noisy: int
    examples: tuple[str, ...]

    def message(self, root: str) -> str:
        since = format_moment(self.start_ns / 1e9)
        return (
            f"{root}: {self.files} files were overwritten or deleted since {since}; {self.noisy}"
            f" of {self.sampled} sampled files now look encrypted, for example"
            f" {show_text(', '.join(self.examples))}. Garbage collection is suspended. Restore the"
            f" files with `dedupd undelete --since TIME {root}`, or confirm the change with"
            f" `dedupd deleted --accept {root}`"
        )


@dataclass(frozen=True, slots=True)
class AlarmState:
    """The active alarm, if any; deletions up to ``accepted_ns`` raise none."""

    alarm: Alarm | None = None
    accepted_ns: int = 0


def read_state(base_fd: int) -> AlarmState:
    """Read the state in the ``.dedupd`` open as ``base_fd``; no alarm if it cannot be read."""
    try:
        path = DIRECTORY + b"/" + ALARM_FILE
        with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=base_fd)) as fd:
            fields = json.loads(read_at(fd, os.fstat(fd).st_size, 0))
        found = fields["alarm"]
        if found is not None:
            found = Alarm(**{**found, "examples": tuple(found["examples"])})
        return AlarmState(found, int(fields["accepted_ns"]))
    except (OSError, ValueError, KeyError, TypeError):
        return AlarmState()


def keep_state(base_fd: int, state: AlarmState, disk: Disk) -> None:
    """Write the state durably. Raises NoSpace, OSError."""
    with opened(made_directory(base_fd, disk)) as fd:
        disk.replace_file(fd, ALARM_FILE, json.dumps(asdict(state)).encode())


def remove_unfinished(base_fd: int, disk: Disk) -> None:
    """Remove what a crash has left of :func:`keep_state`."""
    with suppress(FileNotFoundError), opened(open_directory(base_fd)) as fd:
        disk.unlink(fd, ALARM_FILE + b".new")


def accept(base_fd: int, disk: Disk) -> Alarm | None:
    """Accept the deletions until now, and resume collections. Returns the cleared alarm."""
    state = read_state(base_fd)
    keep_state(base_fd, AlarmState(None, time.time_ns()), disk)
    return state.alarm
