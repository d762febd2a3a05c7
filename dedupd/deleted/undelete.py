"""Deleted files put back into the tree, where they were or beside what is there now."""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from dedupd.deleted.expiry import end_ns
from dedupd.deleted.log import DeletionId, DeletionLogs
from dedupd.deleted.revival import revive
from dedupd.errors import DedupdError, UsageError
from dedupd.system.disk import Disk
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath
from dedupd.volume.base import is_reserved, refuse_reserved
from dedupd.volume.volume import Volume

UNDELETE = b"user.dedupd.undelete"
"""The attribute of an empty file that a user of a mount sets to have it become what a deletion
took."""

UNFINISHED = b".dedupd-undelete"
"""The name of a file that is coming back, and a number. One that a kill has left is removed by the
next run that comes to its directory."""

_UNFINISHED_NAME = re.compile(re.escape(UNFINISHED) + rb"-[0-9]+")

FILES_MAX = 256
"""Made durable at a time: most journals do that in one go."""


class Wanted(NamedTuple):
    """A deletion that is to come back, at ``path`` within the tree."""

    id: str
    path: bytes
    uid: int
    gid: int
    time_s: float


class Back(NamedTuple):
    """What became of a deletion: the path of the file, or why it is not back."""

    path: bytes
    error: DedupdError | OSError | None = None


Attach = Callable[[int, str], None]
"""Makes the empty file of a descriptor what the deletion of an id took."""


class Undelete:
    """Puts files into the tree ``tree_fd``: of a mount, or below where there is none."""

    def __init__(self, tree_fd: int, disk: Disk, attach: Attach) -> None:
        self._tree_fd = tree_fd
        self._disk = disk
        self._attach = attach
        self._is_root = os.geteuid() == 0
        self._cleaned: set[bytes] = set()

    def take(self, wanted: Sequence[Wanted]) -> Iterator[Back]:
        """Have files back. Where a name is taken, the file comes back beside that, with the time of
        its deletion in its name.

        A file shows under its name once it is durable: a crash must not leave zeros there.
        """
        for first in range(0, len(wanted), FILES_MAX):
            group = wanted[first : first + FILES_MAX]
            files = [self._made(one, b"%s-%d" % (UNFINISHED, at)) for at, one in enumerate(group)]
            for at, (one, file) in enumerate(zip(group, files, strict=True)):
                yield self._finished(one, b"%s-%d" % (UNFINISHED, at), file)

    def _made(self, one: Wanted, name: bytes) -> int | DedupdError | OSError:
        """The file of a deletion, open under a name of its own; or why there is none."""
        try:
            directory = one.path.rpartition(b"/")[0]
            with opened(self._directory(directory, one)) as fd:
                self._clean(fd, directory)
                file = self._disk.create(fd, name)
                try:
                    self._attach(file, one.id)
                except BaseException:
                    os.close(file)
                    self._discard(fd, name)
                    raise
                return file
        except (DedupdError, OSError) as error:
            return error

    def _finished(self, one: Wanted, name: bytes, file: int | DedupdError | OSError) -> Back:
        if not isinstance(file, int):
            return Back(one.path, file)
        directory, _, wanted = one.path.rpartition(b"/")
        try:
            with opened(file):
                self._disk.sync_file(file)
            with opened(open_beneath(self._tree_fd, directory, os.O_RDONLY | os.O_DIRECTORY)) as fd:
                given = self._named(fd, name, directory, wanted, one.time_s)
        except (DedupdError, OSError) as error:
            return Back(one.path, error)
        return Back(b"/".join(part for part in (directory, given) if part))

    def _named(self, fd: int, name: bytes, directory: bytes, wanted: bytes, time_s: float) -> bytes:
        disk, when = self._disk, time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s)).encode()
        for ending in (b"", b".deleted-" + when):
            given = wanted[: 255 - len(ending)] + ending
            if not directory and is_reserved(given):
                continue
            try:
                disk.rename_new(fd, name, fd, given)
            except FileExistsError:
                continue
            return given
        self._discard(fd, name)
        raise UsageError(f"{os.fsdecode(given)}: is there already; move it, or use --to")

    def _discard(self, fd: int, name: bytes) -> None:
        disk = self._disk
        with suppress(FileNotFoundError):
            disk.unlink(fd, name)

    def _clean(self, fd: int, directory: bytes) -> None:
        if directory in self._cleaned:
            return
        self._cleaned.add(directory)
        for name in map(os.fsencode, os.listdir(fd)):
            if _UNFINISHED_NAME.fullmatch(name) and _is_left_by_a_kill(fd, name):
                self._discard(fd, name)

    def _directory(self, path: bytes, one: Wanted) -> int:
        """A directory, which is made where it has gone, too: open to the file's owner alone."""
        flags, disk = os.O_RDONLY | os.O_DIRECTORY, self._disk
        try:
            return open_beneath(self._tree_fd, path, flags)
        except FileNotFoundError:
            above, _, name = path.rpartition(b"/")
        refuse_reserved(path)
        with opened(self._directory(above, one)) as fd:
            disk.make_dir(fd, name)
        made = open_beneath(self._tree_fd, path, flags)
        if self._is_root:
            disk.set_owner(made, one.uid, one.gid)
        return made


def _is_left_by_a_kill(fd: int, name: bytes) -> bool:
    """Return whether a name is that of a file. Users can make directories of such names."""
    with suppress(FileNotFoundError):
        return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    return False


def attach_below(volume: Volume) -> Attach:
    """For a volume that is not mounted. Needs the job lock and the mount lock."""

    def attach(fd: int, wanted: str) -> None:
        one = DeletionLogs(volume).get(DeletionId.parse(wanted))
        if end_ns(one, volume.policy()) <= time.time_ns():
            raise UsageError(f"{wanted}: its time is over; a collection may have its bytes")
        revive(volume, fd, one, as_root=True)

    return attach
