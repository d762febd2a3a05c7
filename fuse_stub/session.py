"""A FUSE session: a file system that libfuse serves, at its mount point."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyfuse3

from dedupd_core.errors import UsageError
from dedupd_core.replica.replica import is_replica
from dedupd_core.system import mount_table
from dedupd_core.system.files import opened
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.mounts import over_mount
from fuse_stub.mounts.mount_options import MountOptions
from fuse_stub.mounts.mount_points import clear_dead_mount, is_dead_mount
from fuse_stub.mounts.mount_process import Mounter, ServeOptions
from fuse_stub.mounts.private_mount import show
from fuse_stub.operations import StubOperations


def _options_for(mount: MountedVolume, asked: MountOptions) -> set[str]:
    """Return the options for libfuse. Options for users that are not requested come from the file
    system below. Raises UsageError."""
    volume = mount.volume
    below = os.fstatvfs(volume.data_fd).f_flag
    kind = mount_table.SNAPSHOT_FS_TYPE if mount.is_snapshot else mount_table.FS_TYPE
    options = {
        f"fsname={mount_table.SOURCE_PREFIX}{volume.parameters.uuid}",
        f"subtype={kind.removeprefix('fuse.')}",
        "default_permissions",
    }
    if os.geteuid() == 0:
        options |= {
            "allow_other",
            "suid" if _either(asked.suid, not below & os.ST_NOSUID) else "nosuid",
            "dev" if _either(asked.dev, not below & os.ST_NODEV) else "nodev",
        }
        if not _either(asked.exec, not below & os.ST_NOEXEC):
            options.add("noexec")
    elif asked.suid or asked.dev:
        raise UsageError(f"{asked.text}: only root can use `suid` and `dev`")
    elif asked.exec is False:
        options.add("noexec")
    if asked.sync:
        options.add("sync")
    if mount.is_read_only or is_replica(volume.base_fd):
        options.add("ro")
    return options


def _either(asked: bool | None, below: bool) -> bool:
    return below if asked is None else asked


@contextmanager
def session(
    operations: StubOperations, mount: MountedVolume, asked: ServeOptions, below_fd: int
) -> Iterator[None]:
    """Mount with the requested options, for a volume that is open as ``below_fd`` for others.

    It replaces a dead mount: users see errors before, and then their files. Raises UsageError.
    """
    mountpoint, options = asked.mountpoint, _options_for(mount, asked.options)
    outside = asked.outside
    takes_over = outside is None and is_dead_mount(mountpoint) and os.geteuid() == 0
    try:
        if outside is not None:
            _serve_mount_of(outside, operations, options)
        elif takes_over:
            _take_over(operations, mountpoint, options)
        else:
            clear_dead_mount(mountpoint)
            pyfuse3.init(operations, mountpoint, options)
    except (RuntimeError, OSError) as error:
        raise UsageError(
            f"{mountpoint}: cannot be mounted ({error}); load the module fuse, and check that this"
            " user may open /dev/fuse and write to the directory"
        ) from error
    try:
        if outside is None:
            show(mountpoint, asked.options, below_fd)
        yield
    finally:
        pyfuse3.close(unmount=True)
        if takes_over:
            # libfuse did not mount it, and does not unmount it.
            clear_dead_mount(mountpoint)


def _serve_mount_of(outside: Mounter, operations: StubOperations, options: set[str]) -> None:
    device_fd = outside.new_mount(_of_the_kernel(options))
    with _owned_by_session(device_fd):
        pyfuse3.init(operations, f"/dev/fd/{device_fd}", options)


def _take_over(operations: StubOperations, mountpoint: str, options: set[str]) -> None:
    device_fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    with _owned_by_session(device_fd):
        mount_fd = over_mount.new_mount(device_fd, _of_the_kernel(options))
        with opened(mount_fd):
            pyfuse3.init(operations, f"/dev/fd/{device_fd}", options)
            over_mount.replace(mount_fd, mountpoint)


@contextmanager
def _owned_by_session(device_fd: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):  # unless libfuse has closed it
            os.close(device_fd)
        raise


def _of_the_kernel(options: set[str]) -> dict[str, str]:
    """Return the options that libfuse would pass to the kernel for ``options``."""
    own = {"rootmode": f"{stat.S_IFDIR:o}", "user_id": "0", "group_id": "0"}
    for option in options - {"suid", "dev"}:
        name, _, value = option.partition("=")
        own["source" if name == "fsname" else name] = value
    return own
