"""The mount against the file system below it, with fio, in one run.

    python -m benchmarks.mount [--directory DIR] [--mib N] [--rounds N] [--only PART]
                               [--peer PROGRAM] [--json FILE]

Makes a volume below DIR (a directory of a file system that can carry one), mounts it, and prints a
Markdown table. "First" is after a fresh mount: neither the kernel nor the process has anything of
the file system in its cache, while the file system below has its pages. "Again" is what the
kernel's cache answers; "warm" what the process has in its own cache, and the kernel not. "Cold" has
the pages of the store dropped as well. Best of the rounds.

PROGRAM is another FUSE file system to compare with, run as ``PROGRAM LOWER MOUNTPOINT`` on the same
plain files and staying in the foreground, for example pyfuse3's passthroughfs.py.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import drop_pages, keep
from benchmarks.mount_sides import Below, OwnMount, Peer, Side
from benchmarks.volumes import new_volume, optimize
from dedupd_core.units import MIB

FILES = 10_000
CREATED = 2_000
WARM_BYTES = 24 * MIB
"""Less than the cache of decompressed chunks holds (64 MiB)."""

PARTS = ("plain", "stub", "writes", "names")

Measure = Callable[[Path], float]
Prepare = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, on the file system below and through the mounts; None where it has none."""

    name: str
    unit: str
    below: float | None
    mount: float | None
    peer: float | None


class Bench:
    """A volume with a plain file, a stub and a directory of many files."""

    def __init__(self, directory: Path, mib: int, rounds: int, peer: str | None) -> None:
        self.volume = directory / "volume"
        self.bytes = mib * MIB
        self.rounds = rounds
        self.data = self.volume / ".dedupd" / "data"
        for name in ("view", "peer"):
            (directory / name).mkdir()
        # What nothing compresses becomes a stub as well.
        new_volume(self.volume, min_file_saving=0)
        self.below = Below(self.data)
        self.own = OwnMount(self.volume, directory / "view")
        self.peer = Peer(peer, self.data, directory / "peer") if peer else None

    def fill(self) -> None:
        write_mixed(self.data / "stub", self.bytes)
        self.optimize()
        write_mixed(self.data / "plain", self.bytes)
        for count in (FILES, FILES // 10):
            many = self.data / f"many-{count}"
            many.mkdir()
            for number in range(count):
                (many / f"file-{number:06d}").touch()

    def optimize(self) -> None:
        """Make the one file that is new a stub."""
        report = optimize(self.volume)
        assert report.files_optimized == 1, report

    def store_files(self) -> list[Path]:
        return [path for path in (self.volume / ".dedupd" / "store").rglob("*") if path.is_file()]

    def drop_store(self, _root: Path) -> None:
        """Drop the store's pages, and no others."""
        os.sync()
        for path in self.store_files():
            drop_pages(path)

    def read_store(self, _root: Path) -> None:
        """Have the store's pages in memory."""
        for path in self.store_files():
            path.read_bytes()

    def row(self, name: str, unit: str, measure: Measure, prepare: Prepare | None = None) -> Row:
        """``measure`` on all sides, each time after a fresh mount and ``prepare``."""
        sides: list[Side] = [self.below, self.own]
        if self.peer is not None:
            sides.append(self.peer)
        best = self._best(sides, unit, measure, prepare)
        return Row(name, unit, best[0], best[1], best[2] if self.peer else None)

    def own_row(
        self, name: str, unit: str, measure: Measure, prepare: Prepare | None = None
    ) -> Row:
        """``measure`` on what the mount alone has."""
        return Row(name, unit, None, self._best([self.own], unit, measure, prepare)[0], None)

    def _best(
        self, sides: list[Side], unit: str, measure: Measure, prepare: Prepare | None
    ) -> list[float]:
        """The best of the rounds for each side.

        The sides take turns, so that what else the machine does hits all of them, and none writes
        while the disk is still busy with what the one before it wrote.
        """
        values: list[list[float]] = [[] for _ in sides]
        for number in range(self.rounds):
            turns = list(zip(sides, values, strict=True))
            for side, found in turns if number % 2 == 0 else reversed(turns):
                os.sync()
                side.start()
                try:
                    if prepare is not None:
                        prepare(side.root)
                    found.append(measure(side.root))
                finally:
                    side.stop()
        return [max(found) if unit == "MB/s" else min(found) for found in values]

    # --- the parts ----------------------------------------------------------------------------

    def plain(self) -> Iterator[Row]:
        sequential, scattered = self._reading("plain")
        yield self.row("plain file: sequential 1 MiB reads, first", "MB/s", sequential)
        yield self.row("plain file: sequential 1 MiB reads, again", "MB/s", sequential, sequential)
        yield self.row("plain file: random 4 KiB reads, first", "µs", scattered)
        yield self.row("plain file: random 4 KiB reads, again", "µs", scattered, sequential)

    def stub(self) -> Iterator[Row]:
        sequential, scattered = self._reading("stub")
        drop, keep = self.drop_store, self.read_store

        yield self.own_row("stub: sequential 1 MiB reads, cold", "MB/s", sequential, drop)
        yield self.own_row("stub: sequential 1 MiB reads, first", "MB/s", sequential, keep)
        yield self.own_row("stub: sequential 1 MiB reads, again", "MB/s", sequential, sequential)
        yield self.own_row("stub: random 4 KiB reads, cold", "µs", scattered, drop)
        yield self.own_row("stub: random 4 KiB reads, first", "µs", scattered, keep)
        yield self.own_row("stub: random 4 KiB reads, again", "µs", scattered, sequential)
        yield self.own_row("stub: random 4 KiB reads, warm", "µs", *self._reading_warm("stub"))
        yield self.own_row("plain file: the same reads", "µs", *self._reading_warm("plain"))

    def _reading(self, name: str) -> tuple[Measure, Measure]:
        return (
            lambda root: fio(root / name, "read", "1M", self.bytes)["bw_bytes"] / 1e6,
            lambda root: latency_us(
                fio(root / name, "randread", "4k", self.bytes, io_bytes=16 * MIB)
            ),
        )

    def _reading_warm(self, name: str) -> tuple[Measure, Prepare]:
        """Random reads within what the cache of chunks holds, past the kernel's cache."""

        def touch(root: Path) -> None:
            with open(root / name, "rb") as file:
                for offset in range(0, WARM_BYTES, MIB):
                    file.seek(offset)
                    file.read(MIB)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        return (
            lambda root: latency_us(
                fio(root / name, "randread", "4k", WARM_BYTES, io_bytes=16 * MIB)
            ),
            touch,
        )

    def writes(self) -> Iterator[Row]:
        size = self.bytes // 2

        def sequential(name: str) -> Measure:
            return lambda root: (
                fio(root / name, "write", "1M", size, "--end_fsync=0")["bw_bytes"] / 1e6
            )

        def scattered(name: str) -> Measure:
            return lambda root: latency_us(
                fio(root / name, "randwrite", "4k", size, io_bytes=16 * MIB)
            )

        def fresh(root: Path) -> None:
            (root / "written").unlink(missing_ok=True)

        yield self.row("plain file: sequential 1 MiB writes", "MB/s", sequential("written"), fresh)
        yield self.row("plain file: random 4 KiB writes", "µs", scattered("written"))
        self.rounds = 1
        yield self.own_row("stub: random 4 KiB writes, first round", "µs", scattered("stub"))
        yield self.own_row("stub: sequential 1 MiB writes", "MB/s", sequential("stub"))

    def names(self) -> Iterator[Row]:
        yield self.row("create a file, and close it", "µs", create_us)
        yield self.row("open and close", "µs", open_us)
        yield self.row("stat again", "µs", stat_us)
        yield self.row("stat, first", "µs", stat_each_us)
        for count in (FILES, FILES // 10):
            yield self.row(f"list {count:,} entries", "µs an entry", partial(list_us, count))


def write_mixed(path: Path, size: int) -> None:
    """Half of it compresses, as files of people do; nothing repeats."""
    with open(path, "wb") as file:
        for number in range(size // MIB):
            line = b"%d: a line of text that compresses, number %%d\n" % number
            text = b"".join(line % part for part in range(MIB // 2 // 48))[: MIB // 2]
            file.write(text.ljust(MIB // 2, b".") + os.urandom(MIB // 2))
        os.fsync(file.fileno())


def fio(
    path: Path, mode: str, block: str, size: int, *more: str, io_bytes: int = 0
) -> dict[str, Any]:
    command = [
        "fio",
        "--name=x",
        f"--filename={path}",
        "--ioengine=psync",
        "--invalidate=0",
        "--output-format=json",
        "--fallocate=none",
        f"--rw={mode}",
        f"--bs={block}",
        f"--size={size}",
        *([f"--io_size={io_bytes}"] if io_bytes else []),
        *(["--readonly"] if "read" in mode else []),
        *more,
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    job = json.loads(output[output.index("{") :])["jobs"][0]
    found: dict[str, Any] = job["read" if "read" in mode else "write"]
    return found


def latency_us(result: dict[str, Any]) -> float:
    return float(result["lat_ns"]["mean"]) / 1e3


def timed_us(action: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) / count * 1e6


def create_us(root: Path) -> float:
    directory = root / f"made-{time.monotonic_ns()}"
    directory.mkdir()
    base = os.fsencode(directory)

    def action() -> None:
        for number in range(CREATED):
            os.close(os.open(b"%s/%d" % (base, number), os.O_CREAT | os.O_WRONLY))

    value = timed_us(action, CREATED)
    shutil.rmtree(directory)
    return value


def one_of_many(root: Path, number: int = 0) -> bytes:
    return os.fsencode(root / f"many-{FILES}" / f"file-{number:06d}")


def open_us(root: Path) -> float:
    path = one_of_many(root)

    def action() -> None:
        for _ in range(5000):
            os.close(os.open(path, os.O_RDONLY))

    return timed_us(action, 5000)


def stat_us(root: Path) -> float:
    path = one_of_many(root)

    def action() -> None:
        for _ in range(20_000):
            os.stat(path)

    return timed_us(action, 20_000)


def stat_each_us(root: Path) -> float:
    names = [one_of_many(root, number) for number in range(2000)]

    def action() -> None:
        for name in names:
            os.stat(name)

    return timed_us(action, len(names))


def list_us(count: int, root: Path) -> float:
    return timed_us(lambda: os.listdir(root / f"many-{count}"), count)


def table(rows: list[Row]) -> str:
    def show(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

    lines = ["| | unit | below | mount | peer |", "| --- | --- | ---: | ---: | ---: |"]
    lines += [
        f"| {r.name} | {r.unit} | {show(r.below)} | {show(r.mount)} | {show(r.peer)} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", default="/var/tmp", type=Path)
    parser.add_argument("--mib", default=512, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--peer", metavar="PROGRAM")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="dedupd-bench-", dir=options.directory) as base:
        bench = Bench(Path(base), options.mib, options.rounds, options.peer)
        bench.fill()
        for part in options.only or PARTS:
            for row in getattr(bench, part)():
                print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
                rows.append(row)
    print(table(rows))
    keep([asdict(row) for row in rows], options.json)


if __name__ == "__main__":
    main()
