"""Making a directory a volume, and a volume a plain directory again (docs/format.md, "Enabling").

Both are sequences of renames on one file system that can stop anywhere and be run again. The
marker files ``enabling`` and ``disabling`` say which way to go on.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable

from dedupd import mounts, native
from dedupd.disk import Disk
from dedupd.errors import Busy, NotAVolume, UnsuitableFileSystem, UsageError
from dedupd.failpoint import define, reach
from dedupd.fsutil import data_ranges, opened, read_at, show_path
from dedupd.parameters import Parameters, new_parameters
from dedupd.policy import policy_text
from dedupd.volume import BASE_NAME, POLICY_FILE, VOLUME_FILE, block_bytes_of

ENABLING = b"enabling"
DISABLING = b"disabling"
_BASE = BASE_NAME.encode()
_LEFT_IN_PLACE = frozenset((_BASE, b"lost+found"))
"""``lost+found`` belongs to the file system's own checker."""

_PREPARED = define("enable.prepared", "the empty .dedupd is complete, nothing has moved yet")
_MOVED = define("enable.moved", "one entry has moved into data/")
_ALL_MOVED = define("enable.all-moved", "all entries have moved, the volume file is not yet there")
_ENABLED = define("enable.enabled", "the volume file is there, the marker not yet removed")
_DISABLING = define("disable.marked", "the volume file has become the disabling marker")
_MOVED_BACK = define("disable.moved", "one entry has moved back")
_EMPTIED = define("disable.emptied", "all entries have moved back, .dedupd is still there")


def enable(
    path: str,
    *,
    chunk_size: str,
    fingerprint: str,
    policy_values: dict[str, str],
    disk: Disk,
) -> Parameters:
    """Make the directory ``path`` a volume; goes on where an interrupted call stopped.

    Raises UsageError, UnsuitableFileSystem, Busy, OSError.
    """
    root = _check_root(path)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with opened(root_fd):
        before = os.stat(root_fd)
        base = os.path.join(root, BASE_NAME)
        if os.path.exists(os.path.join(base, "volume.json")) and not os.path.exists(
            os.path.join(base, "enabling")
        ):
            raise UsageError(f"{path}: already a volume; see `dedupd status {path}`")
        if os.path.exists(os.path.join(base, "disabling")):
            raise UsageError(
                f"{path}: disabling was interrupted; run `dedupd disable {path}` to finish it first"
            )
        if not os.path.lexists(base):
            _refuse_mounts_inside(root)
            disk.make_dir(root_fd, _BASE)
        elif not os.path.exists(os.path.join(base, "enabling")) and not _is_fresh_base(base):
            raise UsageError(f"{base} exists and is not ours; move it away")
        with opened(os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as base_fd:
            return _enable_at(
                root, root_fd, base_fd, before, chunk_size, fingerprint, policy_values, disk
            )


def _enable_at(
    root: str,
    root_fd: int,
    base_fd: int,
    before: os.stat_result,
    chunk_size: str,
    fingerprint: str,
    policy_values: dict[str, str],
    disk: Disk,
) -> Parameters:
    marker = _read_optional(base_fd, ENABLING)
    if marker is None:
        attribute = probe(base_fd, root, disk)
        parameters = new_parameters(chunk_size, fingerprint, attribute)
        text = policy_text(policy_values)
        for name in (b"data", b"store", b"store/chunks", b"store/streams", b"store/merge"):
            _ensure_dir(base_fd, name, disk)
        _ensure_dir(base_fd, b"catalog", disk)
        disk.replace_file(base_fd, POLICY_FILE, text.encode())
        _copy_directory_metadata(root, os.path.join(root, BASE_NAME, "data"))
        disk.replace_file(base_fd, ENABLING, parameters.to_json())
        disk.sync_dir(root_fd)
    else:
        parameters = Parameters.from_json(marker, f"{root}/{BASE_NAME}/enabling")
    reach(_PREPARED)
    with opened(os.open(b"data", os.O_RDONLY | os.O_DIRECTORY, dir_fd=base_fd)) as data_fd:
        _move_entries(root_fd, data_fd, _MOVED, root, disk)
        if marker is None:
            os.utime(data_fd, ns=(before.st_atime_ns, before.st_mtime_ns))
        disk.sync_dir(data_fd)
        disk.sync_dir(root_fd)
    reach(_ALL_MOVED)
    if os.geteuid() == 0:
        os.fchown(root_fd, 0, 0)
        os.fchmod(root_fd, 0o755)
    disk.replace_file(base_fd, VOLUME_FILE, parameters.to_json())
    reach(_ENABLED)
    disk.unlink(base_fd, ENABLING)
    disk.sync_dir(base_fd)
    return parameters


def disable(path: str, *, disk: Disk) -> None:
    """Give back the plain directory; the caller has made sure that no stub is left.

    Goes on where an interrupted call stopped. Raises NotAVolume, UsageError, Busy.
    """
    root = os.path.realpath(path)
    if mounts.find(root) is not None:
        raise Busy(f"{path}: unmount the volume first: `dedupd umount {path}`")
    base = os.path.join(root, BASE_NAME)
    if not os.path.isdir(base):
        raise NotAVolume(f"{path}: not a volume")
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with opened(root_fd), opened(base_fd):
        if _read_optional(base_fd, DISABLING) is None:
            source = VOLUME_FILE if _read_optional(base_fd, VOLUME_FILE) is not None else ENABLING
            try:
                disk.rename(base_fd, source, base_fd, DISABLING)
            except FileNotFoundError:
                raise NotAVolume(f"{path}: not a volume") from None
            disk.sync_dir(base_fd)
        reach(_DISABLING)
        data = os.path.join(base, "data")
        if os.path.isdir(data):
            times = os.stat(data)
            _refuse_collisions(root, data)
            with opened(os.open(data, os.O_RDONLY | os.O_DIRECTORY)) as data_fd:
                _move_entries(data_fd, root_fd, _MOVED_BACK, root, disk)
                disk.sync_dir(data_fd)
            disk.sync_dir(root_fd)
            reach(_EMPTIED)
            _copy_directory_metadata(data, root)
            os.utime(root_fd, ns=(times.st_atime_ns, times.st_mtime_ns))
            os.rmdir(data)
        times = os.stat(root_fd)
        for name in sorted(os.listdir(base), key=lambda name: name == DISABLING.decode()):
            _remove(os.path.join(base, name))
        os.rmdir(base)
        os.utime(root_fd, ns=(times.st_atime_ns, times.st_mtime_ns))
        disk.sync_dir(root_fd)


def _check_root(path: str) -> str:
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        raise UsageError(f"{path}: no such directory")
    if root == "/":
        raise UsageError("/: the root directory cannot be a volume; choose the directory of a share")
    mount = mounts.find(root)
    if mount is not None:
        raise UsageError(f"{path}: lies in the mounted volume {mount.point}")
    parent = root
    while parent != "/":
        if os.path.basename(parent) == BASE_NAME:
            raise UsageError(f"{path}: lies inside the store of another volume")
        parent = os.path.dirname(parent)
        if os.path.exists(os.path.join(parent, BASE_NAME, "volume.json")):
            raise UsageError(f"{path}: lies in the volume {parent}; volumes cannot be nested")
    return root


def _refuse_mounts_inside(root: str) -> None:
    inside = [point for point, _, _ in mounts.all_mounts() if point.startswith(root + "/")]
    if inside:
        raise UsageError(f"{root}: {inside[0]} is mounted inside; unmount it first")


def _is_fresh_base(base: str) -> bool:
    """Whether a ``.dedupd`` without marker is what an interrupted enable leaves."""
    expected = {"data", "store", "catalog", "policy.toml", "policy.toml.new", "enabling.new"}
    names = set(os.listdir(base))
    data = os.path.join(base, "data")
    return names <= expected | {"probe"} and (not os.path.isdir(data) or not os.listdir(data))


def _ensure_dir(base_fd: int, name: bytes, disk: Disk) -> None:
    try:
        disk.make_dir(base_fd, name)
    except FileExistsError:
        pass


def _read_optional(dir_fd: int, name: bytes) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    with opened(fd):
        return read_at(fd, os.fstat(fd).st_size, 0)


def _move_entries(from_fd: int, to_fd: int, point: str, root: str, disk: Disk) -> None:
    for name in sorted(os.fsencode(name) for name in os.listdir(from_fd)):
        if name in _LEFT_IN_PLACE:
            continue
        try:
            native.renameat2(from_fd, name, to_fd, name, _RENAME_NOREPLACE)
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EXDEV):
                raise UsageError(
                    f"{root}: {show_path(name)} is on another file system or in use as a mount"
                    " point; unmount it and run the command again"
                ) from error
            raise
        reach(point)


_RENAME_NOREPLACE = 1


def _refuse_collisions(root: str, data: str) -> None:
    both = (set(os.listdir(root)) & set(os.listdir(data))) - {"lost+found"}
    if both:
        raise UsageError(
            f"{root}: {sorted(both)[0]} exists in the unmounted directory and in the volume; move"
            " the one in the unmounted directory away and run the command again"
        )


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _copy_directory_metadata(source: str, target: str) -> None:
    """Owner, mode, extended attributes and times of a directory."""
    status = os.stat(source)
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    for name in os.listxattr(target):
        os.removexattr(target, name)
    for name in os.listxattr(source):
        os.setxattr(target, name, os.getxattr(source, name))
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def probe(base_fd: int, where: str, disk: Disk) -> str:
    """The attribute name to use here. Raises UnsuitableFileSystem with what is missing.

    Checks what stubs rely on: extended attributes, punching, and that the extent map shows
    written blocks (zeros as well) as data and punched ones as holes, before and after a sync.
    """
    name = b"probe"
    try:
        disk.unlink(base_fd, name)
    except FileNotFoundError:
        pass
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
            raise UnsuitableFileSystem(f"{where}: this file system {what}; use ext4, XFS or btrfs")

    disk.write_at(fd, [os.urandom(8 * block - 100)], 0)
    try:
        disk.punch(fd, 0, 8 * block)
    except OSError as error:
        raise UnsuitableFileSystem(
            f"{where}: this file system cannot punch holes ({os.strerror(error.errno or 0)})"
        ) from error
    if os.fstat(fd).st_size != 8 * block - 100:
        raise UnsuitableFileSystem(f"{where}: punching changes a file's length here")
    expect([], "does not free a file that is punched whole")
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
    raise UnsuitableFileSystem(f"{where}: this file system keeps no extended attributes")
