"""The space of logs of deletions, shared among users.

If there is no space for a deletion, the user with the largest logs loses their oldest log. So even
any number of deletions cannot drop one of a user with smaller logs.
"""

import heapq
from collections import Counter, deque
from contextlib import suppress

from dedupd_core.deleted.dropped import Counts, DroppedDeletions, add
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB, align_up

LOGS_BYTES_MAX = 256 * MIB
"""The limit for the logs of all users, about a million deletions."""

USER_BYTES_MAX = LOGS_BYTES_MAX // 2
"""The limit for the logs of one user, so that others find space without dropping any."""

SLACK_BYTES = 4 * MIB
"""The extra space that is freed, so that not every deletion has to free some."""

BLOCK_BYTES = 4096
"""A log counts in full blocks, so that the number of logs is limited, too."""

MIXED = -1
"""The user of a log with deletions of several users, or without a valid header."""


class LogSpace:
    """The sizes of all logs by user, in the process that appends. Other processes only remove logs,
    so no size here is too small."""

    def __init__(self, logs: DeletionLogs, disk: Disk) -> None:
        """Logs that cannot be read do not count: a mount works without them."""
        self._logs = logs
        self._disk = disk
        self._last = 0
        self._owner: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._users: dict[int, deque[int]] = {}
        self._user_bytes: Counter[int] = Counter()
        self._total = 0
        self.counts: Counts = {}
        """The numbers of dropped deletions."""
        with suppress(OSError):
            self.refresh()

    def refresh(self) -> None:
        """Count the existing logs again. Raises OSError."""
        numbers = self._logs.numbers()
        for number in self._owner.keys() - set(numbers):
            self._forget(number)
        for number in numbers:
            if number not in self._owner:
                header = self._logs.header(number)
                uid = MIXED if header is None or header.uid is None else header.uid
                self.add(number, uid, self._logs.size_bytes(number))

    def next_number(self) -> int:
        """Return the number of a new log."""
        return self._last + 1

    def add(self, number: int, uid: int, size: int) -> None:
        """Count a log, which is the latest of its user."""
        self._last = max(self._last, number)
        self._owner[number], self._bytes[number] = uid, 0
        self._users.setdefault(uid, deque()).append(number)
        self.grow(number, size)

    def grow(self, number: int, size: int) -> None:
        """Count that a log has grown by ``size`` bytes."""
        more = align_up(size, BLOCK_BYTES) - self._bytes[number]
        if more:
            self._bytes[number] += more
            self._user_bytes[self._owner[number]] += more
            self._total += more

    def has_room(self, uid: int, size: int) -> bool:
        """Return whether there is space for ``size`` more bytes of a user."""
        is_within = self._user_bytes[uid] + size <= USER_BYTES_MAX - BLOCK_BYTES
        return is_within and self._total + size <= LOGS_BYTES_MAX - BLOCK_BYTES

    def make_room(self, uid: int, size: int) -> None:
        """Drop logs until there is space. Raises OSError."""
        self.refresh()
        user_target = USER_BYTES_MAX - SLACK_BYTES - size
        if not self.has_room(uid, size) and self._user_bytes[uid] > user_target:
            self._drop_oldest(uid, user_target)
        if self.has_room(uid, size):
            return
        heap = [(-taken, one) for one, taken in self._user_bytes.items()]
        heapq.heapify(heap)
        while heap and self._total + size > LOGS_BYTES_MAX - SLACK_BYTES:
            taken, one = heapq.heappop(heap)
            self._drop_oldest(one, -taken - 1)
            if one in self._users:
                heapq.heappush(heap, (-self._user_bytes[one], one))

    def _drop_oldest(self, uid: int, target: int) -> None:
        """Drop the oldest logs of a user until all need at most ``target`` bytes."""
        while uid in self._users and self._user_bytes[uid] > target:
            number = self._users[uid][0]
            add(self.counts, uid, DroppedDeletions(dropped=len(self._logs.listed(number))))
            self._logs.remove(number, self._disk)
            self._forget(number)

    def _forget(self, number: int) -> None:
        uid, size = self._owner.pop(number), self._bytes.pop(number)
        self._users[uid].remove(number)
        self._user_bytes[uid] -= size
        self._total -= size
        if not self._users[uid]:
            del self._users[uid], self._user_bytes[uid]
