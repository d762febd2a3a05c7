"""Users' shares of kept deletions: decides which are dropped if all of them need too much space.

The limit is divided among users. The user whose deletions need most drops the oldest of them first,
until the rest fits. So a user who needs at most an equal share loses nothing because of others.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MIXED = -1
"""The account of logs in the format that mixes the deletions of several users."""


class KeptDeletions(NamedTuple):
    """Deletions that are dropped together: one, or all of a log of several users.

    ``account``: the user whose share they count for. They are in log ``log``, and end at offset
    ``end``. ``recipes``: the recipes that they keep in the store.
    """

    account: int
    time_ns: int
    log: int
    end: int
    recipes: tuple[int, ...]


class UserShare:
    """The deletions of one user, in the order in which they are dropped."""

    def __init__(self, number: int, sizes: Mapping[int, int]) -> None:
        self.number = number
        self.bytes = 0
        self._sizes = sizes
        self._rows: deque[KeptDeletions] = deque()
        self._holds: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, one: KeptDeletions) -> None:
        """Add a deletion that is newer than the last."""
        self._rows.append(one)
        for recipe in one.recipes:
            self.bytes += 0 if self._holds[recipe] else self._sizes[recipe]
            self._holds[recipe] += 1

    def drop(self) -> KeptDeletions:
        """Drop the oldest."""
        one = self._rows.popleft()
        for recipe in one.recipes:
            self._holds[recipe] -= 1
            if not self._holds[recipe]:
                del self._holds[recipe]
                self.bytes -= self._sizes[recipe]
        return one


def surplus(
    kept: Iterable[KeptDeletions], sizes: Mapping[int, int], allowed_bytes: int
) -> list[KeptDeletions]:
    """Return the deletions to drop, so that the rest needs at most ``allowed_bytes``.

    A recipe counts ``sizes[recipe]`` bytes: once for each user who has it, and once in total. For
    each log the result is its start, even if a clock was set back while the log was written.
    """
    accounts: dict[int, UserShare] = {}
    holds: Counter[int] = Counter()
    total = 0
    for one in _oldest_first(kept):
        accounts.setdefault(one.account, UserShare(one.account, sizes)).add(one)
        for recipe in one.recipes:
            total += 0 if holds[recipe] else sizes[recipe]
            holds[recipe] += 1
    dropped: list[KeptDeletions] = []
    heap = [(-account.bytes, number) for number, account in accounts.items()]
    heapq.heapify(heap)
    while total > allowed_bytes:
        account = accounts[heap[0][1]]
        one = account.drop()
        dropped.append(one)
        for recipe in one.recipes:
            holds[recipe] -= 1
            total -= 0 if holds[recipe] else sizes[recipe]
        heapq.heapreplace(heap, (-account.bytes, account.number))
    return dropped


def _oldest_first(kept: Iterable[KeptDeletions]) -> list[KeptDeletions]:
    """Sort by time, and those of one log in the order of the log."""
    latest: dict[int, int] = {}
    rows = []
    for one in sorted(kept, key=lambda one: (one.log, one.end)):
        time_ns = latest[one.log] = max(one.time_ns, latest.get(one.log, 0))
        rows.append((time_ns, one.log, one.end, one))
    rows.sort(key=lambda row: row[:3])
    return [row[3] for row in rows]
