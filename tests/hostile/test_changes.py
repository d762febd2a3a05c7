"""Files that change, disks that fill up and disks that fail, in the middle of a job."""

import errno
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core import failpoint, native
from dedupd_core.errors import DedupdError, NoSpace
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.volume.commit_requests import CommitRequest
from dedupd_core.volume.volume import Volume
from jobs.optimize.optimize_job import OptimizeReport
from tests.support import crash
from tests.support.lab import Lab, descriptors, descriptors_to_begin_with, requests_of

pytestmark = pytest.mark.root

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with crash.tmpfs(tmp_path_factory.mktemp("changes"), size_mb=1024) as point:
        yield point


@pytest.fixture(scope="module")
def fast(memory: Path) -> Iterator[Path]:
    with crash.ext4(memory, size_mb=320, mkfs=("-b", "4096")) as point:
        yield point


@pytest.fixture
def root(fast: Path) -> Path:
    path = fast / "root"
    crash.remove(path)
    path.mkdir()
    return path


def content(seed: int = 1, size: int = 50 * KIB) -> bytes:
    return random.Random(seed).randbytes(size)


SMALL, LARGE = 50 * KIB, 3 * MIB
"""Files of up to 1 MiB take another way through the reader than larger ones."""


# --- files in use -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_file_that_is_open_for_writing_is_left_plain(root: Path, size: int) -> None:
    (root / "file").write_bytes(content(size=size))
    crash.enable_volume(root)
    with open(root / ".dedupd/data/file", "r+b"):
        report = crash.optimize_volume(root)
        assert (report.files_optimized, report.files_left) == (0, {"in use": 1})
        assert report.messages == []
    assert crash.optimize_volume(root).files_optimized == 1


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_mapping_whose_writes_leave_no_trace_keeps_its_file_plain(root: Path, size: int) -> None:
    """A page that is dirty already takes more writes without a change of the times."""
    crash.enable_volume(root)
    # The kernel may write the page out in between: then the write is seen, and proves nothing.
    files = (root / f".dedupd/data/file{number}" for number in range(100))
    assert any(stays_plain_under_an_unseen_write(root, path, size) for path in files)


def stays_plain_under_an_unseen_write(root: Path, path: Path, size: int) -> bool:
    """Whether the write to a new file was one that left no trace."""
    path.write_bytes(content(size=size))
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    mapping[0:4] = b"one!"
    before = path.stat()

    def write_unseen(name: str) -> None:
        mapping[4:8] = b"two!"

    with hooked(write_unseen):
        report = crash.optimize_volume(root)
    after = path.stat()
    assert report.files_optimized == 0
    mapping[8:12] = b"end!"
    mapping.close()
    expected = b"one!two!end!" if report.files_left == {"in use": 1} else b""
    assert crash.see(root)[path.name] == crash.see_plain(path.parent)[path.name]
    assert path.read_bytes()[:12] in (expected, b"one!" + content(size=size)[4:8] + b"end!")
    assert crash.optimize_volume(root).files_optimized == 1
    return (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_a_file_open_for_reading_stays_plain_until_it_is_closed(root: Path) -> None:
    """Without a mount nobody but us can tell whether such a reader is to see a hole."""
    (root / "file").write_bytes(content())
    crash.enable_volume(root)
    with open(root / ".dedupd/data/file", "rb"):
        assert crash.optimize_volume(root).files_left == {"in use": 1}
    assert crash.optimize_volume(root).files_optimized == 1


def test_who_opens_a_file_during_its_commit_waits(root: Path) -> None:
    path = root / "file"
    path.write_bytes(b"content")
    identity = FileIdentity.of(path.stat())
    request = CommitRequest(b"file", identity, RecipeRef(1 << 32, bytes(16)))
    with opened(os.open(root, os.O_RDONLY)) as fd:
        batch = native.commit.CommitBatch(fd, b"user.dedupd", (0, 0), 4096, 1, True, None)
        assert batch.begin(requests_of([request])) == []
        # This process is not killed by the signal that says so.
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_RDWR | os.O_NONBLOCK)
        assert signal.getsignal(signal.SIGIO) == signal.SIG_DFL
        batch.close()


# --- files that change between two steps ------------------------------------------------------


@contextmanager
def hooked(hook: Callable[[str], None]) -> Iterator[None]:
    failpoint.hook = hook
    try:
        yield
    finally:
        failpoint.hook = None


def optimize_and(root: Path, point: str, change: Callable[[Path], None]) -> OptimizeReport:
    """Optimize, with a change of the tree at the first pass of a fail point."""
    done: list[str] = []

    def hook(name: str) -> None:
        if name == point and not done:
            done.append(name)
            change(root / ".dedupd/data")

    crash.enable_volume(root)
    with hooked(hook):
        report = crash.optimize_volume(root)
    assert done == [point]
    return report


def overwrite(data: Path) -> None:
    with open(data / "dir/file", "r+b") as file:
        file.write(b"changed")


def append(data: Path) -> None:
    with open(data / "dir/file", "ab") as file:
        file.write(b"more")


def overwrite_and_restore_times(data: Path) -> None:
    status = (data / "dir/file").stat()
    overwrite(data)
    os.utime(data / "dir/file", ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(data: Path) -> None:
    os.truncate(data / "dir/file", 1000)


def extend(data: Path) -> None:
    os.truncate(data / "dir/file", 80 * KIB)


def replace_file(data: Path) -> None:
    (data / "new").write_bytes(content(7))
    (data / "new").rename(data / "dir/file")


def remove_file(data: Path) -> None:
    (data / "dir/file").unlink()


def move_file(data: Path) -> None:
    (data / "dir/file").rename(data / "moved")


def become_directory(data: Path) -> None:
    (data / "dir/file").unlink()
    (data / "dir/file").mkdir()


def become_fifo(data: Path) -> None:
    (data / "dir/file").unlink()
    os.mkfifo(data / "dir/file")


def become_link(data: Path) -> None:
    (data / "dir/file").rename(data / "target")
    (data / "dir/file").symlink_to("../target")


def change_mode(data: Path) -> None:
    (data / "dir/file").chmod(0o600)


CHANGES = [
    overwrite,
    append,
    overwrite_and_restore_times,
    truncate,
    extend,
    replace_file,
    remove_file,
    move_file,
    become_directory,
    become_fifo,
    become_link,
    change_mode,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_after_it_was_read_stays_as_it_is(
    root: Path, change: Callable[[Path], None]
) -> None:
    (root / "dir").mkdir()
    (root / "dir/file").write_bytes(content(1))
    (root / "other").write_bytes(content(2))
    report = optimize_and(root, "writer.marked", change)
    seen = crash.see(root)
    # Nothing but the other file is a stub: what is read through the store is what lies there.
    plain = crash.see_plain(root / ".dedupd/data")
    assert {path for path in seen if seen[path] != plain[path]} == {"other"}
    assert report.files_optimized == 1
    assert report.messages == []
    assert crash.verify_volume(root).findings == []


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_change_within_the_second_of_the_last_one_is_noticed(tmp_path: Path, size: int) -> None:
    """The small inodes of old ext4 file systems have times in whole seconds."""
    with crash.ext4(tmp_path, size_mb=64, mkfs=("-b", "4096", "-I", "128")) as point:
        root = point / "root"
        (root / "dir").mkdir(parents=True)
        time.sleep(1 - time.time() % 1)
        (root / "dir/file").write_bytes(content(1, size))
        optimize_and(root, "writer.marked", overwrite)
        assert Lab(root).read("dir/file") == b"changed" + content(1, size)[7:]
        assert crash.verify_volume(root).stubs == 0


def test_a_change_between_the_halves_of_a_commit_takes_it_back(root: Path) -> None:
    (root / "dir").mkdir()
    (root / "dir/file").write_bytes(content(1))
    report = optimize_and(root, "commit.durable", change_mode)
    assert report.files_left == {"changed": 1}
    assert (root / ".dedupd/data/dir/file").read_bytes() == content(1)
    assert crash.verify_volume(root).stubs == 0


def test_a_directory_that_becomes_a_link_leads_nowhere(root: Path, fast: Path) -> None:
    """A user's trick to have a file outside the tree punched."""
    (root / "dir").mkdir()
    (root / "dir/file").write_bytes(content(1))
    outside = fast / "outside"
    crash.remove(outside)
    outside.mkdir()

    def swap(data: Path) -> None:
        os.link(data / "dir/file", outside / "file")
        (data / "dir").rename(data / "hidden")
        (data / "dir").symlink_to(outside)

    report = optimize_and(root, "writer.marked", swap)
    assert report.files_left == {"gone": 1}
    assert (outside / "file").read_bytes() == content(1)
    assert crash.verify_volume(root).stubs == 0


def test_a_batch_that_cannot_be_synced_is_taken_back(root: Path) -> None:
    crash.make_tree(root)
    before = crash.see_plain(root)
    crash.enable_volume(root)

    class Unsynced(Disk):
        def sync_file_system(self, fd: int) -> None:
            raise OSError(errno.EIO, "the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        crash.optimize_volume(root, Unsynced())
    assert crash.see_plain(root / ".dedupd/data") == before


def test_files_replaced_all_the_time_are_never_mixed_up(root: Path) -> None:
    """Replaced by renaming, moved, removed and made again at every step of jobs run over them."""
    rng = random.Random(1)
    names = [f"file{number}" for number in range(8)]
    versions = {name: content(seed, 40 * KIB + seed) for seed, name in enumerate(names)}
    for name in names:
        (root / name).write_bytes(versions[name])
    crash.enable_volume(root)
    data = root / ".dedupd/data"
    lock = threading.Lock()

    def replace_one(_: str) -> None:
        with lock:
            one, other = rng.sample(names, 2)
            change = rng.randrange(6)
            if change > 2:
                return
            new = rng.randbytes(rng.randrange(33 * KIB, 90 * KIB))
            (data / "new").write_bytes(new)
            if change == 0:
                (data / one).rename(data / other)
                versions[other] = versions[one]
            elif change == 1:
                (data / one).unlink()
            (data / "new").rename(data / one)
            versions[one] = new

    optimized = 0
    with hooked(replace_one):
        for _ in range(25):
            optimized += crash.optimize_volume(root).files_optimized
            with Volume.open(str(root)) as volume:
                found = {n: crash.read_through_store(volume, n.encode()) for n in names}
            assert found == versions
    assert optimized > 20
    assert crash.verify_volume(root).findings == []


# --- full disks -------------------------------------------------------------------------------


@pytest.fixture
def tiny(memory: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory on an ext4 of its own, with room for 24 MB."""
    own = memory / "tiny"
    own.mkdir(exist_ok=True)
    options = ("-b", "4096", "-I", "256", "-O", "^has_journal", "-m", "0")
    with crash.ext4(own, size_mb=24, mkfs=options) as point:
        yield point / "root"


def fill(path: Path, leave: int) -> Path:
    """A file that takes all space but ``leave`` bytes."""
    filler = path.parent / "filler"
    info = os.statvfs(path.parent)
    left = info.f_bavail * info.f_frsize - leave
    with open(filler, "wb", buffering=0) as file:
        while left > 0:
            try:
                left -= file.write(bytes(min(left, 64 * KIB)))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
    return filler


def large_tree(root: Path) -> dict[str, crash.Seen]:
    root.mkdir(exist_ok=True)
    for number in range(12):
        (root / f"file{number}").write_bytes(content(number, 400 * KIB + number))
    return crash.see_plain(root)


@pytest.mark.parametrize("leave", [0, 20 * KIB, 150 * KIB, 500 * KIB, 1100 * KIB, 3 * MIB])
def test_a_disk_that_fills_up_leaves_every_file_as_it_was(tiny: Path, leave: int) -> None:
    before = large_tree(tiny)
    crash.enable_volume(tiny)
    filler = fill(tiny, leave)
    failed = crash.run_cli("run", "optimize", tiny)
    assert failed.returncode == 1
    assert "no space" in failed.stderr.lower() or "free beyond the reserve" in failed.stderr
    assert crash.see(tiny) == before
    assert crash.verify_volume(tiny).findings == []

    filler.unlink()
    crash.optimize_volume(tiny)
    assert crash.see(tiny) == before
    report = crash.verify_volume(tiny)
    assert (report.findings, report.plain_files, report.unsettled) == ([], 0, 0)
    assert crash.half_done(tiny) == []


def test_unoptimize_says_beforehand_that_the_space_does_not_suffice(tiny: Path) -> None:
    before = large_tree(tiny)
    crash.enable_volume(tiny)
    crash.optimize_volume(tiny)
    fill(tiny, 2 * MIB)
    failed = crash.run_cli("run", "unoptimize", tiny)
    assert failed.returncode == 1
    assert "are missing" in failed.stderr
    assert crash.see(tiny) == before
    assert crash.verify_volume(tiny).plain_files == 0


def test_a_disk_that_fills_up_while_a_file_becomes_plain_leaves_it_a_stub(tiny: Path) -> None:
    before = large_tree(tiny)
    crash.enable_volume(tiny)
    crash.optimize_volume(tiny)
    passes: list[Path] = []

    def hook(name: str) -> None:
        if name == "stub.restoring":
            passes.append(fill(tiny, 100 * KIB))

    with hooked(hook), pytest.raises(NoSpace, match="stays a stub"):
        crash.unoptimize_volume(tiny)
    assert crash.see(tiny) == before
    report = crash.verify_volume(tiny)
    assert (report.findings, report.plain_files, report.unsettled) == ([], 0, 0)
    passes[0].unlink()
    assert crash.unoptimize_volume(tiny).messages == []
    assert crash.see(tiny) == before


# --- disks that fail --------------------------------------------------------------------------


class FailingDisk(Disk):
    """Fails at its n-th durable effect, once or from then on."""

    def __init__(self, step: int, number: int, for_good: bool) -> None:
        self.step = step
        self.number = number
        self.for_good = for_good
        self.failed = False
        self._lock = threading.Lock()

    def count(self) -> None:
        with self._lock:
            self.step -= 1
            if self.step == -1 or (self.step < -1 and self.for_good):
                self.failed = True
                if self.number == errno.ENOSPC:
                    raise NoSpace("no space left to write")
                raise OSError(self.number, os.strerror(self.number))


def _failing(name: str) -> Callable[..., object]:
    def method(self: FailingDisk, *arguments: object, **options: object) -> object:
        self.count()
        return getattr(Disk, name)(self, *arguments, **options)

    return method


for _name, _member in vars(Disk).items():
    if callable(_member) and not _name.startswith("_") and _name != "replace_file":
        setattr(FailingDisk, _name, _failing(_name))


def check_failures(fast: Path, command: str, number: int, for_good: bool, stride: int) -> int:
    """Let every so-manieth durable effect of a job fail; returns how many did."""
    start, root = fast / "start", fast / "root"
    for path in (start, root):
        crash.remove(path)
    start.mkdir()
    crash.make_tree(start)
    before = crash.see_plain(start)
    crash.enable_volume(start)
    jobs = {"optimize": crash.optimize_volume, "unoptimize": crash.unoptimize_volume}
    if command == "unoptimize":
        crash.optimize_volume(start)
    crash.copy_volume(start, root)
    jobs[command](root)
    stubs = crash.verify_volume(root).stubs
    for step in range(0, 1000, stride):
        crash.remove(root)
        crash.copy_volume(start, root)
        disk = FailingDisk(step, number, for_good)
        where = f"{command}, {errno.errorcode[number]} at step {step}"
        held = descriptors_to_begin_with()
        try:
            messages = jobs[command](root, disk).messages
        except (DedupdError, OSError) as error:
            messages = [str(error)]
        assert descriptors() == held, f"{where}: not all files are closed"
        assert crash.see(root) == before, where
        verified = crash.verify_volume(root)
        assert verified.findings == [], where
        # What failed was either said, or made good: a full disk may have room a moment later.
        whole = verified.stubs == stubs and not verified.unsettled
        assert messages or whole, f"{where}: nobody said so"
        assert jobs[command](root).messages == [], where
        assert crash.see(root) == before, f"{where}, run again"
        last = crash.verify_volume(root)
        assert (last.findings, last.unsettled, last.unsynced_bytes) == ([], 0, 0), where
        if not disk.failed:
            return step // stride
    raise AssertionError("the job does not end")


@pytest.mark.parametrize("command", ["optimize", "unoptimize"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_costs_nothing_but_the_job(fast: Path, command: str, number: int) -> None:
    assert check_failures(fast, command, number, for_good=False, stride=23) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("command", ["optimize", "unoptimize"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_anywhere_costs_nothing_but_the_job(
    fast: Path, command: str, number: int, for_good: bool
) -> None:
    steps = check_failures(fast, command, number, for_good, stride=1)
    print(f"\n{command}: {steps} effects failed with {errno.errorcode[number]}")
