"""Walking the tree of a volume: every directory, and every file once."""

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, NamedTuple, Self, TypeVar

from dedupd_core import native
from dedupd_core.native.tree import Directory, FileEntry, Unreadable
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.volume.volume import Volume
from jobs.frame.run import checked

SafePoint = Callable[[], None]
"""A safe point of the job: waits where the job gives way, raises where the job stops."""

DIRECTORIES_AT_ONCE = 64
"""Looked at by all cores in one call: their files are in memory at once."""

GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE))
"""A directory that was listed is there no more, or its name is that of something else."""

_LEFT_OUT = frozenset((errno.ENOENT,))
"""A path that is not there: also where a walk begins."""

_ELSEWHERE = (
    "another file system or subvolume, which is not part of the volume: users cannot access it,"
    " and jobs skip it; move it out of the volume"
)

D = TypeVar("D", bound=Directory)
Look = Callable[[Sequence[bytes]], Sequence[D | Unreadable]]
"""Looks at directories, given by their paths below the tree; ``.`` is the tree itself."""


class WalkedDirectory(NamedTuple, Generic[D]):
    """A directory that a walk came upon. ``prefix`` is what paths in it begin with."""

    path: bytes
    prefix: bytes
    here: D | Unreadable


class TreeFile(NamedTuple):
    """A regular file of the tree. ``path`` is relative to the tree.

    ``attribute`` is the stub attribute as it was found, None for a plain file, and empty where it
    could not be read. ``owner`` is a user by number.
    """

    path: bytes
    identity: FileIdentity
    allocated_bytes: int
    attribute: bytes | None
    owner: int

    @property
    def is_stub(self) -> bool:
        return self.attribute is not None

    @classmethod
    def of(cls, prefix: bytes, file: FileEntry) -> Self:
        return cls(
            path=prefix + file.name,
            identity=FileIdentity._make(file.identity),
            allocated_bytes=file.allocated_bytes,
            attribute=file.attribute,
            owner=file.owner,
        )


class FirstNames:
    """Lets files of several names pass once: under the first name that is met."""

    def __init__(self) -> None:
        self._inodes: set[int] = set()

    def has(self, file: FileEntry) -> bool:
        """Whether this is the first name of the file."""
        if file.links == 1:
            return True
        inode = file.identity[0]
        if inode in self._inodes:
            return False
        self._inodes.add(inode)
        return True


def each_directory(
    look: Look[D], safe_point: SafePoint, below: bytes = b"", at_once: int = 0
) -> Generator[WalkedDirectory[D], None, None]:
    """Every directory of a tree from ``below`` on.

    ``at_once`` are looked at by one call, and the next ones by another thread meanwhile; 0 stands
    for as many as are usual, 1 for one after the other, depth first. A directory that cannot be
    read comes with its error, and so does one of another file system (EXDEV); one that vanishes is
    passed over. Where ``below`` itself is no directory, the error says so.
    """
    at_once = at_once or DIRECTORIES_AT_ONCE
    pending = [below]
    under_way: deque[tuple[list[bytes], Callable[[], Sequence[D | Unreadable]]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="scan") as ahead:
        while pending or under_way:
            safe_point()
            while pending and len(under_way) < min(2, at_once):
                paths = [pending.pop() for _ in range(min(at_once, len(pending)))]
                task = partial(look, [path or b"." for path in paths])
                under_way.append((paths, ahead.submit(task).result if at_once > 1 else task))
            paths, found = under_way.popleft()
            for path, here in zip(paths, found(), strict=True):
                if isinstance(here, Unreadable):
                    if here.errno not in (_LEFT_OUT if path == below else GONE | _LEFT_OUT):
                        yield WalkedDirectory(path, b"", here)
                    continue
                prefix = path + b"/" if path else b""
                yield WalkedDirectory(path, prefix, here)
                pending.extend(prefix + name for name in sorted(here.directories, reverse=True))


def walk(
    volume: Volume,
    below: bytes = b"",
    errors: list[str] | None = None,
    safe_point: SafePoint | None = None,
) -> Iterator[TreeFile]:
    """Every regular file below a path of the tree, hard links once, other file systems never.

    One directory is in memory at a time. Follows no link. A file that vanishes meanwhile is passed
    over; a directory that cannot be read, or is another file system, is added to ``errors``.
    ``safe_point`` is called every few milliseconds.
    """
    names = FirstNames()
    errors = [] if errors is None else errors

    def look(paths: Sequence[bytes]) -> list[Directory | Unreadable]:
        return [listed(volume, path, safe_point) for path in paths]

    for path, prefix, here in each_directory(look, safe_point or (lambda: None), below, at_once=1):
        if isinstance(here, Directory):
            for file in checked(here.files, safe_point):
                if names.has(file):
                    yield TreeFile.of(prefix, file)
        elif here.errno == errno.ENOTDIR:
            yield from single_file(volume, path, errors)
        else:
            errors.append(unreadable(path, here.errno))


def listed(volume: Volume, path: bytes, safe_point: SafePoint | None) -> Directory | Unreadable:
    """A directory with all of its files."""
    try:
        with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_DIRECTORY)) as fd:
            if os.fstat(fd).st_dev != os.fstat(volume.data_fd).st_dev:
                return Unreadable(errno.EXDEV)
            return native.tree.scan_directory(fd, volume.space.name, safe_point)
    except OSError as error:
        return Unreadable(error.errno or errno.EIO)


def single_file(volume: Volume, path: bytes, errors: list[str]) -> Iterator[TreeFile]:
    """The file of a path, if it is a regular one; ``errors`` says why it cannot be opened."""
    try:
        with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_dev == os.fstat(volume.data_fd).st_dev:
                attribute = native.system.fgetxattr(fd, volume.space.name)
                identity = FileIdentity.of(status)
                size_bytes = status.st_blocks * 512
                yield TreeFile(path, identity, size_bytes, attribute, status.st_uid)
    except FileNotFoundError:
        pass
    except OSError as error:
        errors.append(unreadable(path, error.errno or errno.EIO))


def unreadable(path: bytes, number: int) -> str:
    """What to tell of a path that cannot be read."""
    return f"{show_path(path) or '.'}: {unreadable_reason(number)}"


def unreadable_reason(number: int) -> str:
    """What an error means for a directory of the tree."""
    return _ELSEWHERE if number == errno.EXDEV else os.strerror(number)


def is_readable(volume: Volume, path: bytes) -> bool:
    """Whether a file can be opened, and so its attribute be read."""
    try:
        os.close(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        return False
    return True
