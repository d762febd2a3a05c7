"""The files whose transition is under way, noted for the mount or job that follows a crash.

A stub says itself that it was left in the middle of a transition, so nothing is lost with this
note. But between the punching of its blocks and the restoring of its times, a file shows the time
of the crash. The note lets the next mount or job correct that before a user looks, without a search
through the tree.

The note is the content of ``mount.lock``: only its holder makes transitions. It is not
synced by itself: the sync of a commit includes it.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dedupd_core.system.files import read_at

_END = b"\0"


class Transitions:
    """The note, for the holder of the lock ``fd``. Paths are relative to the volume's tree."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_read_only = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        """Then no transition can begin (EROFS), also once the file system takes changes again."""
        self._under_way = 0

    def interrupted(self) -> list[bytes]:
        """Files that an earlier holder of the lock did not finish."""
        noted = read_at(self._fd, os.fstat(self._fd).st_size, 0)
        return list(dict.fromkeys(noted.split(_END)[:-1]))

    def clear(self) -> None:
        """Forget the files of :meth:`interrupted`."""
        os.ftruncate(self._fd, 0)

    def begin(self, paths: Iterable[bytes | None]) -> None:
        """Note files, once, before anything is done to them; :meth:`end` follows, once.

        A file without a known path (None) is not noted: it is settled when it is opened next.
        Raises OSError, after which nothing follows.
        """
        if self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        data = b"".join(path + _END for path in paths if path is not None)
        try:
            os.pwrite(self._fd, data, os.fstat(self._fd).st_size)
        except OSError as error:
            # A full disk must not keep files from becoming smaller.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        self._under_way += 1

    def end(self) -> None:
        """End the transitions that :meth:`begin` noted."""
        self._under_way -= 1
        if self._under_way == 0:
            self.clear()

    @contextmanager
    def under_way(self, paths: Iterable[bytes | None]) -> Iterator[None]:
        """Note files for the time of the block."""
        self.begin(paths)
        try:
            yield
        finally:
            self.end()
