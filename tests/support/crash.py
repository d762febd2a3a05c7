"""Volumes to crash: small mixed trees, runs of the program that die, a reader that needs no job."""

import hashlib
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedupd_core import failpoint
from dedupd_core.config.policy import RefineMode
from dedupd_core.format.container import Kind
from dedupd_core.format.stub import Flag
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.transition import local_ranges
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_at
from dedupd_core.system.paths import open_beneath
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from dedupd_reader import reader
from jobs.check.verify import Verify, VerifyReport
from jobs.compact.compact_job import Compact, CompactReport
from jobs.compact.space_reclaimer import SpaceReclaimer
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.gc.sweep import GcReport
from jobs.optimize.optimize_job import Optimize, OptimizeReport
from jobs.reconcile.reconcile_job import Reconcile, ReconcileReport
from jobs.refine.refine_job import Refine, RefineReport
from jobs.tree.candidates import SAVES_LITTLE
from jobs.unoptimize import Unoptimize, UnoptimizeReport
from tests.support import lab
from tests.support.copies import belong_here
from tests.support.disabling import disable
from tests.support.forks import REPOSITORY
from tests.support.unmounting import unmount_soon

KIB = 1 << 10
MTIME_NS = 1_500_000_000_123_456_789
"""Not a whole second, and long ago: a time that is restored by halves shows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry of a tree as a user sees it."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    content: str
    attributes: tuple[tuple[str, bytes], ...]
    links: int


@contextmanager
def ext4(directory: Path, size_mb: int = 64, mkfs: tuple[str, ...] = ()) -> Iterator[Path]:
    """A new ext4 in a loop device below ``directory``, mounted."""
    image, point = directory / "ext4.img", directory / "ext4"
    with open(image, "wb") as file:
        file.truncate(size_mb << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", *mkfs, image], check=True)
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, point], check=True)
    try:
        yield point
    finally:
        unmount_soon(point)
        image.unlink()


@contextmanager
def tmpfs(directory: Path, size_mb: int = 512) -> Iterator[Path]:
    """A new tmpfs: it has trusted attributes and holes, and costs no disk time."""
    point = directory / "tmpfs"
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)


def make_tree(root: Path, seed: int = 1) -> None:
    """About 2 MB of everything: duplicates, edits, text, zeros, holes, links, odd names, a FIFO."""
    rng = random.Random(seed)
    (root / "docs" / "old").mkdir(parents=True)
    base = rng.randbytes(300 * KIB)
    text = b"".join(b"line %d of some text that repeats\n" % (n % 900) for n in range(6000))
    files = {
        b"base.bin": base,
        b"docs/copy.bin": base,
        b"docs/copy.dat": base,
        b"docs/edited.bin": base[: 100 * KIB] + b"an edit" + base[100 * KIB :],
        b"docs/old/text.txt": text,
        b"docs/old/text2.txt": text[: len(text) // 2] + rng.randbytes(9) + text[len(text) // 2 :],
        b"zeros": bytes(200 * KIB),
        b"small": b"too small to matter",
        b"empty": b"",
        b"odd \xff\xfe name": rng.randbytes(70 * KIB + 13),
        b"n" * 255: rng.randbytes(33 * KIB),
    }
    for name, content in files.items():
        (root / os.fsdecode(name)).write_bytes(content)
    with open(root / "sparse", "wb") as file:
        file.write(rng.randbytes(40 * KIB))
        file.seek(1400 * KIB)
        file.write(rng.randbytes(50 * KIB + 1))
        file.truncate(2 << 20)
    os.link(root / "base.bin", root / "docs" / "hard-link")
    os.symlink("../base.bin", root / "docs" / "link")
    os.mkfifo(root / "fifo")
    os.setxattr(root / "base.bin", "user.note", b"kept")
    os.chmod(root / "docs" / "copy.bin", 0o4751)
    if os.geteuid() == 0:
        os.chown(root / "docs" / "edited.bin", 1234, 4321)
    for place, names, others in os.walk(root, topdown=False):
        for entry in names + others:
            os.utime(os.path.join(place, entry), ns=(MTIME_NS, MTIME_NS), follow_symlinks=False)
    os.utime(root, ns=(MTIME_NS, MTIME_NS))


def see_plain(root: Path) -> dict[str, Seen]:
    """Everything below a plain directory, ``.dedupd`` left out."""
    return _see(root, _digest_plain)


def see_volume(volume: Volume) -> dict[str, Seen]:
    """Everything in a volume's tree, stubs read by the independent reader.

    Times are those that users see: a stub in transition carries its own in its attribute.
    """
    one = reader.Volume(volume.base, locks=False)
    data = Path(volume.base) / "data"
    return _see(data, lambda path: _digest_stub(one, data, path), volume.space.name)


def _see(
    root: Path,
    digest: Callable[[Path], tuple[str, int | None]],
    hidden: bytes = b"",
) -> dict[str, Seen]:
    seen: dict[str, Seen] = {}
    for directory, names, others in os.walk(root):
        if ".dedupd" in names:
            names.remove(".dedupd")
        for name in sorted(names + others):
            path = Path(directory) / name
            status = path.lstat()
            relative = str(path.relative_to(root))
            content, mtime_ns = "", None
            if stat.S_ISREG(status.st_mode):
                content, mtime_ns = digest(path)
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            attributes = tuple(
                (key, os.getxattr(path, key, follow_symlinks=False))
                for key in sorted(os.listxattr(path, follow_symlinks=False))
                if key.encode() != hidden
            )
            seen[relative] = Seen(
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_size if not stat.S_ISDIR(status.st_mode) else 0,
                status.st_mtime_ns if mtime_ns is None else mtime_ns,
                content,
                attributes,
                status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0,
            )
    return seen


def _digest_plain(path: Path) -> tuple[str, int | None]:
    return hashlib.sha256(path.read_bytes()).hexdigest(), None


def _digest_stub(one: reader.Volume, data: Path, path: Path) -> tuple[str, int | None]:
    """Of a file's content, and its time if that is in the attribute."""
    with open(path, "rb") as file:
        stub = one.stub(file.fileno())
    content = one.content(str(path.relative_to(data)))
    moving = stub is not None and stub.flags & (Flag.COMMITTING | Flag.RESTORING)
    return hashlib.sha256(content).hexdigest(), stub.mtime_ns if stub and moving else None


def read_through_store(volume: Volume, path: bytes) -> bytes:
    """A file's content, plain or stub, as the program reads it."""
    with opened(open_beneath(volume.data_fd, path, os.O_RDONLY)) as fd:
        size = os.fstat(fd).st_size
        stub = checked_stub(fd, volume.stub_files, repr(path))
        if stub is None:
            return read_at(fd, size, 0)
        content = volume.content(stub, repr(path))
        local = local_ranges(fd, size)
        return content.read_file(fd, local, stub.covered, 0, size)


def make_volume(root: Path, seed: int = 1) -> dict[str, Seen]:
    """A new volume with a mixed tree in it; returns the tree as it was before."""
    root.mkdir(exist_ok=True)
    make_tree(root, seed)
    before = see_plain(root)
    enable_volume(root)
    return before


def enable_volume(root: Path, disk: Disk | None = None) -> None:
    """Enable with a policy that takes every file at once."""
    values: dict[str, str | int] = {"min_age": "0s", "min_file_saving": 0}
    enable(str(root), policy_values=values, force=True, disk=disk or Disk())


def optimize_volume(root: Path, disk: Disk | None = None) -> OptimizeReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Optimize(volume, JobRun("optimize")).run()


TREE_STORED_BYTES_MAX = 2 << 20
"""What the store of :func:`make_tree` stays below; with the garbage it is twice as much."""


def optimize_with_garbage(root: Path) -> None:
    """Optimize, and remove files again: of three containers the first and the last are all garbage,
    the one between them partly.

    The first is removed, the last one rewritten, for the sake of its number, and then the other.
    """
    data = root / ".dedupd/data"
    (data / "junk").mkdir()
    for name, part in (("first", "junk"), ("second", ""), ("third", "junk")):
        if name != "first":
            _fill_containers(root)
        for seed in range(5):
            content = random.Random(f"{name}{seed}").randbytes(200 * KIB)
            (data / "junk" / f"{name}{seed}").write_bytes(content)
        with Volume.open(str(root)) as volume, volume.job_lock():
            Optimize(volume, JobRun("optimize"), part.encode()).run()
    shutil.rmtree(data / "junk")


def _fill_containers(root: Path) -> None:
    """The containers so far count as full: new ones begin."""
    with Volume.open(str(root)) as volume, volume.job_lock():
        for kind in Kind:
            writer = ContainerWriter(volume.containers(kind), container_bytes_max=1)
            writer.recover(lambda _: None)
            writer.reserve(1, 1)
            writer.close()


def collect_garbage(root: Path, disk: Disk | None = None) -> GcReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Gc(volume, JobRun("gc")).run()


def orphan_garbage(root: Path) -> None:
    """A collection that ends before it gives anything back: all garbage is still there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpaceReclaimer, "reclaim", lambda _: None)
        collect_garbage(root)


def compact_volume(root: Path, disk: Disk | None = None) -> CompactReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Compact(volume, JobRun("compact")).run()


def ask_for_savings(root: Path) -> None:
    """Have files become stubs only where that pays."""
    policy = root / ".dedupd/policy.toml"
    text = re.sub("min_file_saving = .*", "min_file_saving = 0.05", policy.read_text())
    assert "min_file_saving = 0.05" in text
    policy.write_text(text)


def leave_what_saves_little(root: Path, *contents: bytes) -> None:
    """Have an optimize run leave files that no compression makes smaller; then there are copies."""
    ask_for_savings(root)
    data = root / ".dedupd/data"
    for number, content in enumerate(contents):
        (data / f"left {number}").write_bytes(content)
    report = optimize_volume(root)
    assert report.files_left.get(SAVES_LITTLE, 0) >= len(contents)
    for number, content in enumerate(contents):
        (data / f"copy of left {number}").write_bytes(content)
        for name in (f"left {number}", f"copy of left {number}"):
            os.utime(data / name, ns=(MTIME_NS, MTIME_NS))


def refine_volume(
    root: Path, disk: Disk | None = None, mode: RefineMode = RefineMode.QUICK
) -> RefineReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Refine(volume, JobRun("refine"), mode).run()


def put_texts(tree: Path, count: int = 100, size: int = 2400) -> None:
    """Files of the same words in another order each, for which a dictionary pays."""
    random_ = random.Random(5)
    words = ["".join(random_.choices("abcdefghijklmnop", k=9)) for _ in range(200)]
    directory = tree / "texts"
    directory.mkdir()
    for number in range(count):
        path = directory / f"{number}"
        path.write_text(" ".join(random_.choices(words, k=size // 10)))
        os.utime(path, ns=(MTIME_NS, MTIME_NS))


def ask_for_partitions(root: Path) -> None:
    with open(root / ".dedupd/policy.toml", "a") as policy:
        policy.write("partitions = 3\n")


def optimize_in_partitions(root: Path) -> None:
    """Optimize so that files of different types share nothing."""
    ask_for_partitions(root)
    optimize_volume(root)


def reconcile_volume(root: Path, disk: Disk | None = None) -> ReconcileReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Reconcile(volume, JobRun("reconcile")).run()


def stored_bytes(root: Path) -> int:
    """What the containers of a volume occupy."""
    return sum(path.stat().st_size for path in (root / ".dedupd/store").rglob("*.dat"))


def unoptimize_volume(root: Path, disk: Disk | None = None) -> UnoptimizeReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Unoptimize(volume, JobRun("unoptimize")).run()


def verify_volume(root: Path) -> VerifyReport:
    with Volume.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        return Verify(volume, JobRun("verify")).run()


def disable_volume(root: Path, disk: Disk | None = None) -> None:
    disable(str(root), disk=disk or Disk())


def see(root: Path) -> dict[str, Seen]:
    """What is in a directory, whether it is plain, a volume, or on its way from one to the other.

    On the way there are no stubs, and entries lie either in the directory or already in ``data/``.
    """
    base = root / ".dedupd"
    if (base / "volume.json").exists() and not (base / "disabling").exists():
        with Volume.open(str(root)) as volume:
            return see_volume(volume)
    seen = see_plain(root)
    if (base / "data").exists():
        moved = see_plain(base / "data")
        assert not seen.keys() & moved.keys()
        seen |= moved
    return seen


def see_top(root: Path) -> tuple[int, int, int, int]:
    """Mode, owner, group and time of the directory that users see at the top."""
    data = root / ".dedupd/data"
    status = (data if data.exists() else root).stat()
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns


def run_cli(*arguments: str | Path, fail_at: str = "") -> subprocess.CompletedProcess[str]:
    """The program, in a process of its own, which dies at a fail point."""
    return lab.run_cli(*arguments, environment={failpoint.VARIABLE: fail_at})


def start_cli(*arguments: str | Path) -> int:
    """The real program, running; the caller kills it, and waits for it. Returns its pid."""
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "dedupd.cli.main", *map(str, arguments)],
        {**os.environ, "PYTHONPATH": str(REPOSITORY)},
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)],
    )


def was_killed(result: "subprocess.CompletedProcess[str]") -> bool:
    return result.returncode == -signal.SIGKILL


class SteppingDisk(Disk):
    """Calls ``at_step`` before its n-th durable effect (0 is the first). Others wait for it."""

    def __init__(self, steps: int, at_step: Callable[[], None]) -> None:
        self.steps_left, self._at_step = steps, at_step
        self._lock = threading.Lock()

    def step(self) -> None:
        """One more."""
        with self._lock:
            if self.steps_left == 0:
                self._at_step()
            self.steps_left -= 1


class DyingDisk(SteppingDisk):
    """Kills the process before its n-th durable effect."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _stepping(name: str) -> Callable[..., object]:
    def method(self: SteppingDisk, *arguments: object, **options: object) -> object:
        self.step()
        return getattr(Disk, name)(self, *arguments, **options)

    return method


STEPS = tuple(
    name
    for name, member in vars(Disk).items()
    # Composed of other effects: those are the steps.
    if callable(member) and not name.startswith("_") and name != "replace_file"
)
"""The durable effects of a disk."""

for _name in STEPS:
    setattr(SteppingDisk, _name, _stepping(_name))


def fork(action: Callable[[], object]) -> int:
    """Begin ``action`` in a forked child; returns its pid. It exits with 0 where it ends well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child


def in_fork(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked child; returns its wait status (0 where it ended well)."""
    _, wait_status = os.waitpid(fork(action), 0)
    return wait_status


def kill_at_step(job: Callable[[Disk], object], step: int) -> bool:
    """Run a job in a child that dies before its durable effect number ``step``.

    Returns False where the job was over before that.
    """
    status = in_fork(lambda: job(DyingDisk(step)))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the job failed by itself: wait status {status}"
    return False


def half_done(root: Path) -> list[str]:
    """Files of a volume that only an interrupted step leaves: temporary and marker files."""
    base = root / ".dedupd"
    return [
        str(path.relative_to(base))
        for path in base.rglob("*")
        if "data" not in path.relative_to(base).parts
        and (path.name.endswith(".new") or path.name in ("enabling", "disabling", "probe"))
    ]


def copy_volume(source: Path, target: Path) -> None:
    """An exact copy: holes, attributes, links, times."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
    belong_here(target)


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
