"""Real volumes in a line: filled, optimized, damaged and checked by the verify job."""

import gc
import os
import random
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dedupd_core import failpoint, native
from dedupd_core.format import container as fmt
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.native.commit import CommitRequests
from dedupd_core.shared.fellows import all_held
from dedupd_core.store.container.container import data_name, table_name
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.stub.transition import local_ranges
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_at
from dedupd_core.system.paths import open_beneath
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.commit_requests import CommitRequest
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from jobs.check.verify import Verify, VerifyReport
from jobs.compact.compact_job import Compact, CompactReport
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.gc.sweep import GcReport
from jobs.optimize.optimize_job import Optimize, OptimizeReport
from jobs.unoptimize import Unoptimize, UnoptimizeReport
from tests.support import forks
from tests.support.unmounting import unmount_soon

REPOSITORY = forks.REPOSITORY
RAW_SOCKETS = b"\1\0\0\2\0\x20" + bytes(14)
"""What ``setcap cap_net_raw+ep`` gives to a program, as its ``security.capability``."""
SETTLE_NS = 50_000_000
"""Optimize reads a file when its last change is older than this."""

OLD_NS = 1_500_000_000_123_456_789
"""A time of long ago that is no whole second: restored by halves, it shows."""


def requests_of(requests: Iterable[CommitRequest]) -> CommitRequests:
    """To commit these files together."""
    several = CommitRequests()
    for request in requests:
        several.add(*request)
    return several


def noise(length: int, seed: int = 0) -> bytes:
    """Bytes that do not compress, the same for the same seed."""
    return random.Random(seed).randbytes(length)


def prose(length: int, seed: int = 0) -> bytes:
    """Bytes that compress well, and do not repeat from chunk to chunk."""
    letters = random.Random(seed).randbytes(length // 4 + 1)
    return b"".join([_WORDS[letter % 8] for letter in letters])[:length]


_WORDS = (b"stor ", b"chunk ", b"stub ", b"vol ", b"recipe ", b"mount ", b"file ", b"\n")


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def descriptors_to_begin_with() -> int:
    """As :func:`descriptors`, once those are gone that earlier tests have left to the collector
    of garbage: it may come at any moment."""
    gc.collect()
    return descriptors()


def write_out(path: Path) -> None:
    """Have the file system of ``path`` write what it has to; those of other tests are at work."""
    with opened(os.open(path, os.O_RDONLY)) as fd:
        native.system.syncfs(fd)


@contextmanager
def repeated(action: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Something is done again and again during a block, in a thread, with pauses before."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(pause_s):
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Damage one bit of a file, as a disk would: times and length stay."""
    with open(path, "r+b") as file:
        status = os.fstat(file.fileno())
        (byte,) = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte ^ (1 << bit)]), offset)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Lab:
    """A volume to experiment with. Names are relative to its tree."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self.disk = disk or Disk()
        self.base = root / ".dedupd"
        self.data = self.base / "data"

    def put(self, name: str | bytes, content: bytes | bytearray) -> Path:
        """A plain file of long ago."""
        path = self.data / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        return path

    def store(self, files: Mapping[str, bytes]) -> None:
        """Plain files, optimized one by one: their chunks lie in this order. One run takes files
        by the numbers of their inodes, and which numbers are free depends on all other work."""
        for name, content in files.items():
            self.put(name, content)
            self.optimize()

    def let_write(self, name: str | bytes) -> Path:
        """A stub to which the test is about to write, as a mount does: its attribute says so."""
        with self.opened() as volume, opened(self._open(volume, name)) as fd:
            stub = volume.space.read(fd, os.fsdecode(name))
            if stub is not None:
                flags = stub.flags | Flag.WRITTEN
                volume.stub_files.write(fd, replace(stub, flags=flags, local_bytes=0))
        return self.data / os.fsdecode(name)

    @contextmanager
    def opened(self) -> Iterator[Volume]:
        with Volume.open(str(self.root), self.disk) as volume:
            yield volume

    def optimize(self) -> OptimizeReport:
        with self.opened() as volume, volume.job_lock():
            return Optimize(volume, JobRun("optimize")).run()

    def unoptimize(self, below: bytes = b"") -> UnoptimizeReport:
        with self.opened() as volume, volume.tree_lock():
            return Unoptimize(volume, JobRun("unoptimize"), below).run()

    def collect(self, *, full: bool = False, all_garbage: bool = False) -> GcReport:
        with self.opened() as volume, all_held(volume):
            return Gc(volume, JobRun("gc"), full=full, all_garbage=all_garbage).run()

    def compact(self) -> CompactReport:
        with self.opened() as volume, volume.job_lock():
            return Compact(volume, JobRun("compact")).run()

    def verify(self) -> VerifyReport:
        with self.opened() as volume, all_held(volume), volume.mount_lock():
            return Verify(volume, JobRun("verify")).run()

    def verify_clean(self) -> VerifyReport:
        report = self.verify()
        assert report.findings == []
        return report

    def broken(self) -> set[str]:
        """Names of the invariants that verify finds violated."""
        return set(self.verify().by_invariant)

    def stub(self, name: str | bytes) -> StubAttribute | None:
        """A file's attribute; None where it is plain."""
        with self.opened() as volume, opened(self._open(volume, name)) as fd:
            return volume.space.read(fd, os.fsdecode(name))

    def read(self, name: str | bytes) -> bytes:
        """A file's content, from wherever it is."""
        with self.opened() as volume, opened(self._open(volume, name)) as fd:
            size = os.fstat(fd).st_size
            stub = volume.space.read(fd, os.fsdecode(name))
            if stub is None:
                return read_at(fd, size, 0)
            content = volume.content(stub, os.fsdecode(name))
            local = local_ranges(fd, size)
            return content.read_file(fd, local, stub.covered, 0, size)

    @staticmethod
    def _open(volume: Volume, name: str | bytes) -> int:
        return open_beneath(volume.data_fd, os.fsencode(name), os.O_RDONLY)

    def forge_first_record(self) -> None:
        """Put another chunk, a whole record, in the place of the first one, which is raw: checksums
        hold, and the bytes are others than those that recipes mean."""
        path = self.container(Kind.CHUNKS)
        data = bytearray(path.read_bytes())
        seed = self.seed(Kind.CHUNKS)
        record = fmt.unpack_record(bytes(data), fmt.FILE_HEADER_BYTES, seed)
        assert record is not None and record.codec == fmt.Codec.RAW
        other = noise(record.raw_length, 9)
        begin = fmt.FILE_HEADER_BYTES + fmt.RECORD_HEADER_BYTES
        data[begin : begin + len(other)] = other
        forged = fmt.Record(
            kind=fmt.RecordKind.DATA,
            codec=fmt.Codec.RAW,
            raw_length=len(other),
            stored_length=len(other),
            fingerprint=native.hashing.fingerprint(other),
            checksum=native.hashing.xxh3_64(other),
        )
        fmt.pack_record_into(memoryview(data), fmt.FILE_HEADER_BYTES, forged, seed)
        path.write_bytes(data)

    def seed(self, kind: Kind, number: int = 1) -> int:
        """The seed of a container's checksums."""
        head = self.container(kind, number).read_bytes()[: fmt.FILE_HEADER_BYTES]
        return fmt.seed_of(fmt.decode_file_header(head, ""))

    def container(self, kind: Kind, number: int = 1) -> Path:
        return self.base / STORE_DIRS[kind] / data_name(number).decode()

    def table(self, kind: Kind, number: int = 1) -> Path:
        return self.base / STORE_DIRS[kind] / table_name(number).decode()

    def lose(self, kind: Kind) -> None:
        """Lose the containers of a kind, with all second copies of what is in them."""
        for one in (kind, COPIES_OF[kind]):
            for path in (self.base / STORE_DIRS[one]).glob("*.dat"):
                path.unlink()

    def set_policy(self, text: str) -> None:
        """A new policy, which takes every file, unless it says what a file has to save, and keeps
        nothing that is deleted, unless it says how long."""
        takes_all = "" if "min_file_saving" in text else "min_file_saving = 0\n"
        keeps_none = "" if "keep_deleted" in text else 'keep_deleted = "0s"\n'
        self.write_policy(takes_all + keeps_none + text)

    def write_policy(self, text: str) -> None:
        (self.base / "policy.toml").write_text(text)


def new_lab(
    root: Path,
    chunk_size: str = "64k",
    disk: Disk | None = None,
    shared: SharedDirectory | None = None,
) -> Lab:
    """A new volume at ``root`` whose policy takes every file that is not empty, at once, and keeps
    nothing that is deleted."""
    root.mkdir(exist_ok=True)
    enable(
        str(root),
        chunk_size=chunk_size,
        fingerprint="blake3",
        policy_values={
            "min_age": "0s",
            "min_size": "1",
            "min_file_saving": 0,
            "keep_deleted": "0s",
        },
        force=True,
        disk=disk or Disk(),
        shared=shared,
    )
    return Lab(root, disk)


@contextmanager
def lab_in(directory: Path, chunk_size: str = "64k") -> Iterator[Lab]:
    """A new volume below ``directory``; at the end the verify job must find nothing."""
    lab = new_lab(directory / "volume", chunk_size)
    yield lab
    lab.verify_clean()


def free_bytes(lab: Lab) -> int:
    """What is left on the file system of a volume."""
    space = os.statvfs(lab.root)
    return space.f_bavail * space.f_frsize


def fill(lab: Lab) -> dict[str, bytes]:
    """A few files that take every way through the store, and their contents."""
    base = noise(300 * KIB)
    contents = {
        "one-chunk": noise(20 * KIB, 1),
        "base": base,
        "copy": base,
        "edited": base[: 100 * KIB] + b"an edit" + base[100 * KIB :],
        "prose": prose(200 * KIB),
        "zeros": bytes(150 * KIB),
    }
    for name, content in contents.items():
        lab.put(name, content)
    return contents


class StoppedAt(BaseException):
    """Raised by :func:`stop_at`, in place of a death."""


@contextmanager
def stop_at(point: str, passes: int = 1) -> Iterator[None]:
    """Stop whatever runs in the block at the n-th pass of a fail point; it must get there."""
    left = passes

    def hook(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                raise StoppedAt(name)

    failpoint.hook = hook
    try:
        yield
    except StoppedAt:
        pass
    else:
        raise AssertionError(f"{point} was not passed {passes} times")
    finally:
        failpoint.hook = None


def cached_pages(path: Path) -> int:
    """How many pages of a file are in the page cache; takes ``fincore``."""
    found = subprocess.run(
        ["fincore", "--noheadings", "--output", "PAGES", path], capture_output=True, check=True
    )
    return int(found.stdout)


def run_cli(
    *arguments: str | bytes | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The program, in a process of its own, which is forked."""
    if not forks.can_fork():
        return run_program(*arguments, environment=environment)
    given = [os.fsdecode(argument) for argument in arguments]
    return forks.run_forked(given, {**os.environ, **(environment or {})})


def run_program(
    *arguments: str | bytes | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The real program, in a process of its own, which is started."""
    return subprocess.run(
        [sys.executable, "-m", "dedupd.cli.main", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=240,
        check=False,
    )


def let_others_pass(path: Path) -> None:
    """Let every user through a directory of pytest's and those above it, which are its user's."""
    owner = path.stat().st_uid
    for directory in (path, *path.parents):
        status = directory.stat()
        if status.st_uid == owner and status.st_mode & 0o111 != 0o111:
            directory.chmod(stat.S_IMODE(status.st_mode) | 0o111)


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory that every user may reach and fill; those of pytest are closed."""
    with TemporaryDirectory(dir="/var/tmp", prefix="dedupd-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@contextmanager
def mounted_over(directory: Path) -> Iterator[None]:
    """Hide what lies in a directory beneath another file system."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    try:
        yield
    finally:
        unmount_soon(directory)


def as_user(action: Callable[[], object], uid: int = 1000) -> None:
    """Run ``action`` in a child process as somebody who is not root; its failure is the test's."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
            status = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        failure = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, failure


def store_files(lab: Lab) -> dict[str, int]:
    """The length of each container and each table."""
    store = lab.base / "store"
    return {str(p.relative_to(store)): p.stat().st_size for p in store.rglob("*.d??")}


def fill_to_the_brim(path: Path) -> None:
    """A user's file that takes all that it can get."""
    with open(path, "wb", buffering=0) as file:
        for piece in (MIB, 64 * KIB, 4 * KIB):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece)
            except OSError:
                continue
