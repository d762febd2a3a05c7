"""Restores a deletion into an empty file, as a stub of the same recipe."""

import os
import stat

from dedupd_core.deleted.listing import length_of
from dedupd_core.errors import UsageError
from dedupd_core.format.deletion import Deletion
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.system.tree.takeover import (
    Rights,
    drop_inherited_acls,
    permissions,
    takes_attribute,
)
from dedupd_core.volume.volume import Volume


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
