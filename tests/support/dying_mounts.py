"""Mounts whose process dies before one of its durable effects."""

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.system import mount_table
from fuse_stub.mounts import mount_process
from fuse_stub.mounts.mount_points import clear_dead_mount, is_dead
from tests.support import crash
from tests.support.mounts import Nursery, serve_for_test


def serve_until(
    step: str, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """Serve a mount in a process of a nursery that dies before one of its durable effects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedupd_core.volume.volume.Disk", lambda: crash.DyingDisk(int(step)))
        serve_for_test(path, mountpoint, cache_bytes, answer)


def dies_at(root: Path, view: Path, step: int, job: Callable[[Path], object]) -> bool:
    """Whether a mount that is to die before its effect number ``step`` does so while a job works,
    or before, or at its end."""
    nursery, died = Nursery(serve_until, (str(step),)), False
    try:
        nursery.serve(str(root), str(view), cache_bytes=16 << 20)
        job(root)
    except ServiceUnreachable:
        died = True
    died |= is_dead(str(view))
    clear_dead_mount(str(view))
    if mount_table.find(str(view)) is not None:
        try:
            mount_process.unmount(str(view))
        except ServiceUnreachable:  # it was about to die
            died = True
    return died
