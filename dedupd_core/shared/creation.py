"""Creates a shared store."""

import os
from contextlib import suppress

from dedupd_core.errors import UnsuitableFileSystem, UsageError
from dedupd_core.failpoint import define, reach
from dedupd_core.format.volume_parameters import Parameters, new_parameters
from dedupd_core.stores.local_store import make_store_dirs
from dedupd_core.stores.membership import MemberList
from dedupd_core.stores.shared_directory import LOCK, MEMBERS_FILE, MEMBERS_LOCK, STORE_FILE
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import SUPPORTED
from dedupd_core.system.files import opened
from dedupd_core.system.paths import named
from dedupd_core.volume.enabling.place import refuse_inside_volume, refuse_place
from dedupd_core.volume.enabling.probe import probe, refuse_unsuitable

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_LEFTOVERS = frozenset((b"store", b"catalog", b"probe", LOCK.encode(), MEMBERS_LOCK.encode())) | {
    MEMBERS_FILE,
    *(MEMBERS_FILE + b".new", STORE_FILE + b".new"),
}
"""The possible leftovers of an interrupted call, before the file that makes it a store."""

_PREPARED = define("shared.prepared", "the directories of a new store exist, its file does not")


def create_store(
    path: str, *, chunk_size: str, fingerprint: str, disk: Disk, force: bool = False
) -> Parameters:
    """Make the directory ``path`` a store without volumes; it must be empty, or not exist.

    ``force`` accepts a file system that may lack a property that a store needs. Continues an
    interrupted call. Raises UsageError, UnsuitableFileSystem, OSError.
    """
    root = os.path.realpath(path)
    refuse_place(root, path)
    refuse_inside_volume(root, path)  # its files would become stubs
    _refuse_store(root, path)
    if not os.path.lexists(root):
        with named(root), opened(os.open(os.path.dirname(root), _FLAGS)) as parent:
            disk.make_dir(parent, os.path.basename(root).encode())
            disk.sync_dir(parent)
    with named(root), opened(os.open(root, _FLAGS)) as fd:
        left = set(map(os.fsencode, os.listdir(fd)))
        if STORE_FILE in left:
            raise UsageError(f"{path}: already a store; see `dedupd store status {path}`")
        if left - _LEFTOVERS - {b"lost+found"}:
            raise UsageError(f"{path}: not empty; use an empty directory for the store")
        refuse_unsuitable(fd, path, force=force)
        if os.fstat(fd).st_uid != os.geteuid():
            raise UsageError(f"{path}: belongs to another user; use a directory of your own")
        disk.set_mode(fd, 0o700)
        try:
            attribute = probe(fd, root, disk)
        except UnsuitableFileSystem as error:
            raise UnsuitableFileSystem(f"{error}; use {SUPPORTED}") from error
        parameters = new_parameters(chunk_size, fingerprint, attribute)
        _fill(fd, disk)
        reach(_PREPARED)
        disk.replace_file(fd, STORE_FILE, parameters.to_json())
    return parameters


def _fill(fd: int, disk: Disk) -> None:
    make_store_dirs(fd, disk)
    with suppress(FileExistsError):
        disk.make_dir(fd, b"catalog")
    for lock in (LOCK, MEMBERS_LOCK):
        with suppress(FileExistsError):
            os.close(disk.create(fd, lock.encode()))
    disk.replace_file(fd, MEMBERS_FILE, MemberList([]).to_json())


def _refuse_store(root: str, path: str) -> None:
    """Raise UsageError if the store would be in another one."""
    parent = os.path.dirname(root)
    while parent != "/":
        if os.path.exists(os.path.join(parent, STORE_FILE.decode())):
            raise UsageError(f"{path}: is inside the store {parent}; use another directory")
        parent = os.path.dirname(parent)
