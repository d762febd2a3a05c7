"""One history: two bits flip, jobs run, the power fails, and every user looks at what is left."""

import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedupd_core.config.policy import RefineMode
from dedupd_core.deleted import log
from dedupd_core.deleted.listing import lost
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.deleted.offsets import LogOffsets
from dedupd_core.deleted.undelete import UNFINISHED, Undelete, attach_below
from dedupd_core.errors import Damaged, DedupdError, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from dedupd_reader import reader
from jobs.check.verify import Verify
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.optimize.optimize_job import Optimize
from jobs.rebuild import Rebuild
from jobs.reconcile.reconcile_job import Reconcile, Strategy
from jobs.refine.refine_job import Refine
from jobs.scrub.scrub_job import Depth, Scrub
from jobs.unoptimize import Unoptimize
from tests.hostile.forger.world import (
    MARK,
    OLD_LOG,
    File,
    World,
    known_randomness,
    make_world,
)
from tests.support import crash
from tests.support.copies import belong_here
from tests.support.crash_states import FILE_SYSTEMS, CrashStates, choices
from tests.support.deletions import wanted_of
from tests.support.lab import flip_bit
from tests.support.simulated_disk import Inode, RecordingDisk, materialise, scan

ERRORS = (DedupdError, OSError)
PER_WORLD = 40
"""Histories of one volume, which takes as long to make as ten to play."""
SET_IDS = stat.S_ISUID | stat.S_ISGID


def _optimize(volume: Volume) -> None:
    Optimize(volume, JobRun("optimize")).run()


def _gc(volume: Volume) -> None:
    Gc(volume, JobRun("gc"), full=True, all_garbage=True).run()


def _verify(volume: Volume) -> None:
    with volume.mount_lock():
        Verify(volume, JobRun("verify")).run()


JOBS: dict[str, Callable[[Volume], object]] = {
    "optimize": _optimize,
    "gc": _gc,
    "quick scrub": lambda volume: Scrub(volume, JobRun("scrub"), Depth.QUICK, None).run(),
    "scrub": lambda volume: Scrub(volume, JobRun("scrub"), Depth.FULL, None).run(),
    "rebuild": lambda volume: Rebuild(volume, JobRun("rebuild")).run(),
    "verify": _verify,
    "compact": lambda volume: Compact(volume, JobRun("compact")).run(),
    "rekey": lambda volume: Compact(volume, JobRun("compact"), rekey=True).run(),
    "reconcile": lambda volume: Reconcile(volume, JobRun("reconcile"), Strategy.ALL).run(),
    "refine": lambda volume: Refine(volume, JobRun("refine"), RefineMode.FULL).run(),
    "unoptimize": lambda volume: Unoptimize(volume, JobRun("unoptimize"), b"").run(),
}


class Forged(AssertionError):
    """A user got what no user has written, or had."""


@dataclass(slots=True)
class Original:
    """A volume as it was made, to be put back after each history."""

    world: World
    inodes: dict[Path, Inode]
    paths: dict[Path, tuple[int, ...]]

    @classmethod
    def of(cls, world: World) -> "Original":
        inodes = scan(world.root)
        paths = _all_paths(world.root)
        one = cls(world, {path: inodes[path.lstat().st_ino] for path in paths}, {})
        one._sign()
        return one

    def _sign(self) -> None:
        self.paths = {path: _signature(path) for path in _all_paths(self.world.root)}

    def put_back(self) -> None:
        """Make every file what it was, in the inode that it had if that is still there."""
        now = _all_paths(self.world.root)
        for path in sorted(set(now) - self.paths.keys(), reverse=True):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        data, is_tree_changed = self.world.base / "data", False
        for path, signature in self.paths.items():
            if not path.exists() or _signature(path) != signature:
                self._put_back(path)
                is_tree_changed |= path.is_relative_to(data)
        if is_tree_changed:
            belong_here(self.world.root)
        self._sign()

    def _put_back(self, path: Path) -> None:
        inode = self.inodes[path]
        if stat.S_ISDIR(inode.mode):
            path.mkdir(exist_ok=True)
        else:
            with open(path, "r+b" if path.exists() else "xb") as file:
                os.ftruncate(file.fileno(), 0)
                for block, data in inode.blocks.items():
                    os.pwrite(file.fileno(), data[: inode.size - block * 4096], block * 4096)
                os.ftruncate(file.fileno(), inode.size)
        os.chown(path, inode.uid, inode.gid)
        os.chmod(path, stat.S_IMODE(inode.mode))
        for name in os.listxattr(path):
            if name.encode() not in inode.attributes:
                os.removexattr(path, name)
        for attribute, value in inode.attributes.items():
            os.setxattr(path, attribute, value)
        os.utime(path, ns=(inode.mtime_ns, inode.mtime_ns))


def _all_paths(root: Path) -> list[Path]:
    found = list[Path]()
    for directory, folders, files in os.walk(root):
        found += [Path(directory, name) for name in (*folders, *files)]
    return found


def _signature(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        return (status.st_ino, status.st_mode, status.st_uid, status.st_gid)
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


# --- a history --------------------------------------------------------------------------------


def play(original: Original, seed: int, crashed: Path) -> str:
    """Play one history; returns its last outcome. Raises Forged."""
    rng = random.Random(f"history {seed}")
    world, told = original.world, list[str]()
    try:
        with known_randomness(f"history {seed}"), pytest.MonkeyPatch.context() as patch:
            # A process remembers logs by their secret seeds, which are the same in all histories.
            patch.setattr(log, "OFFSETS", LogOffsets())
            told += (
                [_flip(world, rng) for _ in range(2)] if rng.random() < 0.6 else _pair(world, rng)
            )
            root = world.root
            if rng.random() < 0.4:
                root = _cut(world, rng, crashed, told)
            for _ in range(rng.randrange(3)):
                told.append(_job(root, rng.choice(list(JOBS)), Disk()))
            return _look(world, root, rng)
    except Exception as error:
        text = f"history {seed}: {'; '.join(told)}: {type(error).__name__}: {error}"
        raise Forged(text) from error
    finally:
        original.put_back()
        crash.remove(crashed)


def _flip_in(world: World, rng: random.Random, use: str) -> str:
    name, start, length = rng.choice(world.spots[use])
    offset, bit = start + rng.randrange(length), rng.randrange(8)
    flip_bit(world.base / name, offset, bit)
    return f"bit {bit} of byte {offset} of {name} ({use})"


def _flip(world: World, rng: random.Random) -> str:
    return _flip_in(world, rng, rng.choice(list(world.spots)))


def _pair(world: World, rng: random.Random) -> list[str]:
    """A fault of what the forger has written, and one of what says where other bytes are."""
    if not world.spots.get("forged"):
        return [_flip(world, rng), _flip(world, rng)]
    other = rng.choice(("victim's entry", "victim's entry", "table head", "head", "victim"))
    return [_flip_in(world, rng, "forged"), _flip_in(world, rng, other)]


def _job(root: Path, name: str, disk: Disk) -> str:
    """Run a job, which may refuse: it must not believe."""
    try:
        with Volume.open(str(root), disk) as volume, volume.job_lock():
            JOBS[name](volume)
    except ERRORS as error:
        assert str(error), f"{name}: an error without words"
        return f"{name} failed ({type(error).__name__}: {error})"
    return name


def _cut(world: World, rng: random.Random, crashed: Path, told: list[str]) -> Path:
    """Run a job until the power fails; returns the root of what is left."""
    before, top = scan(world.root), world.root.stat().st_ino
    disk = RecordingDisk()
    told.append(_job(world.root, rng.choice(list(JOBS)), disk))
    length = rng.randrange(len(disk.log) + 1)
    found = choices(rng, rng.choice(FILE_SYSTEMS))
    choice = [next(found) for _ in range(rng.randrange(1, 7))][-1]
    told.append(f"the power fails after {length} of {len(disk.log)} effects ({choice})")
    state = CrashStates(before, disk.log).state(length, choice, rng)
    materialise(state, top, crashed)
    try:
        belong_here(crashed)
    except Damaged:
        pass  # nobody opens such a volume
    return crashed


# --- what users see ---------------------------------------------------------------------------


def _look(world: World, root: Path, rng: random.Random) -> str:
    try:
        with Volume.open(str(root)) as volume:
            read = _look_at_files(world, volume, root)
            _guess_ids(world, DeletionLogs(volume))
            if rng.random() < 0.5:
                return read
            with volume.job_lock(), volume.mount_lock():
                back = _look_at_deleted(world, volume, root)
    except ERRORS as error:
        return f"refused: {type(error).__name__}"
    return f"{read}, {back}"


def _tree(root: Path) -> dict[str, Path]:
    data = root / ".dedupd/data"
    return {
        str(path.relative_to(data)): path
        for path in _all_paths(data)
        if not stat.S_ISDIR(path.lstat().st_mode)
    }


def _look_at_files(world: World, volume: Volume, root: Path) -> str:
    tree = _tree(root)
    if tree.keys() != world.files.keys():
        raise Forged(f"the tree has {sorted(tree)}")
    lost_files = 0
    independent = reader.Volume(volume.base, locks=False)
    for name, path in tree.items():
        one = world.files[name]
        _expect_rights(name, path, one, one.mode)
        lost_files += not _reads_right(volume, name, one)
        _expect_no_wrong_byte(independent, name, one)
    return "all files read" if not lost_files else "errors in files"


def _expect_rights(name: str, path: Path, one: File, mode: int) -> None:
    status = path.lstat()
    if (status.st_uid, status.st_gid, status.st_mode) != (one.uid, one.gid, mode):
        raise Forged(f"{name} is of {status.st_uid}, {status.st_gid}, mode {status.st_mode:o}")
    names = set(os.listxattr(path)) - {"trusted.dedupd"}
    if names != ({MARK} if one.mark else set()) or (
        one.mark and os.getxattr(path, MARK) != one.mark
    ):
        raise Forged(f"{name} has other attributes: {names}")


def _reads_right(volume: Volume, name: str, one: File) -> bool:
    try:
        content = crash.read_through_store(volume, os.fsencode(name))
    except ERRORS as error:
        assert str(error), "an error without words"
        return False
    if content != one.content:
        raise Forged(f"{name} has wrong bytes")
    return True


def _expect_no_wrong_byte(independent: reader.Volume, name: str, one: File) -> None:
    """The reader is fooled by no more than the program."""
    try:
        content = independent.content(name)
    except (reader.Damaged, OSError):
        return
    if content != one.content:
        raise Forged(f"{name} has wrong bytes for dedupd-reader")


def _look_at_deleted(world: World, volume: Volume, root: Path) -> str:
    logs = DeletionLogs(volume)
    rows = list(lost(volume, volume.policy(), b"", logs=logs))
    for row in rows:
        if row["id"].startswith(f"{OLD_LOG}-") and world.is_old:
            continue  # anybody could have written it, and it says so
        known = world.deleted.get(row["id"])
        if known is None:
            raise Forged(f"{row['id']}: nobody has deleted {row['path']!r}")
        name, file = known
        said = (row["path"], row["uid"], row["gid"], row["mode"])
        if said != (name, file.uid, file.gid, file.mode):
            raise Forged(f"{row['id']} says {said}")
    wanted = [wanted_of(row) for row in rows]
    undelete = Undelete(volume.data_fd, volume.disk, attach_below(volume))
    count = 0
    for want, back in zip(wanted, undelete.take(wanted), strict=True):
        if back.error is not None:
            assert isinstance(back.error, ERRORS) and str(back.error)
            continue
        count += 1
        if want.id not in world.deleted:
            raise Forged(f"{want.id} came back as {back.path!r}")
        name, file = world.deleted[want.id]
        given = os.fsdecode(back.path)
        if given != name and not given.startswith(f"{name}.deleted-"):
            raise Forged(f"{name} came back as {given}")
        _expect_rights(given, root / ".dedupd/data" / given, file, file.mode & ~SET_IDS)
        _reads_right(volume, given, file)
    if any(UNFINISHED.decode() in name for name in _tree(root)):
        raise Forged("an unfinished file was left")
    return "all came back" if count == len(world.deleted) else "some came back"


def _guess_ids(world: World, logs: DeletionLogs) -> None:
    """Users name any offsets, such as those that they have written to."""
    for one_id in world.forged_ids:
        try:
            logs.get(one_id)
        except UsageError:
            continue
        raise Forged(f"{one_id} can be had back, and nobody has deleted it")


def play_all(directory: Path, seeds: range) -> Counter[str]:
    """Play the histories of these seeds; returns how they ended. Raises Forged."""
    counts: Counter[str] = Counter()
    original: Original | None = None
    root, crashed = directory / "root", directory / "crashed"
    for seed in seeds:
        if original is None or seed % PER_WORLD == 0:
            crash.remove(root)
            original = Original.of(make_world(root, seed // PER_WORLD))
        counts[play(original, seed, crashed)] += 1
    crash.remove(root)
    return counts
