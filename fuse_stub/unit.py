"""The process of a mount in a unit of systemd (``packaging/systemd/dedupd-mount@.service``)."""

import os

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.system import mount_table
from dedupd_core.system.processes import show_as
from fuse_stub.mounts.handover import Line, Outside
from fuse_stub.mounts.mount_points import clear_dead_mount
from fuse_stub.process import serve_for_parent


def serve_in_unit(volume: str) -> None:
    """Serve the volume (a uuid) for which the service has started the unit.

    Raises ServiceUnreachable if no service waits for it, and the errors that the service reports.
    """
    try:
        line = Line.to_service(volume)
    except OSError as error:
        raise ServiceUnreachable(
            f"{volume}: no service waits for the mount process of this volume ({error.strerror});"
            " run `dedupd mount PATH`"
        ) from error
    outside = Outside(line)
    show_as("dedupd-mount", outside.mountpoint)
    serve_for_parent(
        *(outside.path, outside.base_fd, outside.mountpoint, outside.cache_bytes),
        os.dup(line.fileno()),
        options=outside.options,
        outside=outside,
    )


def clear_after(volume: str) -> None:
    """Remove the mount of a process of the unit after a normal exit: it could not do so itself."""
    for point in mount_table.points_of(volume):
        clear_dead_mount(point)
