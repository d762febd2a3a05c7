"""Whether a file system can keep a volume: what is known of it, and what stubs rely on, tried out
in a file.

What is known may change with each mount of it, so it is looked at for each mount of a volume.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import UnsuitableFileSystem
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import SUPPORTED, block_bytes_of, file_system_of
from dedupd_core.system.files import data_ranges, opened, read_file
from dedupd_core.volume.volume import Volume

ACCEPTED_FILE = b"accepted.json"
"""The obstacles of the file system that the administrator has accepted for this volume."""

IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs", "zram"))
PSEUDO = frozenset(("proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "configfs"))

_SUPPORTED_KINDS = frozenset(row.name for row in native.system.file_systems() if row.is_supported)

_ALWAYS_TOLD = frozenset(("bsddf", "minixdf"))
"""One of them is in ``/proc/fs/ext4``, so that a data mode that is not there is none."""

_ACCEPT = "to accept this risk, use `--force`"


class Obstacle(NamedTuple):
    """A property of a file system for which it is refused.

    ``name`` is the same each time, ``why`` is for people. ``is_final``: no administrator can accept
    it.
    """

    name: str
    why: str
    is_final: bool = False


def obstacle_of(fd: int) -> Obstacle | None:
    """The first property of the file system of ``fd`` for which a volume on it is refused.

    docs/design/crash-safety.md rests on the order of metadata: that is what ext4 with a journal,
    XFS and btrfs keep, and what was tried.
    """
    found = file_system_of(fd)
    if found.kind in IN_MEMORY | PSEUDO:
        return Obstacle(
            found.kind, "keeps files in memory, and loses them at a restart of the machine", True
        )
    if found.kind not in _SUPPORTED_KINDS:
        return Obstacle(found.kind, f"was not tested; use {SUPPORTED}")
    if found.kind != "ext4":
        return None
    if found.data_mode == "writeback":
        return Obstacle(
            "ext4 with data=writeback",
            "can show old disk blocks as data after a power failure; mount it with data=ordered,"
            " or run `tune2fs -o ^journal_data_writeback` on its device",
        )
    if not found.data_mode and not found.options & _ALWAYS_TOLD:
        return Obstacle(
            "ext4 with unknown options", "may have no journal: /proc/fs/ext4 is missing"
        )
    if not found.data_mode:
        return Obstacle(
            "ext4 without a journal",
            "can lose synced files in a power failure; unmount it, and run `tune2fs -O"
            " has_journal` on its device",
        )
    return None


def refuse_unsuitable(
    fd: int, where: str, accepted: Iterable[str] = (), *, force: bool = False
) -> None:
    """Raises UnsuitableFileSystem where the file system of ``fd`` is refused; ``force`` accepts
    what an administrator can accept."""
    found = obstacle_of(fd)
    if found is not None and (found.is_final or not (force or found.name in accepted)):
        remedy = f"use {SUPPORTED}" if found.is_final else _ACCEPT
        raise UnsuitableFileSystem(f"{where}: {found.name} {found.why}; {remedy}")


def accepted_by(base_fd: int) -> list[str]:
    """The names of the obstacles that were accepted for a volume; none where the file is damaged:
    then the administrator is asked again."""
    try:
        value = json.loads(read_file(base_fd, ACCEPTED_FILE))
        return [name for name in value["file_system"] if isinstance(name, str)]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def accept(volume: Volume) -> None:
    """Accept what there is against the file system of a volume, for this and later mounts.

    Raises UnsuitableFileSystem where it cannot be accepted.
    """
    refuse_unsuitable(volume.base_fd, volume.root, force=True)
    note_accepted(volume.base_fd, volume.disk)


def note_accepted(base_fd: int, disk: Disk) -> None:
    """Note that what there is against the file system of a volume is accepted."""
    found = obstacle_of(base_fd)
    if found is not None:
        text = json.dumps({"file_system": [found.name]}, indent=2)
        disk.replace_file(base_fd, ACCEPTED_FILE, text.encode() + b"\n")


def require_suitable(volume: Volume) -> None:
    """For whatever makes stubs, or lets users write to them: raises UnsuitableFileSystem where the
    file system, as it is mounted now, is refused."""
    refuse_unsuitable(volume.base_fd, volume.root, accepted_by(volume.base_fd))


def probe(base_fd: int, where: str, disk: Disk) -> str:
    """The attribute name to use here. Raises UnsuitableFileSystem with what is missing.

    Checks what stubs rely on: extended attributes, punching, and that the extent map shows
    written blocks (zeros as well) as data and punched ones as holes, before and after a sync.
    Refuses an XFS that frees blocks in units of several ones.
    """
    name = b"probe"
    with suppress(FileNotFoundError):
        disk.unlink(base_fd, name)
    fd = disk.create(base_fd, name)
    try:
        with opened(fd):
            _probe_blocks(fd, where, disk)
            return _probe_attribute(fd, where)
    finally:
        disk.unlink(base_fd, name)


def _probe_blocks(fd: int, where: str, disk: Disk) -> None:
    block = block_bytes_of(fd)

    def expect(ranges: Iterable[tuple[int, int]], what: str) -> None:
        if list(data_ranges(fd, 0, 8 * block)) != list(ranges):
            raise UnsuitableFileSystem(f"{where}: this file system {what}")

    if native.system.has_large_units(fd):
        raise UnsuitableFileSystem(
            f"{where}: this file system creates new files on a realtime device, in extents of"
            " several blocks; to stop that, run `xfs_io -c 'chattr -t'`"
        )
    disk.write_at(fd, [os.urandom(8 * block - 100)], 0)
    try:
        disk.punch(fd, 0, 8 * block)
    except OSError as error:
        raise UnsuitableFileSystem(
            f"{where}: this file system cannot punch holes ({os.strerror(error.errno or 0)})"
        ) from error
    if os.fstat(fd).st_size != 8 * block - 100:
        raise UnsuitableFileSystem(f"{where}: punching changes the length of a file here")
    expect([], "does not free a file that is punched completely")
    disk.write_at(fd, [bytes(block)], 2 * block)
    expect([(2 * block, 3 * block)], "does not show written blocks in its extent map")
    disk.sync_file(fd)
    expect([(2 * block, 3 * block)], "turns written zeros into holes")


def _probe_attribute(fd: int, where: str) -> str:
    for space in ("trusted", "user") if os.geteuid() == 0 else ("user",):
        try:
            os.setxattr(fd, f"{space}.dedupd", bytes(64))
        except OSError:
            continue
        return f"{space}.dedupd"
    raise UnsuitableFileSystem(f"{where}: this file system does not support extended attributes")
