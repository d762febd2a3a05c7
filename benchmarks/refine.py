"""What refining gives back, what it takes, and what reading costs afterwards, on sets of files.

    python -m benchmarks.refine [--work DIR] [--mode quick] [--json FILE] [--no-reads] [--peers]
                                [--users [ROUNDS]] SET...

Makes two volumes below DIR of copies of each SET (a directory), optimizes all of their files, and
refines one of them. Both are mounted in turns: random reads of 4 KiB, and everything from one end
to the other, with the store in the page cache and nothing in the mount's; medians of the turns.
What was refined is compared byte by byte. The store is counted whole: containers with headers,
tables, sketches, and second copies, as scrub leaves it. ``--peers`` has borg (zstd 3) and restic,
where they are installed, take in each set, too: what their repositories hold then is beside it.

``--users`` measures instead what users notice of a refine run that yields to them. A user reads
4 KiB at random from files of a mounted volume, each read from the mount and not from the kernel's
cache.
Rounds without and with `dedupd run --gentle refine` take turns. A run ends after each round, and
the next one continues it. Prints JSON.
"""

import argparse
import filecmp
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    DEDUPD,
    copy,
    files_of,
    keep,
    machine,
    paths_of,
    processor_s,
    read_through,
    report_of,
)
from benchmarks.programs import FIRST, PROGRAMS, SECOND, Setting
from benchmarks.volumes import mounted, new_volume

PEERS = ("borg", "restic")

READS = 4000
TURNS = 3
READ_BYTES = 4096

PAUSE_S = 0.005
"""Between two reads of a user."""

ROUND_S = 8.0
USER_FILES_MAX = 500
"""That a user reads, and keeps open."""

AT_WORK_CPU_S = 1.5
"""A run that has used this much processor time has started its work."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One set. Bytes are those of files below ``store``; reads are of the whole set, in a mount."""

    files: int
    logical_bytes: int
    store_bytes_before: int
    store_bytes_after: int
    raw_bytes_looked: int
    cpu_s: float
    optimize_cpu_s: float
    memory_bytes_peak: int
    deltas: int
    chunks: int
    random_us_before: float
    random_us_after: float
    sequential_mb_s_before: float
    sequential_mb_s_after: float

    @property
    def ratio(self) -> float:
        return self.store_bytes_after / self.store_bytes_before

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / self.raw_bytes_looked * 1e9


def measure(dataset: Path, work: Path, mode: str, turns: int, level: int) -> Figures:
    with tempfile.TemporaryDirectory(dir=work, prefix="refine-") as root:
        return _measure(dataset, Path(root), mode, turns, level)


def _measure(dataset: Path, work: Path, mode: str, turns: int, level: int) -> Figures:
    plain, root = work / "plain", work / "refined"
    for one in (plain, root) if turns else (root,):
        optimized = _optimized(dataset, one, mode, level)
    before_bytes = _store_bytes(root)
    refined = report_of("run", "--here", "refine", root)
    report_of("run", "--here", "scrub", root)
    _compare(dataset, root)
    taken: list[tuple[float, float, float, float]] = []
    for _ in range(turns):
        taken.append((*_read(plain, dataset), *_read(root, dataset)))
    reads = [statistics.median(column) for column in zip(*taken, strict=True)] or [0.0] * 4
    resources = refined["resources"]
    return Figures(
        len(files_of(dataset)),
        sum(os.lstat(path).st_size for path in paths_of(dataset)),
        before_bytes,
        _store_bytes(root),
        optimized.get("new_bytes", 0) or _raw_bytes(root),
        resources["cpu_s"],
        optimized["resources"]["cpu_s"],
        resources["memory_bytes_peak"],
        refined["new_deltas"],
        refined["looked_records"],
        reads[0],
        reads[2],
        reads[1],
        reads[3],
    )


def _optimized(dataset: Path, root: Path, mode: str, level: int = 3) -> dict[str, Any]:
    """A volume of all files of a set, with second copies where there are any."""
    root.mkdir()
    copy(dataset, root / "set")
    values = {"min_size": "1", "refine": mode, "refine_age": "0s", "min_file_saving": "0"}
    new_volume(root, **values, compression_level=str(level))
    optimized = report_of("run", "--here", "optimize", root)
    report_of("run", "--here", "scrub", root)
    return optimized


def _raw_bytes(root: Path) -> int:
    from dedupd_core.format.container import Kind
    from dedupd_core.volume.volume import Volume

    with Volume.open(str(root)) as volume, volume.containers(Kind.CHUNKS) as directory:
        return sum(
            entry.raw_length
            for number in directory.numbers()
            for entry in directory.entries(number)
            if entry is not None
        )


def _store_bytes(root: Path) -> int:
    return sum(os.lstat(path).st_size for path in paths_of(root / ".dedupd/store"))


def _compare(dataset: Path, root: Path) -> None:
    with mounted(root):
        for path in paths_of(dataset):
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            mine = root / "set" / os.path.relpath(path, dataset)
            assert filecmp.cmp(path, mine, shallow=False), mine


def _read(root: Path, dataset: Path) -> tuple[float, float]:
    """Microseconds of a random read, and MB/s of all files one after the other."""
    tree = root / "set"
    with mounted(root):
        total, began = 0, time.perf_counter()
        for path in paths_of(tree):
            if not os.path.islink(path) and os.path.isfile(path):
                total += read_through(path)
        sequential = total / (time.perf_counter() - began) / 1e6
    with mounted(root):
        random_ = random.Random(4)
        sizes = [(path, os.lstat(path).st_size) for path in sorted(paths_of(tree))]
        sizes = [(p, s) for p, s in sizes if s >= READ_BYTES and not os.path.islink(p)]
        chosen = random_.choices([p for p, _ in sizes], [s for _, s in sizes], k=READS)
        lengths = dict(sizes)
        took = 0.0
        for path in chosen:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            at = random_.randrange(lengths[path] - READ_BYTES + 1)
            began = time.perf_counter()
            os.pread(fd, READ_BYTES, at)
            took += time.perf_counter() - began
            os.close(fd)
    return took / READS * 1e6, sequential


def peers(dataset: Path, work: Path) -> dict[str, int]:
    """The bytes that backup programs hold of a set."""
    found: dict[str, int] = {}
    for name in (name for name in PEERS if shutil.which(name)):
        with tempfile.TemporaryDirectory(dir=work, prefix="refine-peer-") as place:
            root = Path(place)
            (root / SECOND).mkdir()  # they take in a second tree: an empty one
            copy(dataset, root / FIRST)
            found[name] = PROGRAMS[name].ingest(Setting(root, root, cold=False)).stored_bytes
    return found


class Reader:
    """A user, who reads at random from some files of one block at least."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._fds = [os.open(path, os.O_RDONLY) for path in paths]
        self._blocks = [os.fstat(fd).st_size // READ_BYTES for fd in self._fds]
        self._files = list(zip(self._fds, self._blocks, strict=True))
        self._rng = random.Random(2)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def read_for(self, seconds: float) -> list[float]:
        """Latencies in µs."""
        found = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            ((fd, blocks),) = self._rng.choices(self._files, self._blocks)
            offset = self._rng.randrange(blocks) * READ_BYTES
            os.posix_fadvise(fd, offset, READ_BYTES, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            os.pread(fd, READ_BYTES, offset)
            found.append((time.perf_counter() - began) * 1e6)
            time.sleep(PAUSE_S)
        return found


def percentiles(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 1)
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
    } | {"reads": len(ordered)}


def measure_users(dataset: Path, work: Path, mode: str, rounds: int) -> dict[str, object]:
    """Latencies of a user without and during a refine run, in turns."""
    with tempfile.TemporaryDirectory(dir=work, prefix="refine-users-") as name:
        root = Path(name)
        copy(dataset, root / "set")
        new_volume(root, refine=mode, refine_age="0s")
        report_of("run", "--here", "optimize", root)
        with mounted(root):
            return _measure_users(root, mode, rounds)


def _measure_users(root: Path, mode: str, rounds: int) -> dict[str, object]:
    files = [path for path in map(Path, files_of(root / "set")) if not path.is_symlink()]
    paths = sorted(path for path in files if path.stat().st_size >= READ_BYTES)
    reader = Reader(paths[:: len(paths) // USER_FILES_MAX + 1])
    command = [*DEDUPD, "run", "--gentle", "refine", "--mode", mode, str(root)]
    alone: list[float] = []
    during: list[float] = []
    shares: list[float] = []
    reader.read_for(1.0)
    for _ in range(rounds):
        alone += reader.read_for(ROUND_S)
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while processor_s(job.pid) < AT_WORK_CPU_S:
            assert job.poll() is None, "the set is too small: nothing is left to be refined"
            time.sleep(0.05)
        before_s = processor_s(job.pid)
        during += reader.read_for(ROUND_S)
        assert job.poll() is None, "the set is too small: the run has ended"
        shares.append(round((processor_s(job.pid) - before_s) / ROUND_S, 3))
        job.send_signal(signal.SIGTERM)
        job.wait()
    reader.close()
    ratio = percentiles(during)["p99"] / percentiles(alone)["p99"]
    return {
        "alone": percentiles(alone),
        "during refine": percentiles(during),
        "p99 ratio": round(ratio, 2),
        "processor share of the run meanwhile": shares,
    }


def show_peers(name: str, one: Figures, held: dict[str, int]) -> None:
    for peer, size in held.items():
        times = size / one.store_bytes_after
        print(f"{name}: {peer} {size / 1e6:.1f} MB, {times:.2f} times the refined store")


def show(name: str, one: Figures) -> None:
    print(
        f"| {name} | {one.logical_bytes / 1e6:.0f} | {one.store_bytes_before / 1e6:.1f}"
        f" | {one.store_bytes_after / 1e6:.1f} | {one.ratio:.3f}"
        f" | {one.deltas / max(1, one.chunks):.2f} | {one.optimize_cpu_s:.1f}"
        f" | {one.cpu_s:.1f} | {one.cpu_s_per_gb:.1f}"
        f" | {one.random_us_after / (one.random_us_before or 1):.2f}"
        f" | {one.sequential_mb_s_after / (one.sequential_mb_s_before or 1):.2f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--mode", default="quick")
    parser.add_argument("--level", type=int, default=3, help="of zstd, before the set is refined")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-reads", action="store_true")
    parser.add_argument("--peers", action="store_true", help="borg and restic on the same sets")
    parser.add_argument("--users", type=int, nargs="?", const=3, metavar="ROUNDS")
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    arguments = parser.parse_args()
    print(machine(arguments.work))
    if arguments.users:
        for one in arguments.sets:
            found = measure_users(one, arguments.work, arguments.mode, arguments.users)
            print(json.dumps({one.name: found}, indent=2))
        return
    names = ["set", "MB", "store before", "after", "of before", "deltas", "optimize, CPU s"]
    names += ["refine", "s/GB", "random", "sequential"]
    print("|", " | ".join(names), "|")
    print("| --- |" + " ---: |" * (len(names) - 1))
    figures, held = {}, {}
    for one in arguments.sets:
        turns = 0 if arguments.no_reads else TURNS
        figures[one.name] = measure(one, arguments.work, arguments.mode, turns, arguments.level)
        show(one.name, figures[one.name])
        held[one.name] = peers(one, arguments.work) if arguments.peers else {}
    for name, sizes in held.items():
        show_peers(name, figures[name], sizes)
    found = {name: asdict(one) | {"peers_bytes": held[name]} for name, one in figures.items()}
    keep(found, arguments.json)


if __name__ == "__main__":
    main()
