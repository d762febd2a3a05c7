"""Names that move while garbage collection walks the tree.

A walk misses a file that is moved from a directory that it has yet to see into one that it has
seen. It cannot see at all a file that has no name any more and is still open. So while a marking
session is open, the mount notes every move, link and removal: of a file the record that its stub
names, of a directory the directory itself, which the walk looks at unless it has. Users wait for
nothing, except that a move of a directory may be held for a moment where they move without end.
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
"""Most entries of a log between two drains, some 25 MB of directories. A log that has more
overflows, and the walk begins again."""

DESCRIPTORS_MAX = 512
"""Most directories of a log where they cannot be opened by their handles, and are kept open."""

DAMAGED_MAX = 1000
"""Messages kept: one is enough for garbage collection to leave everything as it is."""

DIRECTORIES_PER_DRAIN = 32
REFERENCES_PER_DRAIN = 16_384
"""Descriptors and ids that go with one reply, which takes a millisecond or two to make."""

HOLD_S = 1.0
"""How long moves of directories are held at most."""

_INODES_PER_TURN = 256


@dataclass(frozen=True, slots=True)
class Notes:
    """Some notes of a session: ids that stubs name, messages, and descriptors of directories."""

    chunks: list[int]
    recipes: list[int]
    damaged: list[str]
    directories: list[int]


class MarkLog:
    """The notes of one session that were not handed over yet."""

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
        """Note an inode that may name a record which cannot be read from it."""
        if len(self._damaged) < DAMAGED_MAX:
            self._damaged[ino] = message

    def add_directory(self, ino: int, fd: int) -> None:
        """Note a directory that ``fd`` is open on: by its handle, which takes no descriptor."""
        if self.overflowed or ino in self._handles or ino in self._descriptors:
            return
        if self._inodes.by_handle:
            self._handles[ino] = native.system.name_to_handle(fd)
        else:
            self._descriptors[ino] = os.dup(fd)
        if len(self._handles) > DIRECTORIES_MAX or len(self._descriptors) > DESCRIPTORS_MAX:
            self._overflow()

    def take(self) -> Notes:
        """Some notes, which are forgotten here; the descriptors are the caller's."""
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
        """A directory that was noted; None where it was removed, and so is empty."""
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
    """Some ids, which are removed from the set."""
    return [ids.pop() for _ in range(min(len(ids), REFERENCES_PER_DRAIN))]


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
        self._released = trio.Event()
        self._held_until_s = 0.0

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
        """Whether moves of directories have to wait."""
        return self._held_until_s > trio.current_time()

    def hold(self) -> None:
        """Have moves of directories wait, for a second at most, or until the sessions end."""
        self._held_until_s = trio.current_time() + HOLD_S
        self._released = trio.Event()

    async def wait_for_release(self) -> None:
        """Wait until a directory may be moved."""
        while (left_s := self._held_until_s - trio.current_time()) > 0:
            with trio.move_on_after(left_s):
                await self._released.wait()

    def _note_pinned(self, log: MarkLog, ino: int) -> None:
        """Note a file that may have no name, and that the kernel still knows."""
        try:
            fd = self._inodes.fd(ino)
            status = os.fstat(fd)
            if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                self._note_file(log, ino, fd)
        except OSError as error:
            if self._inodes.knows(ino):  # else the kernel has forgotten it meanwhile
                log.add_damaged(ino, f"inode {ino}: {error.strerror}")

    def moved(self, dir_fd: int, name: bytes) -> None:
        """A name has come into being, by a rename or a link."""
        try:
            fd = os.open(name, PATH_FLAGS, dir_fd=dir_fd)
        except FileNotFoundError:
            return
        with opened(fd):
            self.changed(fd)

    def changed(self, fd: int) -> None:
        """Names of the inode that ``fd`` (``O_PATH``) is open on come or go."""
        status = os.fstat(fd)
        for log in self._logs:
            if stat.S_ISDIR(status.st_mode):
                log.add_directory(status.st_ino, fd)
            elif stat.S_ISREG(status.st_mode):
                self._note_file(log, status.st_ino, fd)

    def _note_file(self, log: MarkLog, ino: int, fd: int) -> None:
        """Note the record that a file names, if it is a stub; an attribute that cannot be read is
        noted as damaged."""
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
