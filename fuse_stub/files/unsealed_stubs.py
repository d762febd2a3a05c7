"""Stubs that were written to and are closed: their attribute is still to count their own blocks.

A stub is sealed (``dedupd_core/stub/local_blocks.py``) when all that was written has its place on
the disk. That is so some time after its last close, without a sync, and at the end of the mount.
"""

import os
import time
from typing import NamedTuple

SEAL_AFTER_S = 60.0
"""The kernel writes dirty pages within 35 s (``vm.dirty_expire_centisecs`` and one turn)."""

ATTEMPTS_MAX = 5
STUBS_MAX = 1 << 16
"""More are left as they are until they are closed once more; each takes some 200 bytes."""


class UnsealedStub(NamedTuple):
    """A closed stub: its path when it was closed, if one was known, and when to look at it."""

    path: bytes | None
    due_s: float
    attempts: int


class UnsealedStubs:
    """Those of a mount, by inode. Used by the thread of the event loop, between awaits."""

    def __init__(self) -> None:
        self._stubs: dict[int, UnsealedStub] = {}

    def note(self, ino: int, path: bytes | None) -> None:
        """A stub that has been written to is closed."""
        known = self._stubs.get(ino)
        attempts = 0 if known is None else known.attempts
        if attempts < ATTEMPTS_MAX and (known is not None or len(self._stubs) < STUBS_MAX):
            self._stubs[ino] = UnsealedStub(path, time.monotonic() + SEAL_AFTER_S, attempts)

    def take_due(self, now_s: float, count: int) -> list[tuple[int, UnsealedStub]]:
        """Up to ``count`` stubs whose time has come; each counts one more attempt."""
        due = [(ino, stub) for ino, stub in self._stubs.items() if stub.due_s <= now_s][:count]
        for ino, stub in due:
            later = stub._replace(due_s=now_s + SEAL_AFTER_S, attempts=stub.attempts + 1)
            if later.attempts < ATTEMPTS_MAX:
                self._stubs[ino] = later
            else:
                del self._stubs[ino]
        return due

    def forget(self, ino: int) -> None:
        """A stub is sealed, or is none any more."""
        self._stubs.pop(ino, None)

    def take_all(self) -> list[tuple[int, bytes | None]]:
        """All of them, at the end of the mount."""
        found = [(ino, stub.path) for ino, stub in self._stubs.items()]
        self._stubs.clear()
        return found


def is_still(fd: int, ino: int) -> bool:
    """Whether a path that was noted still leads to the inode."""
    return os.fstat(fd).st_ino == ino
