"""Two volumes on one store, on a disk that loses power."""

import json
import os
from contextlib import ExitStack, closing
from pathlib import Path

from dedupd_core.shared.creation import create_store
from dedupd_core.shared.fellows import all_held
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from jobs.check.verify import Verify
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.move import Move, MovingVolume
from tests.crash.scenarios import (
    Contents,
    Scenario,
    Scene,
    contents,
    enable_small,
    make_small_tree,
)
from tests.support import crash
from tests.support.copies import belong_to_store_here
from tests.support.lab import write_out

VOLUMES = "a", "b"


def two_directories(root: Path, seed: int) -> None:
    """Two trees, to become volumes; half of their files are the same."""
    root.mkdir()
    for at, name in enumerate(VOLUMES):
        make_small_tree(root / name, seed)
        make_small_tree(root / name / "own", seed + 10 + at)
    write_out(root)


def two_volumes(root: Path, seed: int) -> None:
    two_directories(root, seed)
    put_on_store(root, Disk())
    for name in VOLUMES:
        crash.optimize_volume(root / name)
    write_out(root)


def put_on_store(root: Path, disk: Disk, *names: str) -> None:
    """Make the store, and volumes of both directories, or of these, as far as they are none yet."""
    store = root / "store"
    if not (store / "store.json").exists():
        create_store(str(store), chunk_size="4k", fingerprint="blake3", disk=disk, force=True)
    for name in names or VOLUMES:
        base = root / name / ".dedupd"
        if (base / "volume.json").exists() and not (base / "enabling").exists():
            continue
        with closing(SharedDirectory.named(str(store), disk)) as shared:
            enable(
                str(root / name),
                policy_values={"min_age": "0s", "min_size": "1k", "min_file_saving": 0},
                force=True,
                disk=disk,
                shared=shared,
            )


def share(scene: Scene) -> None:
    put_on_store(scene.root, scene.disk)
    for name in VOLUMES:
        crash.optimize_volume(scene.root / name, scene.disk)


def remove_and_collect(scene: Scene) -> None:
    """One volume loses files, the other one collects: what it needs itself stays."""
    data = scene.root / "a/.dedupd/data"
    for path in ("base", "edited", "own/base", "own/text"):
        scene.history.removed.append((len(scene.disk.log), f"a/{path}"))
        with opened(os.open(data / os.path.dirname(path), os.O_RDONLY)) as fd:
            scene.disk.unlink(fd, os.path.basename(path).encode())
    collect(scene.root / "b", scene.disk)


def collect(root: Path, disk: Disk | None = None) -> None:
    with Volume.open(str(root), disk) as volume:
        with all_held(volume):
            assert Gc(volume, JobRun("gc")).run().messages == []
        with volume.job_lock():
            assert Compact(volume, JobRun("compact")).run().messages == []


def two_volumes_one_plain(root: Path, seed: int) -> None:
    two_volumes(root, seed)
    crash.unoptimize_volume(root / "a")
    write_out(root)


def own_and_shared_volume(root: Path, seed: int) -> None:
    """A volume with a store of its own, beside one on the shared store with the same files."""
    two_directories(root, seed)
    enable_small(root / "a")
    put_on_store(root, Disk(), "b")
    for name in VOLUMES:
        crash.optimize_volume(root / name)
    write_out(root)


def move(root: Path, disk: Disk | None = None) -> None:
    """Move the volume ``a`` to the shared store, or go on with that."""
    with (
        closing(SharedDirectory.named(str(root / "store"), disk or Disk())) as shared,
        MovingVolume.open(str(root / "a"), disk) as volume,
    ):
        if volume.membership is None or volume.is_half_moved:
            Move(volume, JobRun("move"), shared).run()


def move_one(scene: Scene) -> None:
    move(scene.root, scene.disk)


def move_back(scene: Scene) -> None:
    with MovingVolume.open(str(scene.root / "a"), scene.disk) as volume:
        Move(volume, JobRun("move"), None).run()


def look_at_moved(root: Path) -> Contents:
    """What the files hold once a move that was half done has gone on."""
    with MovingVolume.open(str(root / "a")) as volume:
        if volume.is_half_moved:
            is_coming = '"to": ""' not in (root / "a/.dedupd/moving").read_text()
            with ExitStack() as files:
                directory = SharedDirectory.named(str(root / "store"), Disk())
                shared = files.enter_context(closing(directory))
                Move(volume, JobRun("move"), shared if is_coming else None).run()
    return look(root)


def moved_to_the_end(root: Path) -> None:
    move(root)
    shared_to_the_end(root)


def disable_one(scene: Scene) -> None:
    crash.disable_volume(scene.root / "a", scene.disk)


def look(root: Path) -> Contents:
    return {
        f"{name}/{path}": content
        for name in VOLUMES
        for path, content in contents(root / name).items()
    }


def place(root: Path) -> None:
    moving = root / "a/.dedupd/moving"
    if moving.exists():
        store = str(root / "store")
        route = json.loads(moving.read_text())
        moving.write_text(json.dumps(route | {"origin": route["origin"] and store}))
    for name in VOLUMES:
        belong_to_store_here(root / name, root / "store")


def shared_to_the_end(root: Path) -> None:
    put_on_store(root, Disk())
    for name in VOLUMES:
        crash.optimize_volume(root / name)
    collect(root / "b")
    collect(root / "a")
    verify(root / "a")


def disabled_to_the_end(root: Path) -> None:
    if (root / "a/.dedupd").exists():
        crash.disable_volume(root / "a")
    crash.optimize_volume(root / "b")
    collect(root / "b")
    verify(root / "b")
    with closing(SharedDirectory.named(str(root / "store"), Disk())) as shared:
        assert [os.path.basename(one.root) for one in shared.members().values()] == ["b"]


def verify(root: Path) -> None:
    with Volume.open(str(root)) as volume, all_held(volume):
        assert Verify(volume, JobRun("verify")).run().findings == []


SHARED_SCENARIOS = {
    "share a store": Scenario(two_directories, share, shared_to_the_end, place, look),
    "collect from a shared store": Scenario(
        two_volumes, remove_and_collect, shared_to_the_end, place, look
    ),
    "leave a shared store": Scenario(
        two_volumes_one_plain, disable_one, disabled_to_the_end, place, look
    ),
    "move to a shared store": Scenario(
        own_and_shared_volume, move_one, moved_to_the_end, place, look_at_moved
    ),
    "move to its own store": Scenario(
        two_volumes, move_back, moved_to_the_end, place, look_at_moved
    ),
}
