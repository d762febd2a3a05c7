"""Names that move while garbage collection walks the tree.

A walk misses a file that is moved from a directory that it has yet to see into one that it has
seen. It cannot see at all a file that has no name any more and is still open. So while a marking
session is open, the mount notes every move, link and removal: of a file the record that its stub
names, of a directory the directory itself, which is then walked once more. Users wait for nothing.
"""

import errno
import os
import stat

import trio

from dedupd.errors import DamagedStub
from dedupd.format.stub import Flag, StubAttribute, decode_stub
from dedupd.volume.volume import Volume
from fuse_stub.commit_lane import CommitLane
from fuse_stub.files.inodes import PATH_FLAGS, Inodes
from fuse_stub.files.open_files import OpenFiles, where

REFERENCES_MAX = 1 << 20
DIRECTORIES_MAX = 512
"""Most entries of a log between two drains; each directory holds a descriptor. A walk drains the
log every few directories. A log that has more overflows, and the walk begins again."""

DIRECTORIES_PER_DRAIN = 32
"""Descriptors that go with one reply."""

_INODES_PER_TURN = 256


class MarkLog:
    """The notes of one session that were not handed over yet."""

    def __init__(self) -> None:
        self.chunks: set[int] = set()
        self.recipes: set[int] = set()
        self.damaged: list[str] = []
        self.overflowed = False
        self._directories: dict[int, int] = {}

    def add(self, stub: StubAttribute) -> None:
        """Note the record that a stub names."""
        (self.chunks if stub.flags & Flag.DIRECT else self.recipes).add(stub.recipe)
        if len(self.chunks) + len(self.recipes) > REFERENCES_MAX:
            self._overflow()

    def add_directory(self, ino: int, fd: int) -> None:
        """Note a directory that ``fd`` (taken over) is open on."""
        if ino in self._directories or self.overflowed:
            os.close(fd)
            return
        self._directories[ino] = fd
        if len(self._directories) > DIRECTORIES_MAX:
            self._overflow()

    def take_directories(self) -> list[int]:
        """Some descriptors, the caller's from now on."""
        inos = list(self._directories)[:DIRECTORIES_PER_DRAIN]
        return [self._directories.pop(ino) for ino in inos]

    @property
    def has_directories(self) -> bool:
        return bool(self._directories)

    def _overflow(self) -> None:
        self.overflowed = True
        self.close()

    def close(self) -> None:
        for fd in self._directories.values():
            os.close(fd)
        self._directories.clear()
        self.chunks.clear()
        self.recipes.clear()


class MarkingSessions:
    """The open marking sessions: one, or two for a moment after a job was killed.

    Used by the thread of the event loop. All methods but :meth:`begin` run between two awaits.
    """

    def __init__(
        self, volume: Volume, inodes: Inodes, files: OpenFiles, commit_lane: CommitLane
    ) -> None:
        self._volume = volume
        self._inodes = inodes
        self._files = files
        self._commit_lane = commit_lane
        self._logs: set[MarkLog] = set()

    @property
    def is_open(self) -> bool:
        """Whether changes of names have to be noted."""
        return bool(self._logs)

    async def begin(self) -> MarkLog:
        """Open a session: from now on changes are noted, and open files count as named.

        No commit begins before it ends. The garbage collection holds the job lock, so such a
        commit comes from a dead job; when it is taken back, a recipe would return to a directory
        that the walk has left.
        """
        log = MarkLog()
        self._logs.add(log)
        self._commit_lane.are_refused = True
        try:
            for stub in [*self._commit_lane.attributes(), *self._files.stubs()]:
                log.add(stub)
            for at, ino in enumerate(self._inodes.pinned()):
                if self._inodes.knows(ino):  # unless the kernel has forgotten it meanwhile
                    self._note_pinned(log, ino)
                if at % _INODES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        except BaseException:
            self.end(log)
            raise
        return log

    def end(self, log: MarkLog) -> None:
        self._logs.discard(log)
        log.close()
        self._commit_lane.are_refused = bool(self._logs)

    def _note_pinned(self, log: MarkLog, ino: int) -> None:
        """Note a file that may have no name, and that the kernel still knows."""
        try:
            fd = self._inodes.fd(ino)
            status = os.fstat(fd)
            if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                self._note_file(log, fd)
        except OSError as error:
            log.damaged.append(f"inode {ino}: {error.strerror}")

    def moved(self, dir_fd: int, name: bytes) -> None:
        """A name has come into being, by a rename or a link."""
        try:
            fd = os.open(name, PATH_FLAGS, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        try:
            self.changed(fd)
        finally:
            os.close(fd)

    def changed(self, fd: int) -> None:
        """Names of the inode that ``fd`` (``O_PATH``) is open on come or go."""
        status = os.fstat(fd)
        for log in self._logs:
            if stat.S_ISDIR(status.st_mode):
                log.add_directory(status.st_ino, os.dup(fd))
            elif stat.S_ISREG(status.st_mode):
                self._note_file(log, fd)

    def _note_file(self, log: MarkLog, fd: int) -> None:
        """Note the record that a file names, if it is a stub; an attribute that cannot be read is
        noted as damaged."""
        path, space = b"/proc/self/fd/%d" % fd, self._volume.space
        try:
            log.add(decode_stub(os.getxattr(path, space.name), space.volume_id, where(fd)))
        except DamagedStub as error:
            log.damaged.append(str(error))
        except OSError as error:
            if error.errno != errno.ENODATA:
                log.damaged.append(f"{where(fd)}: {error.strerror}")
