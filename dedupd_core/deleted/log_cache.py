"""A cache of the logs of a volume for listings: each log is decoded once, and kept for a while."""

import time
from collections import OrderedDict
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.units import MIB

MEMORY_BYTES_MAX = 64 * MIB
"""The memory of the logs that were listed last. A full log of 4 MiB needs 6 to 8 MiB."""

SETTLED_NS = 1_000_000_000
"""If a directory has not changed for this time, its time shows each further change."""


class _Key(NamedTuple):
    """The state of a log: it grows, and its header changes if deletions are dropped."""

    first: int
    inode: int
    size: int
    mtime_ns: int


class LogCache:
    """The decoded logs of a volume. Used by one listing at a time."""

    def __init__(self, logs: DeletionLogs) -> None:
        self.logs = logs
        self.decoded = 0
        """The number of logs that were decoded."""
        self._users: dict[int, int | None] = {}
        self._newest_first: dict[int | None, list[int]] = {}
        self._names_ns = 0
        self._logs: OrderedDict[int, tuple[_Key, native.deletions.DeletionLog]] = OrderedDict()
        self._memory_bytes = 0

    def numbers(self, uid: int) -> list[int]:
        """Return the logs with deletions of a user, or of all users for root, the newest first.
        Raises OSError."""
        self._know_names()
        if uid == 0:
            return self._newest_first.get(0, [])
        own = self._newest_first.get(uid, []) + self._newest_first.get(None, [])
        return sorted(own, reverse=True)

    def listed(self, number: int) -> native.deletions.DeletionLog:
        """Return the deletions of a log. Raises OSError."""
        key, known = self._key(number), self._logs.get(number)
        if key is not None and known is not None and known[0] == key:
            self._logs.move_to_end(number)
            return known[1]
        found = self.logs.listed(number)
        self.decoded += 1
        self._forget(number)
        if key is None:
            return found
        self._logs[number] = key, found
        self._memory_bytes += found.memory_bytes
        while self._memory_bytes > MEMORY_BYTES_MAX and len(self._logs) > 1:
            self._forget(next(iter(self._logs)))
        return found

    def _key(self, number: int) -> _Key | None:
        """Return the state; None if the header is unreadable, for example during a collection."""
        status, header = self.logs.status(number), self.logs.header(number)
        return None if status is None or header is None else _Key(header.first, *status)

    def _forget(self, number: int) -> None:
        known = self._logs.pop(number, None)
        if known is not None:
            self._memory_bytes -= known[1].memory_bytes

    def _know_names(self) -> None:
        """List the logs again, unless their directory is known to be unchanged."""
        changed_ns = self.logs.changed_ns()
        if changed_ns == self._names_ns:
            return
        numbers = self.logs.numbers()
        self._users = {
            number: self._users[number] if number in self._users else self._user(number)
            for number in numbers
        }
        self._newest_first = {0: numbers[::-1]}
        for number in reversed(numbers):
            uid = self._users[number]
            if uid != 0:
                self._newest_first.setdefault(uid, []).append(number)
        for number in self._logs.keys() - self._users.keys():
            self._forget(number)
        is_settled = time.time_ns() > changed_ns + SETTLED_NS
        self._names_ns = changed_ns if is_settled else -1

    def _user(self, number: int) -> int | None:
        """Return the user of a log; None if it has deletions of several users, or is unreadable."""
        header = self.logs.header(number)
        return None if header is None else header.uid
