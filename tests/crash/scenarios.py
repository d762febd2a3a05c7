"""Volumes, what is done to them on a recording disk, and how the next start brings them back."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dedupd_core.config.memory_budget import NotesShares
from dedupd_core.config.policy import RefineMode
from dedupd_core.config.room import Room
from dedupd_core.errors import NoSpace
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.stub.commit_steps import NotCommitted, begin_commit, finish_commit, revert_commit
from dedupd_core.stub.content import StoreContent
from dedupd_core.stub.copying import can_share, share
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.disk import Disk
from dedupd_core.system.extents import has_unwritten
from dedupd_core.system.files import opened
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from dedupd_reader.reader import Volume as Reader
from jobs.compact.space_reclaimer import SpaceReclaimer
from jobs.frame.run import JobRun
from jobs.optimize import batch_reader, rounds
from jobs.optimize.optimize_job import Optimize
from jobs.tree import judged_files
from tests.support import crash
from tests.support.copies import belong_here
from tests.support.lab import write_out
from tests.support.simulated_disk import (
    SECTOR_BYTES,
    RecordingDisk,
)

pytestmark = pytest.mark.root

KIB = 1 << 10
STATES_PER_SCENARIO = 25
STATES_PER_SEED_SLOW = 1000
SEEDS_SLOW = 4
"""Trees and operations of other random content. Some of the states turn out to be the same."""

Contents = dict[str, bytes]


@dataclass(slots=True)
class History:
    """What users wrote, by position in the disk's log.

    ``synced`` are contents that were durable from then on; ``written`` are those that were begun,
    and ``removed`` the removals.
    """

    synced: list[tuple[int, str, bytes]] = field(default_factory=list)
    written: list[tuple[int, str, bytes]] = field(default_factory=list)
    removed: list[tuple[int, str]] = field(default_factory=list)

    def may_be_gone(self, length: int) -> set[str]:
        """The files that may not be there any more after ``length`` entries of the log."""
        return {path for at, path in self.removed if at < length}

    def allowed(self, length: int) -> dict[str, list[bytes]]:
        """The contents that each file may have after ``length`` entries of the log."""
        since: dict[str, int] = {}
        allowed: dict[str, list[bytes]] = {}
        for at, path, content in self.synced:
            if at <= length:
                since[path], allowed[path] = at, [content]
        for at, path, content in self.written:
            # Begun before this entry of the log: it may be there in part.
            if since[path] <= at < length:
                allowed[path].append(content)
        return allowed


@dataclass(slots=True)
class Scene:
    """A volume with a recording disk, and what its users know about it."""

    root: Path
    disk: RecordingDisk
    history: History
    seed: int

    def begin_write(self, path: str, content: bytes) -> None:
        self.history.written.append((len(self.disk.log), path, content))

    def synced(self, path: str, content: bytes) -> None:
        self.history.synced.append((len(self.disk.log), path, content))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on an ext4 in memory, without a journal: we do the crashing."""
    options = ("-b", "4096", "-O", "^has_journal", "-N", "16384")
    with (
        crash.tmpfs(tmp_path_factory.mktemp("power")) as memory,
        crash.ext4(memory, size_mb=256, mkfs=options) as point,
    ):
        yield point


def make_small_tree(root: Path, seed: int = 1) -> None:
    """A few files of several 4 KiB blocks and several small chunks each."""
    rng = random.Random(seed)
    root.mkdir(exist_ok=True)
    (root / "dir").mkdir(exist_ok=True)
    base = rng.randbytes(22 * KIB + 77)
    text = b"".join(b"line %d, compressible\n" % (n % 300) for n in range(1200))
    files = {
        "base": base,
        "dir/copy": base,
        "edited": base[: 9 * KIB] + b"edit" + base[9 * KIB :],
        "text": text,
        "one-chunk": rng.randbytes(3000),
        "zeros": bytes(9 * KIB) + rng.randbytes(3 * KIB) + bytes(12 * KIB),
    }
    for name, content in files.items():
        (root / name).write_bytes(content)
    for path in [*root.rglob("*"), root]:
        os.utime(path, ns=(crash.MTIME_NS, crash.MTIME_NS))


def enable_small(root: Path, disk: Disk | None = None) -> None:
    enable(
        str(root),
        chunk_size="4k",
        fingerprint="blake3",
        policy_values={"min_age": "0s", "min_size": "1k", "min_file_saving": 0},
        force=True,
        disk=disk or Disk(),
    )


def contents(root: Path) -> Contents:
    """What every file holds, plain or stub, in whatever state the directory is."""
    base = root / ".dedupd"
    if (base / "volume.json").exists() and not (base / "disabling").exists():
        with Volume.open(str(root)) as volume:
            one = Reader(volume.base, locks=False)
            data = Path(volume.base) / "data"
            names = [p.relative_to(data) for p in data.rglob("*") if p.is_file()]
            return {str(name): one.content(str(name)) for name in names}
    found = {
        str(path.relative_to(place)): path.read_bytes()
        for place in (root, base / "data")
        for path in place.rglob("*")
        if path.is_file() and (place != root or ".dedupd" not in path.relative_to(root).parts)
    }
    return found


def assert_allowed(
    found: Contents, allowed: dict[str, list[bytes]], gone: set[str], where: str
) -> None:
    """Each file is one of its versions, or a mixture of them sector by sector."""
    assert found.keys() | gone == allowed.keys(), where
    for path, content in found.items():
        versions = allowed[path]
        if content in versions:
            continue
        lengths = {len(version) for version in versions}
        assert min(lengths) <= len(content) <= max(lengths), f"{where}: {path}: length"
        for at in range(0, len(content), SECTOR_BYTES):
            sector = content[at : at + SECTOR_BYTES]
            # A version that ends before, or that was cut off since, is followed by zeros where
            # another one made it longer.
            choices = {
                version[at : min(at + len(sector), len(cut))].ljust(len(sector), b"\0")
                for number, version in enumerate(versions)
                for cut in versions[number:]
            }
            assert sector in choices, f"{where}: {path}: bytes at {at} are of no version"


# --- scenarios --------------------------------------------------------------------------------


def optimize_first(scene: Scene) -> None:
    crash.optimize_volume(scene.root, scene.disk)


def optimize_more(scene: Scene) -> None:
    """A second run, which appends to the containers of the first."""
    crash.optimize_volume(scene.root, scene.disk)


def optimize_what_was_left(scene: Scene) -> None:
    """Buffers hold a part of a file; notes are saved on the way, and at the end."""
    shares = NotesShares(1000, 8, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_reader, "SMALL_BYTES_MAX", 32 * KIB)
        patch.setattr(batch_reader, "BATCH_BYTES_MIN", 16 * KIB)
        patch.setattr(batch_reader, "BATCH_BYTES", 32 * KIB)
        patch.setattr(judged_files, "notes_shares", lambda _: shares)
        crash.optimize_volume(scene.root, scene.disk)


def optimize_in_small_containers(scene: Scene) -> None:
    defaults = ContainerWriter.__init__.__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults or {}, "container_bytes_max", 12 * KIB)
        crash.optimize_volume(scene.root, scene.disk)


def optimize_until_there_is_no_room(scene: Scene) -> None:
    """Users take all space: what was stored for files that are not stubs yet is cut off."""
    defaults = ContainerWriter.__init__.__kwdefaults__
    left_bytes = 70 * KIB

    def require(room: Room, need_bytes: int, what: str, *, files: int = 0) -> None:
        nonlocal left_bytes
        if "chunks/" in what:  # recipes fit into the room that is made for them
            left_bytes -= need_bytes
            if left_bytes < 0:
                raise NoSpace("no space left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults or {}, "container_bytes_max", 12 * KIB)
        patch.setattr(rounds, "GROUP_BYTES", 4 * KIB)
        patch.setattr(batch_reader, "SMALL_BYTES_MAX", 4 * KIB)
        patch.setattr(batch_reader, "BATCH_BYTES_MIN", 16 * KIB)
        patch.setattr(batch_reader, "BATCH_BYTES", 16 * KIB)
        patch.setattr(Room, "require", require)
        with pytest.raises(NoSpace):
            crash.optimize_volume(scene.root, scene.disk)
    crash.optimize_volume(scene.root, scene.disk)


def unoptimize(scene: Scene) -> None:
    crash.unoptimize_volume(scene.root, scene.disk)


def enabling(scene: Scene) -> None:
    enable_small(scene.root, scene.disk)


def disabling(scene: Scene) -> None:
    crash.disable_volume(scene.root, scene.disk)


def settle(scene: Scene) -> None:
    """What the next run makes of a batch that was cut off in the middle of its commit."""
    crash.optimize_volume(scene.root, scene.disk)


@contextmanager
def open_user_file(scene: Scene, path: str) -> Iterator[int]:
    data = scene.root / ".dedupd/data"
    with opened(os.open(data / path, os.O_RDWR)) as fd:
        yield fd


def write_during_commit(scene: Scene) -> None:
    """Users' writes to a file between the two halves of its commit: the commit is taken back."""
    for path, sync in (("base", Disk.sync_data), ("edited", Disk.sync_file), ("text", None)):
        with Volume.open(str(scene.root), scene.disk) as volume:
            ref = _recipe_of_twin(volume, path)
            with open_user_file(scene, path) as fd:
                content = os.pread(fd, 1 << 20, 0)
                read = FileIdentity.of(os.fstat(fd))
                begun = begin_commit(fd, read, ref, volume.stub_files)
                revert_commit(fd, begun, volume.stub_files)
                changed = overwritten(content, 5000, b"changed by a user " * 400)
                scene.begin_write(path, changed)
                scene.disk.write_at(fd, [changed[5000:12200]], 5000)
                if sync is not None:
                    getattr(scene.disk, sync.__name__)(fd)
                    scene.synced(path, changed)


def commit_of_changed_file(scene: Scene) -> None:
    """The commit finds that its file has changed, and leaves it plain."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        ref = _recipe_of_twin(volume, "base")
        with open_user_file(scene, "base") as fd:
            content = os.pread(fd, 1 << 20, 0)
            begun = begin_commit(fd, FileIdentity.of(os.fstat(fd)), ref, volume.stub_files)
            scene.disk.sync_file_system(fd)
            changed = overwritten(content, 0, b"changed " * 1000)
            scene.begin_write("base", changed)
            scene.disk.write_at(fd, [changed[:8000]], 0)
            with pytest.raises(NotCommitted):
                finish_commit(fd, begun, volume.stub_files)
            scene.disk.sync_file(fd)
            scene.synced("base", changed)


def overwritten(content: bytes, at: int, data: bytes) -> bytes:
    return content[:at] + data + content[at + len(data) :]


def _recipe_of_twin(volume: Volume, path: str) -> RecipeRef:
    """The recipe of the file ``stored-…``, which has the same content and is a stub."""
    name = b"stored-" + os.fsencode(path)
    with opened(os.open(name, os.O_RDONLY, dir_fd=volume.data_fd)) as fd:
        stub = volume.space.read(fd, path)
    assert stub is not None
    return RecipeRef(stub.recipe, stub.digest, Flag.DIRECT in stub.flags)


_CHANGES = ("write", "write", "write", "truncate", "punch", "allocate", "fdatasync", "fsync")


def share_recipes(scene: Scene) -> None:
    """Copies of stubs that share their recipe, made in one piece and in two, then written to."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        for path in ("base", "text"):
            with open_user_file(scene, path) as fd:
                source = sparse(scene, volume, path, fd)
                content = bytes(source.read(0, 1 << 20))
                assert can_share(source)
            name = f"copy of {path}"
            with open_user_file(scene, name) as fd:
                ends = (8192, len(content)) if path == "base" else (len(content),)
                for end in ends:
                    scene.begin_write(name, content[:end])
                    made = share(fd, source.attribute, end, volume.stub_files)
                scene.disk.sync_data(fd)
                scene.synced(name, content)
                changed = overwritten(content, 5000, b"changed " * 100)
                scene.begin_write(name, changed)
                copy = sparse(scene, volume, name, fd)
                assert copy.attribute == made
                copy.write(5000, changed[5000:5800])


def punch_what_was_written(scene: Scene) -> None:
    """Blocks that users wrote to stubs, and synced, become zeros: never what was there before."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        for path, start in (("base", 4096), ("text", 5000), ("base", 0)):
            with open_user_file(scene, path) as fd:
                stub = sparse(scene, volume, path, fd)
                content = bytes(stub.read(0, 1 << 20))
                changed = overwritten(
                    content, 4096, random.Random(3).randbytes(len(content) - 4096)
                )
                scene.begin_write(path, changed)
                stub.write(4096, changed[4096:])
                scene.disk.sync_file(fd)
                scene.synced(path, changed)
                at, end, is_plain = start, len(changed), False
                zeros = changed[:start].ljust(end, b"\0")
                scene.begin_write(path, zeros)
                while at < end:
                    at, is_plain = stub.zero(at, end)
                assert bytes(os.pread(fd, end, 0) if is_plain else stub.read(0, end)) == zeros
                scene.disk.sync_file(fd)
                scene.synced(path, zeros)


def write_to_stubs(scene: Scene, operations: int = 14) -> None:
    """Random writes, truncations, extensions and syncs of stubs, as the mount would do them."""
    rng = random.Random(scene.seed)
    with Volume.open(str(scene.root), scene.disk) as volume:
        for path in ("base", "zeros", "text"):
            with open_user_file(scene, path) as fd:
                _change_stub(scene, volume, path, fd, rng, operations)


def sparse(scene: Scene, volume: Volume, path: str, fd: int) -> SparseStub:
    """A stub, open for reading and writing."""

    def load(stub: StubAttribute) -> StoreContent:
        return volume.content(stub, path)

    attribute = volume.space.read(fd, path)
    assert attribute is not None
    return SparseStub(fd, attribute, volume.stub_files, load)


def _change_stub(
    scene: Scene, volume: Volume, path: str, fd: int, rng: random.Random, operations: int
) -> None:
    stub = sparse(scene, volume, path, fd)
    content = bytes(stub.read(0, 1 << 20))
    is_punched = False
    for _ in range(operations):
        kind = rng.choice(_CHANGES)
        if kind == "write":
            at, length = rng.randrange(30 * KIB), rng.randrange(1, 9000)
            data = rng.randbytes(length)
            content = overwritten(content.ljust(at, b"\0"), at, data)
            scene.begin_write(path, content)
            assert stub.write(at, data) == length
        elif kind == "truncate":
            length = rng.randrange(1, 34 * KIB)
            content = content[:length].ljust(length, b"\0")
            scene.begin_write(path, content)
            stub.truncate(length)
        elif kind == "punch":
            at = rng.randrange(1, 30 * KIB)
            end = min(at + rng.randrange(1, 20 * KIB), len(content))
            content = overwritten(content, at, bytes(max(0, end - at)))
            scene.begin_write(path, content)
            while at < end:
                at, is_plain = stub.zero(at, end)
                assert not is_plain
            is_punched = True
        elif kind == "allocate":
            at, end = rng.randrange(30 * KIB), rng.randrange(30 * KIB, 36 * KIB)
            content = content.ljust(end, b"\0")
            scene.begin_write(path, content)
            while at < end:
                at, _ = stub.allocate(at, end, keep_size=False)
        elif kind == "fdatasync" and not is_punched:
            scene.disk.sync_data(fd)
            scene.synced(path, content)
        else:
            # By the model fdatasync need not make a hole durable.
            scene.disk.sync_file(fd)
            is_punched = False
            scene.synced(path, content)
            if rng.randrange(2):
                # The simulated disk has every extent durable by now; the real one must have, too.
                os.fsync(fd)
                # Blocks that were allocated, and not written to, are in no count.
                counts = not has_unwritten(fd, os.fstat(fd).st_size)
                assert stub.seal() == stub.is_sealed == counts
    assert bytes(stub.read(0, 1 << 20)) == content


def write_during_commit_of_stubs(scene: Scene) -> None:
    """The same for stubs that were written to: the commit of their new recipe is taken back."""
    with Volume.open(str(scene.root), scene.disk) as volume:
        ref = _recipe_of_twin(volume, "base")
        with open_user_file(scene, "base") as fd:
            content = crash.read_through_store(volume, b"base")
            previous = os.getxattr(fd, volume.space.name)
            identity = FileIdentity.of(os.fstat(fd))
            begun = begin_commit(fd, identity, ref, volume.stub_files, previous)
            revert_commit(fd, begun, volume.stub_files)
            stub = sparse(scene, volume, "base", fd)
            for at, sync in ((4096, scene.disk.sync_data), (9000, scene.disk.sync_file)):
                data = random.Random(at).randbytes(3000)
                content = overwritten(content, at, data)
                scene.begin_write("base", content)
                stub.write(at, data)
                sync(fd)
                scene.synced("base", content)


def collect(scene: Scene) -> None:
    crash.collect_garbage(scene.root, scene.disk)


def compact(scene: Scene) -> None:
    crash.compact_volume(scene.root, scene.disk)


def refine(scene: Scene) -> None:
    crash.refine_volume(scene.root, scene.disk)


def leave_bases(scene: Scene) -> None:
    assert crash.refine_volume(scene.root, scene.disk).bases_left >= 6


def refine_with_dictionaries(scene: Scene) -> None:
    assert crash.refine_volume(scene.root, scene.disk, RefineMode.FULL).new_with_dictionary


def refine_and_collect(scene: Scene) -> None:
    """What is leaned on goes, and what leans on it, in one collection."""
    crash.refine_volume(scene.root, scene.disk)
    path = scene.root / ".dedupd/data/versions/2"
    with opened(os.open(path.parent, os.O_RDONLY)) as dir_fd:
        scene.history.removed.append((len(scene.disk.log), "versions/2"))
        scene.disk.unlink(dir_fd, b"2")
    crash.collect_garbage(scene.root, scene.disk)
    crash.compact_volume(scene.root, scene.disk)


def reconcile_and_compact(scene: Scene) -> None:
    """What was merged may not be durable yet when its bytes go."""
    crash.reconcile_volume(scene.root, scene.disk)
    crash.compact_volume(scene.root, scene.disk)


def remove_collect_compact(scene: Scene) -> None:
    """A user's removals are in memory only when their garbage is collected."""
    for path in ("base", "dir/copy", "edited"):
        name = scene.root / ".dedupd/data" / path
        with opened(os.open(name.parent, os.O_RDONLY)) as dir_fd:
            scene.history.removed.append((len(scene.disk.log), path))
            scene.disk.unlink(dir_fd, os.fsencode(name.name))
    crash.collect_garbage(scene.root, scene.disk)
    crash.compact_volume(scene.root, scene.disk)


# --- how each begins and ends -----------------------------------------------------------------


def plain_directory(root: Path, seed: int) -> None:
    make_small_tree(root, seed)


def plain_volume(root: Path, seed: int) -> None:
    make_small_tree(root, seed)
    enable_small(root)


def volume_with_large_file(root: Path, seed: int) -> None:
    """A file of many batches comes last."""
    plain_volume(root, seed)
    path = root / ".dedupd/data/zz-large"
    path.write_bytes(random.Random(seed + 50).randbytes(150 * KIB))
    os.utime(path, ns=(crash.MTIME_NS, crash.MTIME_NS))


def optimized_volume(root: Path, seed: int) -> None:
    plain_volume(root, seed)
    crash.optimize_volume(root)


def volume_with_versions(root: Path, seed: int) -> None:
    """Files that are nearly the same, and cold at once."""
    plain_volume(root, seed)
    with open(root / ".dedupd/policy.toml", "a") as policy:
        policy.write('refine_age = "0s"\n')
    content = bytearray(random.Random(seed + 70).randbytes(6 * KIB))
    directory = root / ".dedupd/data/versions"
    directory.mkdir()
    for number in range(4):
        path = directory / f"{number}"
        content[100 * number : 100 * number + 20] = random.Random(number).randbytes(20)
        path.write_bytes(content)
        os.utime(path, ns=(crash.MTIME_NS, crash.MTIME_NS))
    crash.optimize_volume(root)
    (root / ".dedupd/store/chunks/00000099.sketch").write_bytes(b"of a container that is gone")


def volume_with_held_bases(root: Path, seed: int) -> None:
    """Differences to chunks of files that were deleted."""
    volume_with_versions(root, seed)
    directory = root / ".dedupd/data/versions"
    for pair in range(8):
        random_ = random.Random(seed + 71 + pair)
        content = random_.randbytes(6 * KIB)
        for name, own in (("old", content), ("new", content[:-800] + random_.randbytes(800))):
            path = directory / f"{name} {pair}"
            path.write_bytes(own)
            os.utime(path, ns=(crash.MTIME_NS, crash.MTIME_NS))
    crash.optimize_volume(root)
    assert crash.refine_volume(root).new_deltas >= 8
    (directory / "0").unlink()
    for path in directory.glob("old *"):
        path.unlink()
    crash.orphan_garbage(root)


def volume_with_texts(root: Path, seed: int) -> None:
    """Many small files that have their words in common, and cold at once."""
    plain_volume(root, seed)
    with open(root / ".dedupd/policy.toml", "a") as policy:
        policy.write('refine_age = "0s"\n')
    crash.put_texts(root / ".dedupd/data")
    crash.optimize_volume(root)


def volume_in_partitions(root: Path, seed: int) -> None:
    """Files of three types, which have much in common and share nothing."""
    plain_volume(root, seed)
    data = root / ".dedupd/data"
    for name in ("base", "text"):
        for kind in ("t1", "t2"):
            path = data / f"{name}.{kind}"
            path.write_bytes((data / name).read_bytes())
            os.utime(path, ns=(crash.MTIME_NS, crash.MTIME_NS))
    crash.optimize_in_partitions(root)


def volume_with_more(root: Path, seed: int) -> None:
    optimized_volume(root, seed)
    make_small_tree(root / ".dedupd/data/more", seed + 100)


def volume_with_left_files(root: Path, seed: int) -> None:
    """Files that saved too little, and now have copies: small ones, and one of many batches."""
    plain_volume(root, seed)
    noise = random.Random(seed + 500)
    crash.leave_what_saves_little(
        root, *(noise.randbytes(size) for size in (20_400, 40_900, 90_000))
    )


def stubs_and_empty_files(root: Path, seed: int) -> None:
    optimized_volume(root, seed)
    for path in ("base", "text"):
        (root / ".dedupd/data" / f"copy of {path}").touch()


def written_stubs(root: Path, seed: int) -> None:
    """Stubs of which some blocks are their own."""
    optimized_volume(root, seed)
    write_to_stubs(Scene(root, RecordingDisk(), History(), seed))


def stub_and_twin(root: Path, seed: int) -> None:
    """A stub with blocks of its own, and another stub with the same content."""
    optimized_volume(root, seed)
    scene = Scene(root, RecordingDisk(), History(), seed)
    with Volume.open(str(root), Disk()) as volume, open_user_file(scene, "base") as fd:
        sparse(scene, volume, "base", fd).write(3000, b"written since" * 500)
        content = crash.read_through_store(volume, b"base")
    twin = root / ".dedupd/data/stored-base"
    twin.write_bytes(content)
    with Volume.open(str(root)) as volume, volume.job_lock():
        Optimize(volume, JobRun("optimize"), b"stored-base").run()


def volume_with_twins(root: Path, seed: int) -> None:
    """Stubs whose recipes fit plain files beside them."""
    optimized_volume(root, seed)
    data = root / ".dedupd/data"
    for path in ("base", "edited", "text"):
        content = contents(root)[path]
        (data / path).rename(data / f"stored-{path}")
        (data / path).write_bytes(content)
        os.utime(data / path, ns=(crash.MTIME_NS, crash.MTIME_NS))


def volume_with_garbage(root: Path, seed: int) -> None:
    """An optimized volume, some files of which were removed."""
    volume_with_more(root, seed)
    crash.optimize_volume(root)
    for path in (root / ".dedupd/data/more").iterdir():
        if path.is_file():
            path.unlink()
    write_out(root)


def volume_with_orphans(root: Path, seed: int) -> None:
    volume_with_garbage(root, seed)
    crash.orphan_garbage(root)


def volume_with_long_orphans(root: Path, seed: int) -> None:
    """Orphans of several blocks each, merged records like them, and plain files with the bytes of
    orphans: a run that finds them must not take them for what they were."""
    plain_volume(root, seed)
    rng = random.Random(seed + 70)
    data = root / ".dedupd/data"
    files = {f"gone{n}": rng.randbytes(40 * KIB) for n in range(3)}
    files |= {"one.t1": rng.randbytes(40 * KIB)}
    files |= {"same.t2": files["one.t1"]}
    for name, content in files.items():
        (data / name).write_bytes(content)
        os.utime(data / name, ns=(crash.MTIME_NS, crash.MTIME_NS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpaceReclaimer, "reclaim", lambda _: None)
        crash.optimize_in_partitions(root)
        crash.reconcile_volume(root)
        for name in ("gone0", "gone1"):
            (data / name).unlink()
        crash.collect_garbage(root)
    (data / "again").write_bytes(files["gone0"])
    os.utime(data / "again", ns=(crash.MTIME_NS, crash.MTIME_NS))
    write_out(root)


def volume_that_meets_orphans(root: Path, seed: int) -> None:
    """Plain files whose chunks are all there, as orphans."""
    volume_with_orphans(root, seed)
    make_small_tree(root / ".dedupd/data/again", seed + 100)


def volume_cut_off(fail_point: str) -> Callable[[Path, int], None]:
    def make(root: Path, seed: int) -> None:
        volume_with_more(root, seed)
        killed = crash.run_cli("run", "optimize", root, fail_at=fail_point)
        assert crash.was_killed(killed)

    return make


def optimize_to_the_end(root: Path) -> None:
    crash.optimize_volume(root)
    report = crash.verify_volume(root)
    assert report.findings == []
    assert report.unsettled == report.unsynced_bytes == 0
    assert crash.half_done(root) == []


def upkeep_to_the_end(root: Path) -> None:
    crash.optimize_volume(root)
    assert crash.compact_volume(root).messages == []
    assert crash.collect_garbage(root).messages == []
    assert crash.compact_volume(root).messages == []
    report = crash.verify_volume(root)
    assert report.findings == []
    assert crash.half_done(root) == []


def refine_to_the_end(root: Path) -> None:
    assert crash.refine_volume(root).messages == []
    upkeep_to_the_end(root)
    assert crash.refine_volume(root).messages == []
    upkeep_to_the_end(root)


def refine_fully_to_the_end(root: Path) -> None:
    for _ in range(2):
        assert crash.refine_volume(root, mode=RefineMode.FULL).messages == []
        upkeep_to_the_end(root)


def reconcile_to_the_end(root: Path) -> None:
    assert crash.reconcile_volume(root).messages == []
    assert crash.reconcile_volume(root).compared_records == 0
    upkeep_to_the_end(root)


def unoptimize_to_the_end(root: Path) -> None:
    assert crash.unoptimize_volume(root).messages == []
    assert crash.verify_volume(root).stubs == 0


def enable_to_the_end(root: Path) -> None:
    base = root / ".dedupd"
    if not (base / "volume.json").exists() or (base / "enabling").exists():
        enable_small(root)
    assert crash.half_done(root) == []
    assert crash.verify_volume(root).plain_files == 6


def disable_to_the_end(root: Path) -> None:
    if (root / ".dedupd").exists():
        crash.disable_volume(root)
    assert not (root / ".dedupd").exists()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A volume to begin with, what is done to it, and how the next start brings it back.

    ``place`` makes a crash state, whose inodes are others, the volume that it was; ``look`` reads
    what the files hold.
    """

    begin: Callable[[Path, int], None]
    act: Callable[[Scene], None]
    end: Callable[[Path], None]
    place: Callable[[Path], None] = belong_here
    look: Callable[[Path], Contents] = contents


SCENARIOS = {
    "optimize": Scenario(plain_volume, optimize_first, optimize_to_the_end),
    "optimize more": Scenario(volume_with_more, optimize_more, optimize_to_the_end),
    "optimize into small containers": Scenario(
        plain_volume, optimize_in_small_containers, optimize_to_the_end
    ),
    "optimize until there is no room": Scenario(
        volume_with_large_file, optimize_until_there_is_no_room, optimize_to_the_end
    ),
    "optimize what was left": Scenario(
        volume_with_left_files, optimize_what_was_left, optimize_to_the_end
    ),
    "recover a torn tail": Scenario(volume_cut_off("writer.appended"), settle, optimize_to_the_end),
    "settle a commit": Scenario(volume_cut_off("commit.durable"), settle, optimize_to_the_end),
    "settle a punch": Scenario(volume_cut_off("stub.punched"), settle, optimize_to_the_end),
    "unoptimize": Scenario(optimized_volume, unoptimize, unoptimize_to_the_end),
    "unoptimize, then optimize": Scenario(optimized_volume, unoptimize, optimize_to_the_end),
    "enable": Scenario(plain_directory, enabling, enable_to_the_end),
    "disable": Scenario(plain_volume, disabling, disable_to_the_end),
    "write during a commit": Scenario(volume_with_twins, write_during_commit, optimize_to_the_end),
    "commit a changed file": Scenario(
        volume_with_twins, commit_of_changed_file, optimize_to_the_end
    ),
    "punch what was written": Scenario(
        optimized_volume, punch_what_was_written, optimize_to_the_end
    ),
    "share recipes": Scenario(stubs_and_empty_files, share_recipes, optimize_to_the_end),
    "write to stubs": Scenario(optimized_volume, write_to_stubs, optimize_to_the_end),
    "write to stubs, then unoptimize": Scenario(
        optimized_volume, write_to_stubs, unoptimize_to_the_end
    ),
    "optimize what was written to": Scenario(written_stubs, optimize_more, optimize_to_the_end),
    "unoptimize what was written to": Scenario(written_stubs, unoptimize, unoptimize_to_the_end),
    "write during the commit of a stub": Scenario(
        stub_and_twin, write_during_commit_of_stubs, optimize_to_the_end
    ),
    "collect garbage": Scenario(volume_with_garbage, collect, upkeep_to_the_end),
    "punch": Scenario(volume_with_long_orphans, collect, upkeep_to_the_end),
    "compact": Scenario(volume_with_orphans, compact, upkeep_to_the_end),
    "remove, collect and compact": Scenario(
        optimized_volume, remove_collect_compact, upkeep_to_the_end
    ),
    "reconcile and compact": Scenario(
        volume_in_partitions, reconcile_and_compact, reconcile_to_the_end
    ),
    "refine": Scenario(volume_with_versions, refine, refine_to_the_end),
    "leave bases": Scenario(volume_with_held_bases, leave_bases, refine_to_the_end),
    "refine with dictionaries": Scenario(
        volume_with_texts, refine_with_dictionaries, refine_fully_to_the_end
    ),
    "refine, remove and collect": Scenario(
        volume_with_versions, refine_and_collect, refine_to_the_end
    ),
    "optimize what orphans hold": Scenario(
        volume_that_meets_orphans, optimize_more, upkeep_to_the_end
    ),
}
