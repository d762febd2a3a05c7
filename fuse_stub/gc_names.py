"""Records moved names while garbage collection walks the tree.

A walk misses a file that is moved from a directory not yet visited into a visited one. It cannot
see open files without a name at all. So while a marking session is open, the mount notes every
move, link and removal. For a file it notes the record that the stub names; for a directory, the
directory itself, which the walk visits if it has not. Users never wait, except that moves of
directories may be held for a moment if they never stop.
"""

import errno
import os
import stat
from dataclasses import dataclass
from itertools import islice

import trio

from dedupd_core import native
from dedupd_core.errors import DamagedStub
from dedupd_core.format.stub import Flag, StubAttribute, decode_stub
from dedupd_core.system.files import opened
from dedupd_core.system.tree.tree_paths import name_in_tree
from dedupd_core.volume.volume import Volume
from fuse_stub.commit_lane import CommitLane
from fuse_stub.files.inodes import PATH_FLAGS, Inodes
from fuse_stub.files.open_files import OpenFiles

REFERENCES_MAX = 1 << 20
DIRECTORIES_MAX = 1 << 17
"""Directories in a log between two drains, some 25 MB. If a log has more, it overflows, and the
walk starts again."""

DESCRIPTORS_MAX = 512
"""Directories in a log that must be kept open, because they cannot be opened by handle."""

DAMAGED_MAX = 1000
"""Messages kept: a single one is enough to make garbage collection delete nothing."""

DIRECTORIES_PER_DRAIN = 32
REFERENCES_PER_DRAIN = 16_384
"""Descriptors and ids per reply, which takes a millisecond or two to make."""

HOLD_S = 1.0
"""The longest time for which moves of directories are held."""

_INODES_PER_TURN = 256


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes of a session: ids that stubs name, messages, and descriptors of directories."""

    chunks: list[int]
    recipes: list[int]
    damaged: list[str]
    directories: list[int]


class MarkLog:
    """The notes of one session that are not yet transferred."""

    def __init__(self, inodes: Inodes) -> None:
        self._inodes = inodes
        self.overflowed = False
        self._chunks: set[int] = set()
        self._recipes: set[int] = set()
        self._damaged: dict[int, str] = {}
        self._handles: dict[int, bytes] = {}
        self._descriptors: dict[int, int] = {}

    def add(self, stub: StubAttribute) -> None:
        """Note the record that a stub names."""
        if self.overflowed:
            return
        (self._chunks if stub.flags & Flag.DIRECT else self._recipes).add(stub.recipe)
        if len(self._chunks) + len(self._recipes) > REFERENCES_MAX:
            self._overflow()

    def add_damaged(self, ino: int, message: str) -> None:
        """Note an inode that may name an unreadable record."""
        if len(self._damaged) < DAMAGED_MAX:
            self._damaged[ino] = message

    def add_directory(self, ino: int, fd: int) -> None:
        """Note the directory that is open as ``fd``: by its handle, which needs no descriptor."""
        if self.overflowed or ino in self._handles or ino in self._descriptors:
            return
        if self._inodes.by_handle:
            self._handles[ino] = native.system.name_to_handle(fd)
        else:
            self._descriptors[ino] = os.dup(fd)
        if len(self._handles) > DIRECTORIES_MAX or len(self._descriptors) > DESCRIPTORS_MAX:
            self._overflow()

    def take(self) -> Notes:
        """Remove and return some notes; the caller owns the descriptors."""
        directories = [
            fd
            for ino in [*islice(self._handles, DIRECTORIES_PER_DRAIN)]
            if (fd := self._opened(ino, self._handles.pop(ino))) is not None
        ]
        for ino in [*islice(self._descriptors, DIRECTORIES_PER_DRAIN)]:
            directories.append(self._descriptors.pop(ino))
        damaged = [*self._damaged.values()]
        self._damaged.clear()
        return Notes(_taken(self._chunks), _taken(self._recipes), damaged, directories)

    def _opened(self, ino: int, handle: bytes) -> int | None:
        """Open a noted directory; None if it was removed, and therefore is empty."""
        try:
            return native.system.open_by_handle(self._inodes.root_fd, handle, PATH_FLAGS)
        except OSError as error:
            if error.errno != errno.ESTALE:
                self.add_damaged(ino, f"inode {ino}, a directory: {error.strerror}")
            return None

    @property
    def has_more(self) -> bool:
        return bool(
            self._chunks or self._recipes or self._damaged or self._handles or self._descriptors
        )

    def _overflow(self) -> None:
        self.overflowed = True
        self.close()

    def close(self) -> None:
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()
        self._handles.clear()
        self._chunks.clear()
        self._recipes.clear()
        self._damaged.clear()


def _taken(ids: set[int]) -> list[int]:
    """Remove and return some ids of the set."""
    return [ids.pop() for _ in range(min(len(ids), REFERENCES_PER_DRAIN))]


class MarkingSessions:
    """The open marking sessions: one, or briefly two after a job was killed.

    Used by the event-loop thread. All methods except :meth:`begin` run between two awaits.
    """

    def __init__(
        self, volume: Volume, inodes: Inodes, files: OpenFiles, commit_lane: CommitLane
    ) -> None:
        self._volume = volume
        self._inodes = inodes
        self._files = files
        self._commit_lane = commit_lane
        self._logs: set[MarkLog] = set()
        self._released = trio.Event()
        self._held_until_s = 0.0

    @property
    def is_open(self) -> bool:
        """True if changes of names must be noted."""
        return bool(self._logs)

    async def begin(self) -> MarkLog:
        """Open a session: from now on changes are noted, and open files count as named.

        No commit starts before the session ends. The garbage collection holds the job lock, so such
        a commit comes from a dead job. Its rollback would return a recipe to a directory that the
        walk has already visited.
        """
        log = MarkLog(self._inodes)
        self._logs.add(log)
        self._inodes.note_names(True)
        self._commit_lane.are_refused = True
        try:
            for stub in [*self._commit_lane.attributes(), *self._files.stubs()]:
                log.add(stub)
            for at, ino in enumerate(self._inodes.pinned()):
                self._note_pinned(log, ino)
                if at % _INODES_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
        except BaseException:
            self.end(log)
            raise
        return log

    def end(self, log: MarkLog) -> None:
        self._logs.discard(log)
        self._inodes.note_names(bool(self._logs))
        log.close()
        self._commit_lane.are_refused = bool(self._logs)
        if not self._logs:
            self._held_until_s = 0.0
            self._released.set()

    @property
    def are_moves_held(self) -> bool:
        """True if moves of directories must wait."""
        return self._held_until_s > trio.current_time()

    def hold(self) -> None:
        """Make moves of directories wait, for at most a second, or until the sessions end."""
        self._held_until_s = trio.current_time() + HOLD_S
        self._released = trio.Event()

    async def wait_for_release(self) -> None:
        """Wait until a directory may be moved."""
        while (left_s := self._held_until_s - trio.current_time()) > 0:
            with trio.move_on_after(left_s):
                await self._released.wait()

    def _note_pinned(self, log: MarkLog, ino: int) -> None:
        """Note a file that may have no name, but that the kernel still knows."""
        try:
            fd = self._inodes.fd(ino)
            status = os.fstat(fd)
            if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                self._note_file(log, ino, fd)
        except OSError as error:
            if self._inodes.knows(ino):  # otherwise the kernel has forgotten it since then
                log.add_damaged(ino, f"inode {ino}: {error.strerror}")

    def moved(self, dir_fd: int, name: bytes) -> None:
        """Note a name that was made by a rename or a link."""
        try:
            fd = os.open(name, PATH_FLAGS, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        with opened(fd):
            self.changed(fd)

    def changed(self, fd: int) -> None:
        """Note the inode of ``fd`` (``O_PATH``), because its names change."""
        status = os.fstat(fd)
        for log in self._logs:
            if stat.S_ISDIR(status.st_mode):
                log.add_directory(status.st_ino, fd)
            elif stat.S_ISREG(status.st_mode):
                self._note_file(log, status.st_ino, fd)

    def _note_file(self, log: MarkLog, ino: int, fd: int) -> None:
        """Note the record that a file names, if it is a stub; an unreadable attribute is noted as
        damaged."""
        path, space = b"/proc/self/fd/%d" % fd, self._volume.space
        try:
            log.add(
                decode_stub(
                    os.getxattr(path, space.name),
                    space.volume_id,
                    name_in_tree(self._volume.data_fd, fd),
                )
            )
        except DamagedStub as error:
            log.add_damaged(ino, str(error))
        except OSError as error:
            if error.errno != errno.ENODATA:
                log.add_damaged(ino, f"{name_in_tree(self._volume.data_fd, fd)}: {error.strerror}")
