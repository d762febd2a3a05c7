"""Files that are deleted, and had back, on a disk that loses power.

What a note says can be had back, in every crash state, and has the bytes that it had.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dedupd_core.deleted import expiry
from dedupd_core.deleted.alarm import accept
from dedupd_core.deleted.dropped import DroppedDeletions, add_counts
from dedupd_core.deleted.listing import lost
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.undelete import UNFINISHED, Undelete, attach_below, revive, take_back
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.errors import NoSpace
from dedupd_core.format.deletion import Cause, Deletion
from dedupd_core.system.files import opened
from dedupd_core.system.tree.takeover import Rights
from dedupd_core.system.tree.unfinished import Mark, mark
from dedupd_core.volume.volume import Volume
from tests.crash.scenarios import (
    Contents,
    Scenario,
    Scene,
    collect,
    contents,
    open_user_file,
    optimized_volume,
    upkeep_to_the_end,
)
from tests.crash.space_scenarios import disk_full_at
from tests.support import crash
from tests.support.deletions import wanted_of

REMOVED = ("base", "dir/copy", "text")

_before: Contents = {}
"""Of the scenario that is being explored; each is recorded and explored by one process."""


def volume_to_delete_from(root: Path, seed: int) -> None:
    optimized_volume(root, seed)
    with open(root / ".dedupd/policy.toml", "a") as policy:
        policy.write('space_low = "0"\nspace_critical = "0"\nreserve = "0"\n')
    _before.clear()
    _before.update(contents(root))


def delete_and_have_back(scene: Scene) -> None:
    """Deletions are noted, and happen; two files come back; then nothing is kept any more."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        accept(volume.base_fd, scene.disk)
        _remove(scene, volume, REMOVED)
        _unfinished(volume, scene)
        with volume.job_lock(), volume.mount_lock():
            rows = [row for row in lost(volume, volume.policy(), b"") if "t" not in row["path"]]
            rows += list(lost(volume, volume.policy(), b"dir"))  # comes back beside itself
            wanted = [wanted_of(row, time.time()) for row in rows]
            undelete = Undelete(volume.data_fd, scene.disk, attach_below(volume))
            for back in undelete.take(wanted):
                assert back.error is None
        add_counts(volume.base_fd, {0: DroppedDeletions(dropped=1)}, scene.disk)
    (scene.root / ".dedupd/policy.toml").open("a").write('keep_deleted = "0s"\n')
    collect(scene)
    with pytest.MonkeyPatch.context() as patch:  # the logs are days old
        patch.setattr(expiry, "IDLE_NS", 0)
        collect(scene)


def _remove(scene: Scene, volume: Volume, paths: Sequence[str]) -> None:
    writer = DeletionWriter(volume)
    for path in paths:
        with open_user_file(scene, path) as fd:
            status = os.fstat(fd)
            stub = volume.space.read(fd, path)
        assert stub is not None
        one = Deletion(
            *(Cause.REMOVED, time.time_ns(), 7 * 86400, os.fsencode(path), status.st_mode),
            *(0, 0, status.st_ino, 0, status.st_size, status.st_atime_ns, status.st_mtime_ns),
            stub,
            ((b"user.colour", b"blue"),),
        )
        if path != paths[0]:  # there was no room at the first attempt
            large = one._replace(attributes=((b"user.large", bytes(range(256)) * 20),))
            with disk_full_at(scene, "write_at", 1, 8), pytest.raises(NoSpace):
                writer.append(large)
        writer.append(one)
        scene.history.removed.append((len(scene.disk.log), path))
        directory, _, name = os.fsencode(path).rpartition(b"/")
        with opened(os.open(directory or b".", os.O_RDONLY, dir_fd=volume.data_fd)) as parent:
            scene.disk.unlink(parent, name)
        if directory:
            scene.disk.remove_dir(volume.data_fd, directory)
        for fd in writer.unsynced():
            with opened(fd):
                scene.disk.sync_file(fd)
    writer.close()


def _unfinished(volume: Volume, scene: Scene) -> None:
    """What earlier runs have left: a file, and a directory; and a file that was taken back."""
    disk = scene.disk
    disk.make_dir(volume.data_fd, UNFINISHED + b"-8")
    disk.make_dir(volume.data_fd, UNFINISHED + b"-8/dir")
    logs = DeletionLogs(volume)
    one_id = DeletionId(logs.numbers()[0], 64)
    with opened(scene.disk.create(volume.data_fd, UNFINISHED + b"-7")) as fd:
        mark(disk, fd, Mark.FILE)
        revive(volume, fd, logs.get(one_id), Rights.ROOT)
        take_back(volume, fd)


def had_back(root: Path) -> None:
    """Whatever a crash has left in the logs comes back, and is what it was."""
    with Volume.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        rows = list(lost(volume, volume.policy(), b""))
        wanted = [wanted_of(row, time.time()) for row in rows]
        undelete = Undelete(volume.data_fd, volume.disk, attach_below(volume))
        back = list(undelete.take(wanted))
    assert all(one.error is None for one in back)
    found = contents(root)
    for one, row in zip(back, rows, strict=True):
        path = os.fsdecode(one.path)
        assert found[path] == _before[row["path"]]
        if path not in _before:  # it came back beside itself
            (root / ".dedupd/data" / path).unlink()
    for left in list((root / ".dedupd/data").rglob(f"{UNFINISHED.decode()}*")):
        crash.remove(left) if left.is_dir() else left.unlink()
    upkeep_to_the_end(root)


def look(root: Path) -> Contents:
    """What users look for: a file that is coming back is none yet, nor one beside another."""
    return {
        path: content
        for path, content in contents(root).items()
        if UNFINISHED.decode() not in path and ".deleted-" not in path
    }


DELETION_SCENARIOS = {
    "delete and undelete": Scenario(
        volume_to_delete_from, delete_and_have_back, had_back, look=look
    ),
}
