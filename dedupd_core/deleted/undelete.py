"""Restores deleted files into the tree, in their old place or next to an existing file."""

import fcntl
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

from dedupd_core.deleted.expiry import end_ns
from dedupd_core.deleted.listing import length_of
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.errors import DedupdError, UsageError
from dedupd_core.format.deletion import Deletion
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import is_there, opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.system.tree.takeover import (
    Rights,
    drop_inherited_acls,
    keep_group,
    make_directory_of,
    permissions,
    refuse_others_directory,
    remove_private,
    rights_of,
    takes_attribute,
)
from dedupd_core.system.tree.unfinished import Mark, is_marked, mark, unmark
from dedupd_core.volume.enabling.base import is_reserved, refuse_reserved
from dedupd_core.volume.volume import Volume

UNDELETE = b"user.dedupd.undelete"
"""The attribute of an empty file that a user of a mount sets to restore a deletion into it."""

UNFINISHED = b".dedupd-undelete"
"""The name of an unfinished restored file, followed by a number. If a killed run leaves one with an
unfinished mark, the next run in its directory removes it."""

_UNFINISHED = re.compile(re.escape(UNFINISHED) + rb"-[0-9]+")

FILES_MAX = 256
"""The number of files made durable at a time: most journals do that in one step."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class UndeleteRequest(NamedTuple):
    """A request to the mount, as the value of :data:`UNDELETE`: an id, and the words ``privileges``
    and ``force`` of root. ``force`` accepts a log that does not prove its content."""

    id: DeletionId
    privileges: bool = False
    force: bool = False

    def __str__(self) -> str:
        words = [("privileges", self.privileges), ("force", self.force)]
        return " ".join([str(self.id), *(word for word, given in words if given)])

    @classmethod
    def parse(cls, text: str) -> "UndeleteRequest":
        """Parse a token. Raises UsageError."""
        one_id, *words = text.split(" ")
        if len(set(words)) < len(words) or not {"privileges", "force"}.issuperset(words):
            raise UsageError(
                f"{text!r}: not the ID of a deletion, optionally with the words privileges and"
                " force"
            )
        return cls(DeletionId.parse(one_id), "privileges" in words, "force" in words)


class DeletedFile(NamedTuple):
    """A deletion to restore, to ``path`` within the tree."""

    id: str
    path: bytes
    uid: int
    gid: int
    time_s: float


class UndeleteResult(NamedTuple):
    """The result of a deletion: the path of the restored file, or the error."""

    path: bytes
    error: DedupdError | OSError | None = None


class _Unfinished(NamedTuple):
    """A file that is complete but not durable, under a temporary name."""

    file: int
    directory: int
    name: bytes


Attach = Callable[[int, DeletedFile], None]
"""Restores a deletion into the empty file of a descriptor."""


class Undelete:
    """Restores files into the tree ``tree_fd``: of a mount, or of an unmounted volume.

    Root only restores a file into a directory of root or of the file's owner, unless ``force``.
    """

    def __init__(self, tree_fd: int, disk: Disk, attach: Attach, *, force: bool = False) -> None:
        self._tree_fd = tree_fd
        self._disk = disk
        self._attach = attach
        self._force = force
        self._is_root = os.geteuid() == 0
        self._cleaned: set[tuple[int, int]] = set()
        self._numbers = itertools.count()

    def take(self, wanted: Sequence[DeletedFile]) -> Iterator[UndeleteResult]:
        """Restore files, under their names or next to existing files with these names.

        Then the name includes the time of the deletion. A file gets its name when it is durable: a
        crash must not leave zeros. A file that cannot be restored does not affect others.
        """
        for first in range(0, len(wanted), FILES_MAX):
            group = wanted[first : first + FILES_MAX]
            with ExitStack() as files:
                made = [self._made(one, files) for one in group]
                for one, unfinished in zip(group, made, strict=True):
                    yield self._finished(one, unfinished)

    def _made(self, one: DeletedFile, files: ExitStack) -> "_Unfinished | DedupdError | OSError":
        """Return the open file of a deletion, under a temporary name; or the error."""
        try:
            with opened(self._directory(one.path.rpartition(b"/")[0], one)) as fd:
                self._clean(fd)
                name, file = self._create(fd)
                try:
                    mark(self._disk, file, Mark.FILE)
                    self._attach(file, one)
                    unfinished = _Unfinished(file, os.dup(fd), name)
                except BaseException:
                    os.close(file)
                    self._discard(fd, name)
                    raise
            files.callback(self._give_up, unfinished)
            return unfinished
        except (DedupdError, OSError) as error:
            return error

    def _create(self, fd: int) -> tuple[bytes, int]:
        """Create an empty file that no other run treats as a leftover of a killed run."""
        for number in self._numbers:
            name = b"%s-%d" % (UNFINISHED, number)
            with suppress(FileExistsError):
                file = self._disk.create(fd, name)
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return name, file
        raise AssertionError("numbers do not end")

    def _finished(
        self, one: DeletedFile, made: "_Unfinished | DedupdError | OSError"
    ) -> UndeleteResult:
        if not isinstance(made, _Unfinished):
            return UndeleteResult(one.path, made)
        directory, _, wanted = one.path.rpartition(b"/")
        try:
            self._disk.sync_file(made.file)
            given = self._named(made, directory, wanted, one.time_s)
        except (DedupdError, OSError) as error:
            return UndeleteResult(one.path, error)
        return UndeleteResult(b"/".join(part for part in (directory, given) if part))

    def _named(self, made: _Unfinished, directory: bytes, wanted: bytes, time_s: float) -> bytes:
        disk, when = self._disk, time.strftime("%Y%m%d-%H%M%S", time.localtime(time_s)).encode()
        fd, name = made.directory, made.name
        for ending in (b"", b".deleted-" + when):
            given = wanted[: 255 - len(ending)] + ending
            if not directory and is_reserved(given):
                continue
            try:
                disk.rename_new(fd, name, fd, given)
            except FileExistsError:
                continue
            there = os.stat(given, dir_fd=fd, follow_symlinks=False)
            if there.st_ino != os.fstat(made.file).st_ino:
                raise UsageError(
                    f"{show_path(given)}: another user has created a file with this name; restore"
                    " it into another directory with --to"
                )
            with suppress(OSError):
                _unmark(disk, made.file)
            return given
        raise UsageError(f"{show_path(given)}: a file of this name exists; move it or use --to")

    def _give_up(self, made: _Unfinished) -> None:
        """Close a file, and remove it if it has no final name."""
        with opened(made.directory), opened(made.file), suppress(OSError):
            there = os.stat(made.name, dir_fd=made.directory, follow_symlinks=False)
            if there.st_ino == os.fstat(made.file).st_ino:
                self._discard(made.directory, made.name)

    def _discard(self, fd: int, name: bytes) -> None:
        disk = self._disk
        with suppress(OSError):
            disk.unlink(fd, name)

    def _clean(self, fd: int) -> None:
        """Remove leftovers of killed runs in a directory."""
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) in self._cleaned:
            return
        self._cleaned.add((status.st_dev, status.st_ino))
        for name in map(os.fsencode, os.listdir(fd)):
            if _UNFINISHED.fullmatch(name):
                self._clean_one(fd, name)

    def _clean_one(self, fd: int, name: bytes) -> None:
        with suppress(OSError):  # another run still works on it, or has finished it
            kind = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                remove_private(self._disk, fd, name)
            elif stat.S_ISREG(kind):
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                with opened(os.open(name, flags, dir_fd=fd)) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if is_marked(file, Mark.FILE):
                        self._discard(fd, name)

    def _directory(self, path: bytes, one: DeletedFile) -> int:
        """Open the target directory. A missing directory is created, with access for the owner of
        the file only."""
        try:
            fd = open_beneath(self._tree_fd, path, _DIRECTORY)
        except FileNotFoundError:
            above, _, name = path.rpartition(b"/")
            refuse_reserved(path)
            with opened(self._directory(above, one)) as fd:
                return self._made_directory(fd, name, one)
        try:
            if self._is_root and not self._force:
                refuse_others_directory(fd, path, one.uid)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _made_directory(self, fd: int, name: bytes, one: DeletedFile) -> int:
        disk = self._disk
        if not self._is_root:
            disk.make_dir(fd, name)
            return open_beneath(fd, name, _DIRECTORY)
        self._clean(fd)
        for number in self._numbers:
            private = b"%s-%d" % (UNFINISHED, number)
            try:
                return make_directory_of(disk, fd, name, private, one.uid, one.gid)
            except FileExistsError:
                if is_there(fd, name):
                    raise
        raise AssertionError("numbers do not end")


def _unmark(disk: Disk, file: int) -> None:
    """Remove the mark from a file that has its name. A user without the permission to write to the
    file gets it for that moment. Raises OSError."""
    mode = stat.S_IMODE(os.fstat(file).st_mode)
    is_closed = os.geteuid() != 0 and not mode & stat.S_IWUSR
    if is_closed:
        disk.set_mode(file, mode | stat.S_IWUSR)
    try:
        unmark(disk, file)
    finally:
        if is_closed:
            disk.set_mode(file, mode)


def attach_below(volume: Volume, *, privileges: bool = False, force: bool = False) -> Attach:
    """Return the function for an unmounted volume. Needs the job lock and the mount lock."""
    rights = rights_of(os.geteuid(), privileges=privileges)
    logs = DeletionLogs(volume)

    def attach(fd: int, wanted: DeletedFile) -> None:
        one = logs.get(DeletionId.parse(wanted.id), unproven=force)
        if end_ns(one, volume.policy()) <= time.time_ns():
            raise UsageError(
                f"{wanted.id}: the retention time has expired; its data may have been collected"
            )
        keep_group(volume.disk, fd, wanted.gid)
        revive(volume, fd, one, rights)

    return attach


def revive(volume: Volume, fd: int, one: Deletion, rights: Rights) -> StubAttribute:
    """Make the empty file ``fd`` the file of a deletion; return its attribute.

    Only the caller may use the file until then, and no program may rely on its name: a crash may
    leave zeros. Owner, permissions and attributes are restored as far as ``rights`` allow. Raises
    Damaged if the recipe cannot be read, UsageError, OSError.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size or status.st_nlink > 1:
        raise UsageError(f"{os.fsdecode(one.path)}: can only be restored into a new, empty file")
    kept = clean(one.stub)
    volume.content(kept, os.fsdecode(one.path)).require_recipe()
    disk, files = volume.disk, volume.stub_files
    disk.truncate(fd, length_of(one))
    if rights is not Rights.USER and os.geteuid() == 0:
        disk.set_owner(fd, one.uid, one.gid)
    same_group = os.fstat(fd).st_gid == one.gid
    drop_inherited_acls(disk, fd)
    disk.set_mode(fd, permissions(one.mode, rights, same_group=same_group))
    for name, value in one.attributes:
        is_stub = name == volume.space.name
        if not is_stub and takes_attribute(name, rights, same_group=same_group):
            disk.set_attribute(fd, name, value)
    files.write(fd, kept)
    disk.set_times(fd, one.atime_ns, one.mtime_ns)
    return kept


def take_back(volume: Volume, fd: int) -> None:
    """Empty a restored file again, because its deletion has expired in between."""
    volume.disk.truncate(fd, 0)
    volume.disk.remove_attribute(fd, volume.space.name)


def clean(stub: StubAttribute) -> StubAttribute:
    """Return the attribute of the same recipe for a file without local blocks."""
    return StubAttribute(stub.recipe, stub.digest, stub.covered, 0, stub.flags & Flag.DIRECT)
