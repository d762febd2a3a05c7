"""Whether a volume is the one that was enabled here, or a copy (docs/design/format.md,
"Instance")."""

import os

from dedupd_core import native
from dedupd_core.errors import CopiedVolume, Damaged
from dedupd_core.format.instance import Instance
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import file_system_id
from dedupd_core.system.files import read_if_there

INSTANCE_FILE = b"instance.json"


def instance_of(data_fd: int) -> Instance:
    """The place of the tree that ``data_fd`` is open on. Raises OSError."""
    inode = os.fstat(data_fd).st_ino
    return Instance(file_system_id(data_fd), inode, native.system.generation(data_fd))


def recorded_instance(base_fd: int, where: str) -> Instance | None:
    """The place where the volume was made, or taken over; None where there is no record of it.

    Raises Damaged.
    """
    data = read_if_there(base_fd, INSTANCE_FILE)
    where = os.path.join(where, INSTANCE_FILE.decode())
    return None if data is None else Instance.from_json(data, where)


def record_instance(base_fd: int, instance: Instance, disk: Disk) -> None:
    """Say that the volume belongs here. Durable when this returns."""
    disk.replace_file(base_fd, INSTANCE_FILE, instance.to_json())


def refuse_copy(base_fd: int, here: Instance, root: str, base: str) -> None:
    """Raises CopiedVolume where a volume is not the one that its record says."""
    try:
        recorded = recorded_instance(base_fd, base)
    except Damaged as error:
        raise CopiedVolume(f"{error}; to create it again, run `dedupd adopt {root}`") from error
    if recorded == here:
        return
    if recorded is None:
        reason = "the record of its place is missing"
    elif recorded.file_system != here.file_system:
        reason = "it is on another file system than the volume, or the file system has a new uuid"
    else:
        reason = "it is in another directory than the volume"
    raise CopiedVolume(
        f"{root}: is a copy of a volume, made file by file ({reason}), so its stubs may have lost"
        f" bytes. To check them and use the copy, run `dedupd adopt {root}`; docs/guide/backup.md"
        " lists programs that make good copies"
    )
