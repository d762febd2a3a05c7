"""The descriptors of the process, shared among users.

Each file or directory that a user has open takes one here, and a second one once its last name is
removed. The process has so many and no more. Without one nobody looks up a name or lists a
directory, so some are kept back for that; and a user gets a further one only as long as more are
left than the user has. So a user who opens all that there is gets half, the next one half of the
rest, and the others go on.
"""

import errno
import os
import resource
from collections import Counter

from fuse_stub.files.inodes import descriptors_cached_max

KEPT_BACK = 4608
"""For requests under way, for files that are being committed, and for the store's containers; a
quarter of a low limit."""

_EACH = 2

ROOT = 0


class Descriptors:
    """What users have open. Used by the thread of the event loop, between awaits."""

    def __init__(self, limit: int | None = None) -> None:
        """``limit``: the process's own by default."""
        if limit is None:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = min(KEPT_BACK, limit // 4) + descriptors_cached_max(limit)
        self._left = max(1, (limit - kept) // _EACH)
        self._held: Counter[int] = Counter()

    def take(self, uid: int) -> None:
        """One more for a user. Raises OSError (EMFILE) where the user has enough."""
        if self._left == 0 or (uid != ROOT and self._held[uid] >= self._left):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._left -= 1
        self._held[uid] += 1

    def give_back(self, uid: int) -> None:
        """One that :meth:`take` gave."""
        self._left += 1
        self._held[uid] -= 1
        if not self._held[uid]:
            del self._held[uid]
