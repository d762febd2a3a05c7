"""Volumes to crash where space is short, or is given back: full disks, dead containers."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.config.room import Room
from dedupd_core.errors import DedupdError, NoSpace
from dedupd_core.format.container import Kind
from dedupd_core.store.encoded_records import encode_records
from dedupd_core.store.writer import NewRecords
from dedupd_core.units import align_down
from dedupd_core.volume.container_numbers import ContainerNumbers
from dedupd_core.volume.volume import Volume
from tests.crash.scenarios import (
    KIB,
    Scenario,
    Scene,
    compact,
    make_small_tree,
    open_user_file,
    optimize_to_the_end,
    optimized_volume,
    overwritten,
    plain_volume,
    sparse,
    unoptimize_to_the_end,
    upkeep_to_the_end,
    volume_with_more,
    volume_with_orphans,
)
from tests.crash.small_parts import small_parts, with_parts
from tests.support import crash
from tests.support.lab import noise, write_out
from tests.support.simulated_disk import BLOCK_BYTES, RecordingDisk

# --- how each begins --------------------------------------------------------------------------


def volume_with_dead_containers(root: Path, seed: int) -> None:
    """Several containers, some without a record that is needed."""
    plain_volume(root, seed)
    with small_parts():
        crash.optimize_volume(root)
        make_small_tree(root / ".dedupd/data/more", seed + 100)
        crash.optimize_volume(root)
    for name in ("base", "edited", "dir/copy"):
        (root / ".dedupd/data" / name).unlink()
    write_out(root)
    crash.orphan_garbage(root)


def volume_with_a_dead_last_container(root: Path, seed: int) -> None:
    """The container with the highest number, which is never removed, holds only garbage."""
    plain_volume(root, seed)
    last = root / ".dedupd/data/last"
    with small_parts():
        crash.optimize_volume(root)
        last.write_bytes(noise(40 * KIB, seed + 7))
        crash.optimize_volume(root)
    last.unlink()
    write_out(root)
    crash.collect_garbage(root)


def volume_with_remains(root: Path, seed: int) -> None:
    """A table without its container: what a kill leaves of a container that was being removed."""
    volume_with_dead_containers(root, seed)
    killed = crash.run_cli("run", "compact", root, fail_at="compact.data-removed")
    assert crash.was_killed(killed), killed.stderr


# --- what is done -----------------------------------------------------------------------------


@contextmanager
def disk_full_at(scene: Scene, name: str, call: int, unit: int = BLOCK_BYTES) -> Iterator[None]:
    """The ``call``-th write by a method of the disk gets half of what it needs, up to a multiple of
    ``unit``: inside a file a block is there with all that was given, or not at all."""
    calls = 0
    method = getattr(scene.disk, name)

    def limited(fd: int, data: object, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls != call:
            return int(method(fd, data, offset) or 0)
        parts = [data] if isinstance(data, memoryview) else data
        whole = b"".join(bytes(part) for part in parts)  # type: ignore[attr-defined]
        part = whole[: align_down(offset + len(whole) // 2, unit) - offset]
        if name == "write_some":
            return int(method(fd, [part], offset))
        if part:
            RecordingDisk.write_at(scene.disk, fd, [part], offset)
        raise NoSpace("no space left to write")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.disk, name, limited, raising=False)
        yield
    assert calls >= call, f"{name} was called {calls} times"


def optimize_on_a_full_disk(scene: Scene) -> None:
    with disk_full_at(scene, "write_out", 2), suppress(DedupdError):
        crash.optimize_volume(scene.root, scene.disk)


def compact_on_a_full_disk(scene: Scene) -> None:
    with disk_full_at(scene, "write_out", 1), suppress(DedupdError):
        crash.compact_volume(scene.root, scene.disk)


def unoptimize_on_a_full_disk(scene: Scene) -> None:
    with disk_full_at(scene, "write_some", 2), suppress(DedupdError):
        crash.unoptimize_volume(scene.root, scene.disk)


def write_to_a_stub_on_a_full_disk(scene: Scene) -> None:
    """The first write gets half of its space; the rest of what it allocated goes back."""
    with Volume.open(str(scene.root), scene.disk) as volume, open_user_file(scene, "base") as fd:
        stub = sparse(scene, volume, "base", fd)
        content = bytes(stub.read(0, 1 << 20))
        # The second one makes the file longer.
        for at, unit in ((4000, BLOCK_BYTES), (20 * KIB, 100)):
            wanted = overwritten(content, at, b"of a user " * 1500)
            scene.begin_write("base", wanted)
            with disk_full_at(scene, "write_some", 1, unit), suppress(NoSpace):
                stub.write(at, wanted[at : at + 15_000])
            content = bytes(stub.read(0, 1 << 20))
            scene.begin_write("base", content)
            scene.disk.sync_data(fd)
            scene.synced("base", content)


def compact_without_room(scene: Scene) -> None:
    """The blocks of a dead container go first, and make room for its new table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Room, "left_bytes", property(lambda _: 0))
        crash.compact_volume(scene.root, scene.disk)


def take_back_what_was_stored(scene: Scene) -> None:
    """Records that were stored in vain, some of them synced and the last ones not."""
    with Volume.open(str(scene.root), scene.disk) as volume, volume.job_lock():
        writer = ContainerNumbers(volume).writer(Kind.CHUNKS)
        writer.recover(lambda _: None)
        for number in range(3):
            data = noise(5 * KIB, scene.seed + number)
            first, lengths = writer.reserve(1, len(data)), array("I", [len(data)])
            rows = NewRecords(native.hashing.fingerprint(data), lengths, array("I", [0]))
            writer.append(first, rows, encode_records(data, array("I", [0]), lengths))
            if number == 0:
                writer.sync()
        writer.cut_back()
        writer.remove_emptied()
        assert writer.cut_bytes > 15 * KIB
        writer.close()


def optimize_something_to_the_end(root: Path) -> None:
    """A job that has something to store, and so brings all containers in order."""
    fresh = root / ".dedupd/data/fresh"
    fresh.write_bytes(noise(9 * KIB, 99))
    crash.optimize_volume(root)
    fresh.unlink()
    optimize_to_the_end(root)


SPACE_SCENARIOS = {
    "remove containers": Scenario(volume_with_dead_containers, compact, upkeep_to_the_end),
    "compact on a full disk": Scenario(
        volume_with_orphans, compact_on_a_full_disk, upkeep_to_the_end
    ),
    "optimize on a full disk": Scenario(
        volume_with_more, with_parts(small_parts, optimize_on_a_full_disk), optimize_to_the_end
    ),
    "unoptimize on a full disk": Scenario(
        optimized_volume, unoptimize_on_a_full_disk, unoptimize_to_the_end
    ),
    "write to a stub on a full disk": Scenario(
        optimized_volume, write_to_a_stub_on_a_full_disk, optimize_to_the_end
    ),
    "compact without room": Scenario(
        volume_with_a_dead_last_container, compact_without_room, upkeep_to_the_end
    ),
    "remove remains": Scenario(volume_with_remains, compact, upkeep_to_the_end),
    "take back what was stored": Scenario(
        optimized_volume, take_back_what_was_stored, optimize_something_to_the_end
    ),
}
