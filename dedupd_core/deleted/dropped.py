"""Counts of deletions that were dropped or not recorded because their logs were full.

They are in a file next to the logs, which the mount writes and ``dedupd deleted`` reads.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from dedupd_core.deleted.log import DIRECTORY, made_directory, open_directory
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_at

DROPPED_FILE = b"dropped.json"

USERS_MAX = 1000
"""The limit for users in the file: those whose last dropped deletion is the most recent."""


@dataclass(frozen=True, slots=True)
class DroppedDeletions:
    """Deletions of one user's files: ``dropped`` after they were recorded, or ``refused``; the last
    at ``last_ns`` since 1970."""

    dropped: int = 0
    refused: int = 0
    last_ns: int = field(default_factory=time.time_ns)


Counts = dict[int, DroppedDeletions]
"""Counts by the id of the user."""


def add(counts: Counts, uid: int, more: DroppedDeletions) -> None:
    one = counts.get(uid, DroppedDeletions(last_ns=0))
    counts[uid] = DroppedDeletions(
        one.dropped + more.dropped, one.refused + more.refused, max(one.last_ns, more.last_ns)
    )


def read_counts(base_fd: int) -> Counts:
    """Read the counts in the ``.dedupd`` open as ``base_fd``; empty if they cannot be read."""
    try:
        path = DIRECTORY + b"/" + DROPPED_FILE
        with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=base_fd)) as fd:
            fields = json.loads(read_at(fd, os.fstat(fd).st_size, 0))
        return {int(uid): DroppedDeletions(**one) for uid, one in fields.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def add_counts(base_fd: int, counts: Counts, disk: Disk) -> None:
    """Add counts to the file, durably. Raises NoSpace, OSError."""
    known = read_counts(base_fd)
    for uid, one in counts.items():
        add(known, uid, one)
    latest = sorted(known.items(), key=lambda row: -row[1].last_ns)[:USERS_MAX]
    fields = {str(uid): asdict(one) for uid, one in latest}
    with opened(made_directory(base_fd, disk)) as fd:
        disk.replace_file(fd, DROPPED_FILE, json.dumps(fields).encode())


def remove_unfinished(base_fd: int, disk: Disk) -> None:
    """Remove what a crash has left of :func:`add_counts`. If one is running, it fails and adds its
    counts the next time."""
    with suppress(FileNotFoundError), opened(open_directory(base_fd)) as fd:
        disk.unlink(fd, DROPPED_FILE + b".new")
