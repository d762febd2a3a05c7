"""More volumes to crash: in the middle of a recovery, of a repair, of the saving of an index."""

import os
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dedupd_core import failpoint, native
from dedupd_core.errors import UnsuitableFileSystem
from dedupd_core.format.container import Kind
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from fuse_stub.files.file_handles import SECRET_BYTES, SECRET_FILE, load_secret
from tests.crash.scenarios import (
    KIB,
    Scenario,
    Scene,
    compact,
    disable_to_the_end,
    disabling,
    enable_small,
    enable_to_the_end,
    enabling,
    make_small_tree,
    open_user_file,
    optimize_more,
    optimize_to_the_end,
    optimized_volume,
    plain_directory,
    plain_volume,
    reconcile_and_compact,
    reconcile_to_the_end,
    settle,
    sparse,
    unoptimize,
    unoptimize_to_the_end,
    upkeep_to_the_end,
    volume_cut_off,
    volume_in_partitions,
    volume_with_orphans,
)
from tests.crash.small_parts import (
    hooks_of_few,
    partitions_in_turns,
    saved_indexes,
    small_parts,
    with_parts,
)
from tests.support import crash
from tests.support.lab import RAW_SOCKETS, Lab, write_out
from tests.support.simulated_disk import RecordingDisk, RemoveAttribute
from tests.support.upkeep import chunks_of, damage_record, scrub


def set_policy(root: Path, *lines: str) -> None:
    with open(root / ".dedupd/policy.toml", "a") as policy:
        policy.write("".join(f"{line}\n" for line in lines))


# --- how each begins --------------------------------------------------------------------------


def volume_with_index(kind: str) -> Callable[[Path, int], None]:
    def make(root: Path, seed: int) -> None:
        plain_volume(root, seed)
        set_policy(root, f'index = "{kind}"')

    return make


def volume_with_saved_index(kind: str) -> Callable[[Path, int], None]:
    def make(root: Path, seed: int) -> None:
        volume_with_index(kind)(root, seed)
        with saved_indexes():
            crash.optimize_volume(root)
        make_small_tree(root / ".dedupd/data/more", seed + 100)

    return make


def volume_that_meets_orphans_of_others(root: Path, seed: int) -> None:
    """A plain file whose chunks another partition than its own has, as orphans."""
    plain_volume(root, seed)
    data, content = root / ".dedupd/data", random.Random(seed + 90).randbytes(40 * KIB)
    for name in ("gone.t1", "again.t2"):
        (data / name).write_bytes(content)
        os.utime(data / name, ns=(crash.MTIME_NS, crash.MTIME_NS))
        if name == "gone.t1":
            crash.optimize_in_partitions(root)
            (data / name).unlink()
            write_out(root)
            crash.orphan_garbage(root)
    write_out(root)


def volume_of_three_types(root: Path, seed: int) -> None:
    """Two partitions that have chunks, and plain files of three types that have them too."""
    plain_volume(root, seed)
    data = root / ".dedupd/data"
    for part in (1, 2):
        make_small_tree(data / f"part{part}", seed + part // 2)
        for number, path in enumerate(sorted(data.glob(f"part{part}/**/*"))):
            if path.is_file():
                path.rename(path.with_suffix(f".t{number % 3}"))
        if part == 1:
            crash.optimize_in_partitions(root)
    write_out(root)


def compaction_cut_off(fail_point: str) -> Callable[[Path, int], None]:
    def make(root: Path, seed: int) -> None:
        volume_with_orphans(root, seed)
        killed = crash.run_cli("run", "compact", root, fail_at=fail_point)
        assert crash.was_killed(killed), killed.stderr

    return make


def volume_with_torn_tail(root: Path, seed: int) -> None:
    volume_cut_off("writer.appended")(root, seed)
    tails = [Lab(root).container(kind) for kind in (Kind.CHUNKS, Kind.RECIPES)]
    os.truncate(tails[0], tails[0].stat().st_size - 100)


def volume_with_begun_container(root: Path, seed: int) -> None:
    plain_volume(root, seed)
    killed = crash.run_cli("run", "optimize", root, fail_at="writer.container-created")
    assert crash.was_killed(killed), killed.stderr
    for path in (root / ".dedupd/store").rglob("*.dat"):
        os.truncate(path, 60)


def volume_with_allocated_blocks(root: Path, seed: int) -> None:
    """A punch that was cut off, and blocks that a crash has left allocated and unwritten: within
    the file that was punched, and behind the end of the others."""
    volume_cut_off("stub.punched")(root, seed)
    punched = 0
    for path in sorted((root / ".dedupd/data/more").glob("*")):
        if path.is_file():
            status = path.stat()
            punched += not status.st_blocks
            start = -(-status.st_size // (4 * KIB)) * 4 * KIB if status.st_blocks else 0
            with opened(os.open(path, os.O_RDWR)) as fd:
                native.system.fallocate_keep_size(fd, start, 8 * KIB)
                native.system.syncfs(fd)
    assert punched, "no file was punched"


def volume_with_programs(root: Path, seed: int) -> None:
    """Stubs with capabilities, which a change of their blocks would take away."""
    optimized_volume(root, seed)
    for name in ("base", "text"):
        os.setxattr(root / ".dedupd/data" / name, "security.capability", RAW_SOCKETS)


def damaged_volume(how: str) -> Callable[[Path, int], None]:
    """Everything is kept twice, and one of the two is damaged."""

    def make(root: Path, seed: int) -> None:
        plain_volume(root, seed)
        set_policy(root, "redundancy_threshold = 1")
        crash.optimize_volume(root)
        assert scrub(root).copies_written
        lab = Lab(root)
        if how == "record":
            damage_record(lab, Kind.CHUNKS, chunks_of(lab, "base")[0][0])
        elif how == "table":
            os.truncate(lab.table(Kind.CHUNKS), 1000)
        # All recipes are kept twice; of the chunks those that several files need.
        container = lab.container(Kind.RECIPES)
        if how == "header":
            with open(container, "r+b") as file:
                file.write(bytes(100))
        elif how == "missing":
            container.unlink()
        elif how == "cut":
            os.truncate(container, container.stat().st_size // 2)

    return make


def directory_with_attributes(root: Path, seed: int) -> None:
    plain_directory(root, seed)
    os.setxattr(root, "user.note", b"kept")
    os.chmod(root, 0o2775)


def volume_with_attributes(root: Path, seed: int) -> None:
    directory_with_attributes(root, seed)
    enable_small(root)
    os.removexattr(root / ".dedupd/data", "user.note")
    os.setxattr(root / ".dedupd/data", "user.other", b"of the tree")
    os.setxattr(root, "user.note", b"of the directory beneath")


def half_enabled(root: Path, seed: int) -> None:
    plain_directory(root, seed)
    killed = crash.run_cli("enable", "--force", root, fail_at="enable.moved:2")
    assert crash.was_killed(killed), killed.stderr


def volume_without_merge_directory(root: Path, seed: int) -> None:
    volume_in_partitions(root, seed)
    with suppress(FileNotFoundError):
        (root / ".dedupd/store/merge").rmdir()


# --- what is done -----------------------------------------------------------------------------


def touch_during_a_commit(scene: Scene) -> None:
    """A user changes a file beside its attribute, and others before the punch of their batch: the
    attributes are taken back."""
    touched: list[str] = []

    def hook(point: str) -> None:
        if point == "commit.durable" and len(touched) == 1:
            for name in ("base", "text"):
                (scene.root / ".dedupd/data" / name).chmod(0o640)
                touched.append(name)

    def set_attribute(fd: int, name: bytes, value: bytes) -> None:
        if not touched and os.readlink(f"/proc/self/fd/{fd}").endswith("/edited"):
            touched.append("edited")
            scene.disk.set_times(fd, 0, crash.MTIME_NS + 1)
        RecordingDisk.set_attribute(scene.disk, fd, name, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoint, "hook", hook)
        patch.setattr(scene.disk, "set_attribute", set_attribute)
        crash.optimize_volume(scene.root, scene.disk)
    assert len(touched) == 3
    taken_back = [e for e in scene.disk.log if isinstance(e.event, RemoveAttribute)]
    assert len(taken_back) >= len(touched)


def enabling_what_does_not_suit(scene: Scene) -> None:
    def fails(*_: object) -> None:
        raise UnsuitableFileSystem("this file system has no holes")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(UnsuitableFileSystem):
        patch.setattr("dedupd_core.volume.enabling.enable.probe", fails)
        enabling(scene)


def unoptimize_in_small_pieces(scene: Scene) -> None:
    """Each piece of a file is written out before the next one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedupd_core.stub.filling.SYNC_BYTES", 1)
        crash.unoptimize_volume(scene.root, scene.disk)


def cut_stubs_to_nothing(scene: Scene) -> None:
    """Stubs that become plain by being cut, and what is written to them then."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        for path, sync in (("base", scene.disk.sync_data), ("text", None)):
            with open_user_file(scene, path) as fd:
                stub = sparse(scene, volume, path, fd)
                scene.begin_write(path, b"")
                assert stub.truncate(0)
                scene.begin_write(path, b"written anew " * 700)
                scene.disk.write_at(fd, [b"written anew " * 700], 0)
                if sync is not None:
                    sync(fd)
                    scene.synced(path, b"written anew " * 700)


def make_a_secret(scene: Scene) -> None:
    """What the first mount of a volume does before it hands file handles out."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        load_secret(volume)


def scrubbing(scene: Scene) -> None:
    scrub(scene.root, disk=scene.disk)


def save_to_the_end(root: Path) -> None:
    """A job with something to do, which opens the index of each partition and saves it again."""
    fresh = [root / f".dedupd/data/fresh{suffix}" for suffix in ("", ".t0", ".t1", ".t2")]
    for path in fresh:
        path.write_bytes(b"to be looked up " * 1000)
    crash.optimize_volume(root)
    for path in fresh:
        path.unlink()
    optimize_to_the_end(root)


def mount_to_the_end(root: Path) -> None:
    """The secret is there whole or not at all; the next mount makes it, and the one after keeps
    it."""
    path = root / ".dedupd" / os.fsdecode(SECRET_FILE)
    found = path.read_bytes() if path.exists() else None
    assert found is None or len(found) == SECRET_BYTES
    for _ in range(2):
        with Volume.open(str(root)) as volume:
            secret = load_secret(volume)
        assert found in (None, secret) and path.read_bytes() == secret
        found = secret
    optimize_to_the_end(root)


def scrub_to_the_end(root: Path) -> None:
    scrub(root)
    crash.optimize_volume(root)
    report = crash.verify_volume(root)
    assert report.findings == []
    assert crash.half_done(root) == []


RECOVERY_SCENARIOS = {
    "cut a torn tail": Scenario(volume_with_torn_tail, settle, optimize_to_the_end),
    "discard a begun container": Scenario(volume_with_begun_container, settle, optimize_to_the_end),
    "finish a compaction": Scenario(
        compaction_cut_off("compact.data-switched"), compact, upkeep_to_the_end
    ),
    "undo a compaction": Scenario(
        compaction_cut_off("compact.written"), compact, upkeep_to_the_end
    ),
    "settle allocated blocks": Scenario(volume_with_allocated_blocks, settle, optimize_to_the_end),
    "optimize in many small batches": Scenario(
        plain_volume, with_parts(small_parts, optimize_more), optimize_to_the_end
    ),
    "optimize what orphans of other partitions hold": Scenario(
        volume_that_meets_orphans_of_others,
        with_parts(hooks_of_few, optimize_more),
        upkeep_to_the_end,
    ),
    **{
        f"optimize three partitions in groups of {files}": Scenario(
            volume_of_three_types,
            with_parts(partial(partitions_in_turns, files), optimize_more),
            with_parts(partial(partitions_in_turns, files), save_to_the_end),
        )
        for files in (1, 100)
    },
    "save a table": Scenario(
        volume_with_saved_index("table"),
        with_parts(saved_indexes, optimize_more),
        with_parts(saved_indexes, save_to_the_end),
    ),
    "save chains": Scenario(
        volume_with_saved_index("bloom"),
        with_parts(saved_indexes, optimize_more),
        with_parts(saved_indexes, save_to_the_end),
    ),
    "touch during a commit": Scenario(plain_volume, touch_during_a_commit, optimize_to_the_end),
    "save the first chains": Scenario(
        volume_with_index("bloom"),
        with_parts(saved_indexes, optimize_more),
        with_parts(saved_indexes, save_to_the_end),
    ),
    "enable what does not suit": Scenario(
        plain_directory, enabling_what_does_not_suit, enable_to_the_end
    ),
    "unoptimize in small pieces": Scenario(
        optimized_volume, unoptimize_in_small_pieces, unoptimize_to_the_end
    ),
    "cut stubs to nothing": Scenario(optimized_volume, cut_stubs_to_nothing, optimize_to_the_end),
    "unoptimize programs": Scenario(volume_with_programs, unoptimize, unoptimize_to_the_end),
    **{
        f"scrub, {how}": Scenario(damaged_volume(how), scrubbing, scrub_to_the_end)
        for how in ("record", "header", "missing", "cut", "table")
    },
    "make a secret for file handles": Scenario(optimized_volume, make_a_secret, mount_to_the_end),
    "enable with attributes": Scenario(directory_with_attributes, enabling, enable_to_the_end),
    "disable with attributes": Scenario(volume_with_attributes, disabling, disable_to_the_end),
    "disable what is half enabled": Scenario(half_enabled, disabling, disable_to_the_end),
    "reconcile for the first time": Scenario(
        volume_without_merge_directory, reconcile_and_compact, reconcile_to_the_end
    ),
}
