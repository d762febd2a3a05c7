"""Finding the needed records: by every stub of a tree in use, and by open files without a name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from dedupd_core import native
from dedupd_core.errors import Busy, DamagedStub, ServiceUnreachable
from dedupd_core.format.stub import attribute_seed, decode_stub
from dedupd_core.native.upkeep import Marks, Needs
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.system.paths import show_path
from dedupd_core.system.tree.tree_paths import numbered, path_in_tree
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.tree.walk import GONE

ATTEMPTS_MAX = 8
"""Walks that a mount may cut short by coming, going or moving more than its log holds."""

DIRECTORIES_PER_DRAIN = 64
"""Directories walked between two questions to the mount about moved files."""

PENDING_MAX = 256
"""Descriptors of moved directories that are yet to be walked; further ones stay with the mount."""

ROUNDS_PER_HOLD = 64
"""Rounds of questions after the walk. Mostly there are two; where users make and move directories
all the time, the mount then holds such moves for a moment."""

_CONNECT_WAIT_S = 30.0


class WalkInterrupted(Exception):
    """The walk does not count: the mount came, went, or lost count of moved files."""


@dataclass(frozen=True, slots=True)
class MoveNotes:
    """The notes of a mount: records that moved stubs name, and moved directories, open."""

    chunks: list[int]
    recipes: list[int]
    damaged: list[str]
    directories: list[int]
    more: bool


class Session(Protocol):
    """A source of changes to the tree during a walk."""

    def drain(self) -> MoveNotes | None:
        """The files moved since the last call; None where there are none. Raises Interrupted."""
        ...

    def hold(self) -> None:
        """Have moves of directories wait for a moment. Raises Interrupted."""
        ...


class MountSession:
    """The mount process takes note."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        try:
            reply = client.call("mark_begin")
        except ServiceUnreachable as error:
            raise WalkInterrupted from error
        if "error" in reply:
            raise WalkInterrupted(reply["error"])

    def drain(self) -> MoveNotes | None:
        try:
            reply, fds = self._client.call_for_fds("mark_drain")
        except ServiceUnreachable as error:
            raise WalkInterrupted from error
        if "error" in reply or reply["overflowed"] or len(fds) != reply["directories"]:
            for fd in fds:
                os.close(fd)
            raise WalkInterrupted
        moved = MoveNotes(reply["chunks"], reply["recipes"], reply["damaged"], fds, reply["more"])
        is_any = moved.chunks or moved.recipes or moved.damaged or fds or moved.more
        return moved if is_any else None

    def hold(self) -> None:
        try:
            self._client.call("mark_hold")
        except ServiceUnreachable as error:
            raise WalkInterrupted from error


class OfflineSession:
    """No mount: nothing is moved as long as none comes."""

    def __init__(self, volume: Volume, mark: int) -> None:
        self._volume = volume
        self._mark = mark

    def drain(self) -> MoveNotes | None:
        try:
            with self._volume.mount_lock():
                if self._volume.mount_mark() == self._mark:
                    return None
        except Busy:
            pass
        raise WalkInterrupted

    def hold(self) -> None:
        """Nothing moves."""


@contextmanager
def open_session(volume: Volume) -> Iterator[Session]:
    """Begin to take note of moved files. Raises Interrupted, ServiceUnreachable."""
    with volume.mount_or_lock(wait_s=_CONNECT_WAIT_S) as held:
        if isinstance(held, ControlClient):
            yield MountSession(held)
            return
        mark = volume.mount_mark()
    yield OfflineSession(volume, mark)


@dataclass(slots=True)
class Roots:
    """The counts of a walk; ``problems`` name the parts of the tree that could not be read."""

    files: int = 0
    stubs: int = 0
    directories: int = 0
    problems: list[str] = field(default_factory=list)


class TreeMarker:
    """Marks the records that stubs name. Reads the tree only; holds one descriptor a level."""

    def __init__(self, volume: Volume, run: JobRun, chunks: Marks, recipes: Needs) -> None:
        self._volume = volume
        self._run = run
        self._chunks = chunks
        self._recipes = recipes
        self._device = os.fstat(volume.data_fd).st_dev
        self._roots = Roots()
        self._listed = InodeSet()
        self._pending: list[int] = []

    def mark(self) -> Roots:
        """Mark all. When it returns there was a moment, since it was called, at which nothing was
        named, or open, that is not marked. Raises Busy where the mount allows none, Cancelled.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._attempt()
            except WalkInterrupted:
                self._run.safe_point()
            finally:
                for fd in self._pending:
                    os.close(fd)
                self._pending.clear()
        raise Busy(
            f"{self._volume.root}: the volume was mounted, unmounted or rearranged each time while"
            " it was read; run the job again when it is idle"
        )

    def _attempt(self) -> Roots:
        self._roots = Roots()
        self._listed.clear()
        with open_session(self._volume) as session:
            self._note_mounts()
            root = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._volume.data_fd)
            self._walk(root, session)
            for rounds in count(1):
                moved = session.drain()
                if moved is not None:
                    self._take(moved)
                if not self._pending and (moved is None or not moved.more):
                    # All that had moved by the answer is listed, whatever moves again since.
                    self._note_mounts()
                    return self._roots
                while self._pending:
                    self._walk(self._pending.pop(), session)
                self._run.safe_point()
                if rounds % ROUNDS_PER_HOLD == 0:
                    session.hold()
        raise AssertionError("unreachable")

    def _note_mounts(self) -> None:
        """Report mounts over the tree: files beneath them need chunks, and cannot be walked."""
        for point in mount_table.inside(os.readlink(f"/proc/self/fd/{self._volume.data_fd}")):
            problem = f"{point}: is mounted over files that may need chunks; unmount it"
            if problem not in self._roots.problems:
                self._roots.problems.append(problem)

    def _take(self, moved: MoveNotes) -> None:
        """Take in moved files; a directory that was listed already needs no second look.

        A stub that the listing of a directory missed has itself been moved since the session began,
        and a directory that it missed as well: both are noted.
        """
        self._chunks.add(moved.chunks)
        for recipe in moved.recipes:
            self._recipes.need(recipe, Needs.WHOLE)
        self._roots.problems += moved.damaged
        for fd in moved.directories:
            try:
                if os.fstat(fd).st_ino not in self._listed:
                    # It came as a descriptor that only names it.
                    self._pending.append(
                        os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    )
            finally:
                os.close(fd)

    def _walk(self, fd: int, session: Session) -> None:
        """Walk a directory (``fd`` is taken over) down, by descriptors: however it is moved
        meanwhile, it is this one. Directories that were listed in this attempt are passed over."""
        levels: list[tuple[int, list[bytes]]] = [(fd, [])]
        try:
            if self._listed.add(os.fstat(fd).st_ino):
                levels[0] = fd, self._list(fd)
            while levels:
                parent, names = levels[-1]
                if not names:
                    os.close(levels.pop()[0])
                    continue
                child = self._open(parent, names.pop())
                if child is not None:
                    levels.append((child, []))
                    levels[-1] = child, self._list(child)
                    self._between_directories(session)
        finally:
            for level, _ in levels:
                os.close(level)

    def _between_directories(self, session: Session) -> None:
        self._run.safe_point()
        roots = self._roots
        roots.directories += 1
        self._run.update(files=roots.files, done=roots.files)
        is_time = (
            roots.directories % DIRECTORIES_PER_DRAIN == 0 and len(self._pending) < PENDING_MAX
        )
        if is_time and isinstance(session, MountSession):
            moved = session.drain()
            if moved is not None:
                self._take(moved)

    def _open(self, parent: int, name: bytes) -> int | None:
        """A directory to walk; None where it is another thing now, or another file system, or was
        listed already."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno not in GONE:
                self._problem(parent, name, error.strerror)
            return None
        status = os.fstat(fd)
        if status.st_dev != self._device or not self._listed.add(status.st_ino):
            os.close(fd)
            return None
        return fd

    def _list(self, fd: int) -> list[bytes]:
        """Mark the records of a directory's stubs; returns the names of its directories."""
        try:
            here = native.upkeep.scan_stubs(
                fd,
                self._volume.space.name,
                attribute_seed(self._volume.space.volume_id),
                self._run.safe_point,
            )
        except OSError as error:
            if error.errno not in GONE:
                self._problem(fd, b"", error.strerror)
            return []
        self._roots.files += here.file_count
        self._roots.stubs += here.stub_count + len(here.files)
        for file in here.files:
            self._damaged(fd, file.name, file.attribute or b"")
        self._chunks.add_packed(here.chunks)
        self._recipes.need_packed(here.recipes, here.covered)
        return here.directories

    def _damaged(self, fd: int, name: bytes, value: bytes) -> None:
        """Report an attribute that native code does not accept, with the reason."""
        reason = "its stub attribute is not valid"
        try:
            decode_stub(value, self._volume.space.volume_id, "")
        except DamagedStub as error:
            reason = str(error).removeprefix(": ")
        self._problem(fd, name, reason)

    def _problem(self, parent: int, name: bytes, reason: str | None) -> None:
        above = path_in_tree(self._volume.data_fd, parent)
        if above is None:
            above = numbered(parent)
        where = show_path(os.path.join(above, name).strip(b"/")) or "."
        self._roots.problems.append(f"{where}: {reason}")


_PAGE_BITS = 9


class InodeSet:
    """Inode numbers as bits of pages of 512: file systems number near inodes alike.

    A directory for every twenty files takes some ten bytes; one alone in its page takes 200.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def __contains__(self, ino: int) -> bool:
        page = self._pages.get(ino >> _PAGE_BITS, 0)
        return bool(page >> (ino & ((1 << _PAGE_BITS) - 1)) & 1)

    def add(self, ino: int) -> bool:
        """Whether the number is new."""
        if ino in self:
            return False
        number = ino >> _PAGE_BITS
        self._pages[number] = self._pages.get(number, 0) | 1 << (ino & ((1 << _PAGE_BITS) - 1))
        return True

    def clear(self) -> None:
        self._pages.clear()
