"""The drill: damages a copy of the store on purpose, to show what would be lost.

The volume itself is only read. Containers to be damaged are copied, and share blocks if the file
system can; the copy has links to all others. Then every stub is read through the copy.
"""

import fcntl
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from dedupd_core.errors import Damaged
from dedupd_core.format.container import Kind
from dedupd_core.stores.local_store import STORE_DIRS, LocalStore
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.system.files import opened, read_at
from dedupd_core.system.paths import open_beneath, parents, show_path
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.backup.content_reader import ContentReader
from jobs.backup.received import remove_tree
from jobs.frame.job import FileReport
from jobs.frame.run import JobRun
from jobs.tree.walk import walk

DRILL_DIR = "drill"
_CLONE = 0x4004_9409


@dataclass(slots=True)
class DrillReport(FileReport):
    """The results of a run. ``healed`` files were complete by second copies of ``records``."""

    job: str = "drill"
    seed: int = 0
    bits: int = 0
    containers_lost: int = 0
    copied_bytes: int = 0
    stubs: int = 0
    lost: int = 0
    lost_bytes: int = 0
    healed: int = 0
    records: int = 0


class DamagedStore(Volume):
    """A volume that reads the copy of its store, and does not record damage."""

    met: set[tuple[Kind, int]]

    @cached_property
    def store(self) -> LocalStore:
        base = os.path.join(self.base, DRILL_DIR)
        return LocalStore(base, self.base_fd, self.space.volume_id, self.disk, self.note_damage)

    def note_damage(self, kind: Kind, record_id: int) -> None:
        self.met.add((kind, record_id))


class Drill:
    """One drill. Needs the job lock; the volume may be mounted."""

    def __init__(
        self, volume: DamagedStore, run: JobRun, *, bits: int, containers: int, seed: int
    ) -> None:
        """``bits`` to flip in the store, and ``containers`` to lose, are selected by ``seed``."""
        self._volume = volume
        self._run = run
        self._rng = random.Random(seed)
        self._report = DrillReport(
            seed=seed, bits=bits, containers_lost=containers, started_s=run.started_s
        )

    def run(self) -> DrillReport:
        """Damage a copy of the store, and read all stubs. Raises Cancelled, NoSpace."""
        volume, run, report = self._volume, self._run, self._report
        volume.met = set()
        try:
            self._copy()
            run.update(phase="reading all stubs")
            with ThreadPoolExecutor(cores(), thread_name_prefix="chunks") as pool:
                reader = ContentReader(volume, pool)
                for found in walk(volume, b"", [], run.safe_point):
                    if found.is_stub:
                        self._read(reader, found.path, found.identity.size)
                        run.update(files=report.stubs, done=report.stubs)
            report.records = len(volume.met)
        finally:
            remove_tree(volume.disk, volume.base_fd, DRILL_DIR.encode())
        report.complete(run)
        return report

    def _read(self, reader: ContentReader, path: bytes, size: int) -> None:
        volume, report, where = self._volume, self._report, show_path(path)
        report.stubs += 1
        before = len(volume.met)
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK
            with opened(open_beneath(volume.data_fd, path, flags)) as fd:
                stub = checked_stub(fd, volume.stub_files, where)
                for _ in reader.pieces(fd, stub, where):
                    self._run.safe_point()
        except FileNotFoundError:
            return
        except (Damaged, OSError) as error:
            self._run.findings.add_error(path, error)
            report.lost += 1
            report.lost_bytes += size
            return
        report.healed += len(volume.met) > before

    # --- the copy -----------------------------------------------------------------------------

    def _copy(self) -> None:
        volume, rng = self._volume, self._rng
        files = [
            (f"{STORE_DIRS[kind]}/{name}", os.path.getsize(self._own(f"{STORE_DIRS[kind]}/{name}")))
            for kind in Kind
            for name in sorted(os.listdir(self._own(STORE_DIRS[kind])))
            if name.endswith((".dat", ".dir"))
        ]
        lost = self._lost([name for name, _ in files])
        intact = [(name, size) for name, size in files if name not in lost and size]
        flips: dict[str, list[int]] = {}
        for _ in range(self._report.bits if intact else 0):
            name, size = rng.choices(intact, [size for _, size in intact])[0]
            flips.setdefault(name, []).append(rng.randrange(8 * size))
        remove_tree(volume.disk, volume.base_fd, DRILL_DIR.encode())
        for kind in Kind:
            for directory in parents(f"{DRILL_DIR}/{STORE_DIRS[kind]}"):
                with suppress(FileExistsError):
                    volume.disk.make_dir(volume.base_fd, directory.encode())
        for name, size in files:
            self._run.safe_point()
            if name in lost:
                continue
            if name in flips:
                self._damage(name, size, flips[name])
            else:
                depth = "../" * (name.count("/") + 1)
                target = (f"{depth}{name}" if volume.shared is None else self._own(name)).encode()
                volume.disk.make_symlink(target, volume.base_fd, f"{DRILL_DIR}/{name}".encode())

    def _lost(self, names: list[str]) -> set[str]:
        chunks = [name for name in names if name.startswith("store/chunks/") and ".dat" in name]
        taken = self._rng.sample(chunks, min(self._report.containers_lost, len(chunks)))
        return {f"{name[:-4]}{suffix}" for name in taken for suffix in (".dat", ".dir")}

    def _own(self, name: str) -> str:
        shared = self._volume.shared
        return os.path.join(self._volume.base if shared is None else shared.path, name)

    def _damage(self, name: str, size: int, flips: list[int]) -> None:
        volume, report = self._volume, self._report
        flags = os.O_RDONLY | os.O_CLOEXEC
        copy = volume.disk.create(volume.base_fd, f"{DRILL_DIR}/{name}".encode())
        with opened(os.open(self._own(name), flags)) as fd, opened(copy):
            try:
                fcntl.ioctl(copy, _CLONE, fd)
            except OSError:  # the file system shares no blocks
                volume.room().require(size, f"a copy of {name}")
                for at in range(0, size, MIB):
                    self._run.safe_point()
                    volume.disk.write_at(copy, [read_at(fd, min(MIB, size - at), at)], at)
                report.copied_bytes += size
            for bit in flips:
                (byte,) = read_at(copy, 1, bit // 8)
                volume.disk.write_at(copy, [bytes([byte ^ 1 << bit % 8])], bit // 8)
