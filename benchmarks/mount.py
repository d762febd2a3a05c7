"""The mount against the file system below it, with fio, in one run.

    python -m benchmarks.mount [--directory DIR] [--mib N] [--rounds N] [--json FILE]

Makes a volume below DIR (a directory of a file system that can carry one), mounts it, and prints a
Markdown table. "First" is after a fresh mount: neither the kernel nor the process has anything of
the file system in its cache, while the file system below has its pages. "Again" is what the
kernel's cache answers. "Cold" has the pages of the store dropped as well. Best of the rounds.
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
from pathlib import Path
from typing import Any

from dedupd.disk import Disk
from dedupd.enable import enable
from dedupd.volume import Volume
from fuse_stub.mount import mount_in_background, unmount
from jobs.frame import JobRun
from jobs.optimize import Optimize

MIB = 1 << 20
FILES = 10_000
CREATED = 2_000


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, on the file system below and through the mount; None where it has none."""

    name: str
    unit: str
    below: float | None
    mount: float | None


class Bench:
    """A volume with a plain file, a stub and a directory of many files."""

    def __init__(self, directory: Path, mib: int, rounds: int) -> None:
        self.root = directory / "volume"
        self.view = directory / "view"
        self.bytes = mib * MIB
        self.rounds = rounds
        self.data = self.root / ".dedupd" / "data"
        self.root.mkdir()
        self.view.mkdir()
        enable(
            str(self.root),
            chunk_size="64k",
            fingerprint="blake3",
            policy_values={"min_age": "0s"},
            disk=Disk(),
        )

    def fill(self) -> None:
        write_mixed(self.data / "stub", self.bytes)
        with Volume.open(str(self.root)) as volume, volume.job_lock():
            report = Optimize(volume, JobRun("optimize")).run()
        assert report.files_optimised == 1, report
        write_mixed(self.data / "plain", self.bytes)
        many = self.data / "many"
        many.mkdir()
        for number in range(FILES):
            (many / f"file-{number:06d}").touch()

    def mount(self) -> None:
        mount_in_background(str(self.root), str(self.view))

    def remount(self) -> None:
        unmount(str(self.view))
        self.mount()

    def drop_store(self) -> None:
        """Drop the store's pages, and nobody else's."""
        os.sync()
        for path in (self.root / ".dedupd" / "store").rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    def best(self, measure: Callable[[], float], before: Callable[[], None], low: bool) -> float:
        values = []
        for _ in range(self.rounds):
            before()
            values.append(measure())
        return min(values) if low else max(values)

    def rows(self) -> Iterator[Row]:
        yield from self.reads("plain", "plain file")
        yield from self.reads("stub", "stub", cold=True)
        yield from self.writes()
        yield from self.names()

    def reads(self, name: str, what: str, cold: bool = False) -> Iterator[Row]:
        size = self.bytes
        below, seen = self.data / name, self.view / name

        def nothing() -> None:
            pass

        def warm_then(measure: Callable[[], float]) -> Callable[[], float]:
            def run() -> float:
                with open(seen, "rb") as file:
                    while file.read(MIB):
                        pass
                return measure()

            return run

        def sequential(path: Path) -> Callable[[], float]:
            return lambda: fio(path, "read", "1M", size)["bw_bytes"] / 1e6

        def scattered(path: Path) -> Callable[[], float]:
            return lambda: latency_us(fio(path, "randread", "4k", size, io_bytes=16 * MIB))

        def cold_mount() -> None:
            unmount(str(self.view))
            self.drop_store()
            self.mount()

        is_plain = name == "plain"
        native = self.best(sequential(below), nothing, low=False) if is_plain else None
        native_us = self.best(scattered(below), nothing, low=True) if is_plain else None
        first = self.best(sequential(seen), self.remount, low=False)
        again = self.best(warm_then(sequential(seen)), nothing, low=False)
        if cold:
            yield Row(
                f"{what}: sequential 1 MiB reads, cold",
                "MB/s",
                None,
                self.best(sequential(seen), cold_mount, low=False),
            )
        yield Row(f"{what}: sequential 1 MiB reads, first", "MB/s", native, first)
        yield Row(f"{what}: sequential 1 MiB reads, again", "MB/s", native, again)
        first_us = self.best(scattered(seen), self.remount, low=True)
        again_us = self.best(warm_then(scattered(seen)), nothing, low=True)
        if cold:
            yield Row(
                f"{what}: random 4 KiB reads, cold",
                "µs",
                None,
                self.best(scattered(seen), cold_mount, low=True),
            )
        yield Row(f"{what}: random 4 KiB reads, first", "µs", native_us, first_us)
        yield Row(f"{what}: random 4 KiB reads, again", "µs", native_us, again_us)

    def writes(self) -> Iterator[Row]:
        def fresh(path: Path) -> Callable[[], None]:
            return lambda: path.unlink(missing_ok=True)

        def nothing() -> None:
            pass

        size = self.bytes // 2

        def sequential(path: Path) -> Callable[[], float]:
            return lambda: fio(path, "write", "1M", size, "--end_fsync=0")["bw_bytes"] / 1e6

        def scattered(path: Path) -> Callable[[], float]:
            return lambda: latency_us(fio(path, "randwrite", "4k", size, io_bytes=16 * MIB))

        yield Row(
            "plain file: sequential 1 MiB writes",
            "MB/s",
            self.best(
                sequential(self.data / "written-below"), fresh(self.data / "written-below"), False
            ),
            self.best(sequential(self.view / "written"), fresh(self.view / "written"), False),
        )
        yield Row(
            "plain file: random 4 KiB writes",
            "µs",
            self.best(scattered(self.data / "written-below"), nothing, True),
            self.best(scattered(self.view / "written"), nothing, True),
        )
        yield Row(
            "stub: random 4 KiB writes, first round",
            "µs",
            None,
            scattered(self.view / "stub")(),
        )
        yield Row(
            "stub: sequential 1 MiB writes",
            "MB/s",
            None,
            fio(self.view / "stub", "write", "1M", size)["bw_bytes"] / 1e6,
        )

    def names(self) -> Iterator[Row]:
        def nothing() -> None:
            pass

        def both(
            name: str,
            unit: str,
            measure: Callable[[Path], float],
            before: Callable[[], None],
            low: bool,
        ) -> Row:
            return Row(
                name,
                unit,
                self.best(lambda: measure(self.data), nothing, low),
                self.best(lambda: measure(self.view), before, low),
            )

        yield both("create a file, and close it", "µs", create_us, nothing, True)
        yield both("open and close", "µs", open_us, nothing, True)
        yield both("stat again", "µs", stat_us, nothing, True)
        yield both("stat, first", "µs", stat_each_us, self.remount, True)
        yield both(f"list {FILES:,} entries", "µs an entry", list_us, self.remount, True)
        yield both(f"list {FILES // 10:,} entries", "µs an entry", list_few_us, self.remount, True)


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


def open_us(root: Path) -> float:
    path = os.fsencode(root / "many" / "file-000000")

    def action() -> None:
        for _ in range(5000):
            os.close(os.open(path, os.O_RDONLY))

    return timed_us(action, 5000)


def stat_us(root: Path) -> float:
    path = os.fsencode(root / "many" / "file-000000")

    def action() -> None:
        for _ in range(20_000):
            os.stat(path)

    return timed_us(action, 20_000)


def stat_each_us(root: Path) -> float:
    names = [os.fsencode(root / "many" / f"file-{number:06d}") for number in range(2000)]

    def action() -> None:
        for name in names:
            os.stat(name)

    return timed_us(action, len(names))


def list_us(root: Path) -> float:
    return timed_us(lambda: os.listdir(root / "many"), FILES)


def list_few_us(root: Path) -> float:
    few = root / "many-few"
    if not few.exists():
        few.mkdir()
        for number in range(FILES // 10):
            (few / f"file-{number:06d}").touch()
    return timed_us(lambda: os.listdir(few), FILES // 10)


def table(rows: list[Row]) -> str:
    def show(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

    lines = ["| | unit | below | mount |", "| --- | --- | ---: | ---: |"]
    lines += [f"| {r.name} | {r.unit} | {show(r.below)} | {show(r.mount)} |" for r in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", default="/var/tmp", type=Path)
    parser.add_argument("--mib", default=512, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="dedupd-bench-", dir=options.directory))
    try:
        bench = Bench(base, options.mib, options.rounds)
        bench.fill()
        bench.mount()
        try:
            rows = []
            for row in bench.rows():
                print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
                rows.append(row)
        finally:
            unmount(str(bench.view))
    finally:
        shutil.rmtree(base)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
