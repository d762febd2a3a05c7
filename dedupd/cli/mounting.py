"""Mounting a volume, for ``dedupd mount`` and for mount(8)."""

import os
from dataclasses import dataclass
from typing import Any

from dedupd.cli.umount import mounted_point
from dedupd.service.client import ServiceClient
from dedupd_core.errors import Busy, ServiceUnreachable, UsageError
from dedupd_core.replica.replica import is_replica
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import QUESTION_TIMEOUT_S, ControlClient, socket_path
from dedupd_core.volume.enabling.probe import accept
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_options import MountOptions
from fuse_stub.mounts.mount_points import covered, is_dead_mount
from fuse_stub.mounts.mount_process import (
    ServeOptions,
    mount_in_background,
    mount_snapshot_in_background,
    open_snapshot,
    open_volume,
)
from fuse_stub.mounts.remounting import remount


@dataclass(frozen=True, slots=True)
class MountRequest:
    """A request to mount a volume. If ``mountpoint`` is None, the volume is mounted over itself."""

    path: str
    mountpoint: str | None
    options: MountOptions
    cache_bytes: int
    is_snapshot: bool = False
    is_forced: bool = False
    is_complete: bool = False
    """For a remount: set options that are not listed to their defaults."""
    in_foreground: bool = False


@dataclass(frozen=True, slots=True)
class ActiveMount:
    """A mount that answers."""

    point: str
    pid: int | None
    is_read_only: bool
    is_snapshot: bool = False
    is_replica: bool = False
    hidden: str = ""
    """A message about files that the mount hides; empty if there are none."""

    def to_json(self, path: str) -> dict[str, Any]:
        value = {
            "path": path,
            "mountpoint": self.point,
            "pid": self.pid,
            "read_only": self.is_read_only,
        }
        return {**value, "snapshot": True} if self.is_snapshot else value


def bring_up(asked: MountRequest) -> ActiveMount | None:
    """Mount a volume, or remount it with other options. In the foreground, return None at the end.

    If the volume is already mounted there, its mount is returned. Raises DedupdError, OSError.
    """
    if asked.options.remount:
        return _mount_again(asked)
    if asked.is_snapshot:
        return _mount_snapshot(asked)
    path = asked.path
    if asked.is_forced:
        with open_volume(path) as volume:
            accept(volume)
    client = None if asked.in_foreground else _service(asked)
    if client is not None:
        return _mount_by_service(client, asked)
    point = os.path.realpath(asked.mountpoint or path)
    takes_over = is_dead_mount(point)
    if not takes_over and not os.path.isdir(point):
        raise UsageError(f"{point}: no such directory to mount at")
    mounted = mount_table.find(point)
    if mounted is not None and not takes_over:
        return _mounted_already(asked, mounted, point)
    if asked.in_foreground:
        from fuse_stub.process import serve

        with open_volume(path) as volume:
            serve(volume, _serving(asked, point))
        return None
    over_itself = point == os.path.realpath(path) and not mount_table.is_automount(point)
    hidden = covered(point) if over_itself else ""
    pid = mount_in_background(
        os.path.realpath(path), point, cache_bytes=asked.cache_bytes, options=asked.options
    )
    return _mounted(point, pid, hidden=hidden)


def _mounted(point: str, pid: int | None, *, hidden: str = "") -> ActiveMount:
    is_read_only = bool(os.statvfs(point).f_flag & os.ST_RDONLY)
    replica = False
    if is_read_only:
        with Volume.open(point) as volume:
            replica = is_replica(volume.base_fd)
    return ActiveMount(point, pid, is_read_only, is_replica=replica, hidden=hidden)


def _mounted_already(asked: MountRequest, mounted: mount_table.Mount, point: str) -> ActiveMount:
    """Return the mount at ``point`` if it matches the request. Raises Busy."""
    wanted = asked.options.text
    if mounted.point == point:
        with ControlClient(socket_path(mounted.volume), QUESTION_TIMEOUT_S) as server:
            status = server.call("status")
        if os.path.realpath(status["root"]) == os.path.realpath(asked.path):
            options = status.get("options") or "rw"
            if wanted not in ("", options):
                raise Busy(
                    f"{point}: is already mounted, with the options `{options}`; to change them,"
                    f" run `dedupd mount -o remount,{wanted} {point}`"
                )
            return _mounted(point, status["pid"])
    raise Busy(f"{point}: is inside a volume that is already mounted at {mounted.point}")


def _mount_again(asked: MountRequest) -> ActiveMount:
    point = mounted_point(asked.mountpoint or asked.path, "mount again")
    remount(point, asked.options, is_complete=asked.is_complete)
    return _mounted(point, None)


def _service(asked: MountRequest) -> ServiceClient | None:
    """Return the service if it manages the volume at the requested mount point."""
    client = ServiceClient.serving(asked.path)
    if client is None or asked.mountpoint is None:
        return client
    place = client.volume(asked.path)["mountpoint"]
    return client if os.path.realpath(place) == os.path.realpath(asked.mountpoint) else None


def _mount_by_service(client: ServiceClient, asked: MountRequest) -> ActiveMount:
    """Make the service mount the volume. Raises UsageError if its configured options differ."""
    path, wanted = asked.path, asked.options.text
    configured = client.volume(path)["options"]
    if wanted and wanted != configured:
        raise UsageError(
            f"{path}: the service mounts this volume, with the options `{configured or 'rw'}`;"
            f' write options = "{wanted}" to its file in volumes.d, and run `systemctl reload'
            " dedupd`"
        )
    volume = client.act(path, "mount")
    mount = volume["mount"]
    if mount["state"] != "mounted":
        raise ServiceUnreachable(f"{path}: {mount['problem'] or 'not mounted yet'}")
    return _mounted(volume["mountpoint"], mount["pid"])


def _mount_snapshot(asked: MountRequest) -> ActiveMount | None:
    if asked.mountpoint is None:
        raise UsageError("--snapshot: needs a directory to mount at; name it as MOUNTPOINT")
    point = os.path.realpath(asked.mountpoint)
    if not is_dead_mount(point) and not os.path.isdir(point):
        raise UsageError(f"{point}: no such directory to mount at")
    around = mount_table.find(point)
    if around is not None:
        raise UsageError(
            f"{point}: is inside the volume that is mounted at {around.point}, which then could"
            " not be unmounted; choose a directory outside it"
        )
    if asked.in_foreground:
        from fuse_stub.snapshot import serve_snapshot

        with open_snapshot(asked.path) as volume:
            serve_snapshot(volume, _serving(asked, point))
        return None
    pid = mount_snapshot_in_background(
        os.path.realpath(asked.path), point, cache_bytes=asked.cache_bytes, options=asked.options
    )
    return ActiveMount(point, pid, is_read_only=True, is_snapshot=True)


def _serving(asked: MountRequest, point: str) -> ServeOptions:
    return ServeOptions(point, asked.cache_bytes, asked.options)
