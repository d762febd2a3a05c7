"""Changes of a file's length."""

import os

from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.slow_closes import is_slow_to_free


class Truncation:
    """A change of the length of a file that is open for writing, and whose lock the caller has
    alone; no commit of it may be under way.

    See :meth:`fuse_stub.commit_lane.CommitLane.truncate`. ``is_slow``: it may keep the calling
    thread waiting.
    """

    def __init__(self, file: OpenFile, size: int) -> None:
        status = os.fstat(file.fd)
        freed_bytes = min(status.st_size - size, status.st_blocks * 512)
        self._file = file
        self._size = size
        # A stub that grows may need a chunk, from the disk.
        self.is_slow = is_slow_to_free(freed_bytes) or (
            file.stub is not None and size > status.st_size
        )

    def make(self) -> bool:
        """Make it, in whatever thread; whether the file is plain from now on. Raises OSError."""
        if self._file.stub is None:
            os.ftruncate(self._file.fd, self._size)
            return True
        return self._file.stub.truncate(self._size)

    def note(self, is_plain: bool) -> None:
        """In the thread of the event loop: keep what :meth:`make` has answered."""
        if is_plain:
            self._file.stub = None
