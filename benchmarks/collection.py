"""Collecting garbage and compacting: how fast, and what readers notice of it.

    python -m benchmarks.collection [--directory DIR] [--mib N] [--rounds N] [--json FILE]

Makes volumes below DIR (a directory of a file system that can carry one) and prints a Markdown
table. The sequential read that others are compared with is of the same container, in the same run:
once with its pages in the cache, and once with them dropped.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.measure import DEDUPD, drop_caches, drop_pages, keep
from benchmarks.mount import fio, write_mixed
from benchmarks.volumes import mounted, new_volume, optimize
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.volume import Volume
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc

FILE_MIB = 64
"""Each file of the set; every second one is deleted."""

SMALL_BYTES = 512 * KIB
"""A file of those of which every second one, at random, is deleted."""

READ_BYTES = 8 * MIB


class Row(NamedTuple):
    """One figure."""

    name: str
    value: float
    unit: str


def text(seed: int, length: int) -> bytes:
    """New content that compresses to a half: noise alone would stay in its file."""
    return random.Random(seed).randbytes(length // 2).hex().encode()


def collect(root: Path, *, full: bool = True) -> dict[str, Any]:
    with Volume.open(str(root)) as volume, volume.job_lock():
        return asdict(Gc(volume, JobRun("gc"), full=full).run())


def fastest(reports: list[dict[str, Any]]) -> dict[str, Any]:
    return min(reports, key=lambda report: report["resources"]["wall_s"])


def collect_after_a_file(root: Path, number: int) -> dict[str, Any]:
    """A collection that has one recipe to read: all others are known."""
    (root / ".dedupd/data" / f"new{number}").write_bytes(text(number, MIB))
    optimize(root)
    report = collect(root, full=False)
    assert report["resumed"] and report["recipes"] == 1, report
    return report


def compact(root: Path) -> dict[str, Any]:
    with Volume.open(str(root)) as volume, volume.job_lock():
        return asdict(Compact(volume, JobRun("compact")).run())


def containers(root: Path) -> list[Path]:
    return sorted((root / ".dedupd/store/chunks").glob("*.dat"))


def read_mb_s(paths: list[Path], *, cached: bool) -> float:
    """A sequential read of files, with their pages in the cache or dropped."""
    buffer = bytearray(READ_BYTES)
    total, took_s = 0, 0.0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            if cached:
                while os.readv(fd, [buffer]):
                    pass
                os.lseek(fd, 0, os.SEEK_SET)
            else:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while count := os.readv(fd, [buffer]):
                total += count
            took_s += time.perf_counter() - began
        finally:
            os.close(fd)
    return total / took_s / 1e6


def measure_gc(base: Path, mib: int) -> list[Row]:
    """Recipes with very many entries: the same blocks in a different order in each file."""
    root = base / "entries"
    data = new_volume(root, "4k", min_size="1")
    rng = random.Random(1)
    blocks = [rng.randbytes(MIB) for _ in range(16)]
    for number in range(max(1, mib // FILE_MIB)):
        with open(data / f"file{number}", "wb") as file:
            for _ in range(FILE_MIB):
                file.write(rng.choice(blocks))
    optimize(root)
    report = fastest([collect(root) for _ in range(3)])
    seconds, entries = report["resources"]["wall_s"], report["recipe_entries"]
    known = fastest([collect_after_a_file(root, number) for number in range(3)])
    shutil.rmtree(root)
    return [
        Row("gc --full, per million recipe entries", seconds / entries * 1e6, "s"),
        Row("gc, all but one recipe known", known["resources"]["wall_s"] / entries * 1e6, "s"),
        Row("gc, recipe entries in this run", entries, ""),
    ]


def measure_recipes(base: Path, files: int) -> list[Row]:
    """Very many recipes of a few entries each."""
    root = base / "recipes"
    data = new_volume(root, "4k", min_size="1")
    rng = random.Random(2)
    blocks = [rng.randbytes(6000) for _ in range(4096)]
    for number in range(files):
        directory = data / f"d{number // 500}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_bytes(b"".join(rng.sample(blocks, 3)))
    optimize(root)
    whole = fastest([collect(root) for _ in range(3)])
    known = fastest([collect_after_a_file(root, number) for number in range(3)])
    shutil.rmtree(root)
    scale = 1e6 / whole["recipes"]
    return [
        Row("gc --full, per million recipes", whole["resources"]["wall_s"] * scale, "s"),
        Row("gc, all but one known, the same", known["resources"]["wall_s"] * scale, "s"),
        Row("gc, recipes in this run", whole["recipes"], ""),
    ]


def measure_walk(base: Path, files: int) -> list[Row]:
    """Very many stubs of one chunk: what the walk costs."""
    root = base / "files"
    data = new_volume(root, "64k", min_size="1")
    for number in range(files):
        directory = data / f"d{number // 500}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_bytes(b"%d\n" % number * 300)
    optimize(root)
    seconds = min(collect(root)["resources"]["wall_s"] for _ in range(3))
    shutil.rmtree(root)
    return [Row("gc, per million stubs of one chunk", seconds / files * 1e6, "s")]


def make_half_dead(base: Path, name: str, mib: int) -> Path:
    """An optimized volume, half of whose bytes are garbage that cannot be given back in place: its
    records are smaller than two blocks."""
    root = base / name
    data = new_volume(root, "4k", min_size="1")
    for number in range(mib // FILE_MIB):
        (data / f"file{number}").write_bytes(text(number, FILE_MIB * MIB))
    write_mixed(data / "mixed", FILE_MIB * MIB)
    optimize(root)
    for number in range(0, mib // FILE_MIB, 2):
        (data / f"file{number}").unlink()
    collect(root)
    return root


def measure_in_place(base: Path, mib: int) -> list[Row]:
    """Half of the files of a volume, at random, are deleted: what gc gives back by itself."""
    root = base / "in-place"
    data = new_volume(root, "64k", min_size="1")
    rng = random.Random(3)
    for number in range(mib * MIB // SMALL_BYTES):
        directory = data / f"d{number // 500}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_bytes(text(number, SMALL_BYTES))
    optimize(root)
    for path in sorted(data.glob("d*/f*")):
        if rng.random() < 0.5:
            path.unlink()
    drop_caches()
    report = collect(root)
    seconds, freed = report["resources"]["wall_s"], report["freed_bytes"]
    shutil.rmtree(root)
    return [
        Row("gc, half of the files deleted: given back in place", freed / seconds / 1e6, "MB/s"),
        Row("the same: records punched", report["punched"], ""),
    ]


def write_mb_s(path: Path, mib: int) -> float:
    """A sequential write, synced."""
    data = random.Random(0).randbytes(READ_BYTES)
    began = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(mib * MIB // READ_BYTES):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    took_s = time.perf_counter() - began
    path.unlink()
    return mib * MIB / took_s / 1e6


def measure_compaction(base: Path, mib: int) -> list[Row]:
    root = make_half_dead(base, "half", mib)
    paths = containers(root)
    written = write_mb_s(base / "written", mib // 2)
    disk, cache = read_mb_s(paths, cached=False), read_mb_s(paths, cached=True)
    for path in paths:
        drop_pages(path)
    report = compact(root)
    seconds = report["resources"]["wall_s"]
    copied, freed = report["copied_bytes"], report["freed_bytes"]
    shutil.rmtree(root)
    return [
        Row("sequential read of the container, pages dropped", disk, "MB/s"),
        Row("sequential read of the container, pages cached", cache, "MB/s"),
        Row("sequential write, synced", written, "MB/s"),
        Row("compact: bytes copied, read and written, durable", copied / seconds / 1e6, "MB/s"),
        Row("compact: bytes freed", freed / seconds / 1e6, "MB/s"),
        Row("compact: copied / read from the disk", copied / seconds / 1e6 / disk, ""),
        Row("compact: copied / written to the disk", copied / seconds / 1e6 / written, ""),
    ]


READERS_WARM_S = 2
"""Of reads before the ones that count: then both sides begin with the same in the cache."""

START_S = 0.6
"""About what the job takes to start, and so how much later fio may end."""


def measure_readers(base: Path, mib: int, rounds: int) -> list[Row]:
    """Random reads of 4 KiB through the mount, alone and while a container is rewritten.

    The two take turns on the same mount, and fio reads for as long as a compaction takes, so that
    most of its reads meet one. Medians of the rounds.
    """
    roots = [make_half_dead(base, f"readers{number}", mib) for number in range(rounds + 1)]
    # The first compaction says how long one takes.
    seconds = max(1.0, compact(roots[0])["resources"]["wall_s"])
    view = base / "view"
    view.mkdir(exist_ok=True)
    rows: list[Row] = []
    alone: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for root in roots[1:]:
        with mounted(root, view):
            read_at_random(view, READERS_WARM_S)
            alone.append(read_at_random(view, seconds))
            command = [*DEDUPD, "run", "compact", "--json", str(root)]
            job = subprocess.Popen(command, stdout=subprocess.PIPE)
            time.sleep(START_S)
            beside.append(read_at_random(view, seconds))
            report = json.loads(job.communicate()[0])
            assert report["rewritten"] and job.returncode == 0, report
            took_s = report["resources"]["wall_s"]
            rows.append(Row("the compaction beside fio took", took_s, "s"))
    for name, found in (("alone", alone), ("beside a compaction", beside)):
        p99 = median(p99_us(one) for one in found)
        rows.append(Row(f"fio, random 4 KiB, 99th percentile, {name}", p99, "µs"))
        longest = max(one["clat_ns"]["max"] for one in found) / 1e3
        rows.append(Row(f"fio, the longest of all reads, {name}", longest, "µs"))
    pairs = zip(alone, beside, strict=True)
    ratio = median(p99_us(two) / p99_us(one) for one, two in pairs)
    rows.append(Row("99th percentile beside a compaction / alone", ratio, ""))
    for root in roots:
        shutil.rmtree(root)
    return rows


def read_at_random(view: Path, seconds: float) -> dict[str, Any]:
    return fio(
        *(view / "file1", "randread", "4k", FILE_MIB * MIB),
        *("--time_based", f"--runtime={seconds * 1000:.0f}ms", "--invalidate=1"),
    )


def p99_us(found: dict[str, Any]) -> float:
    return float(found["clat_ns"]["percentile"]["99.000000"]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="of reads beside a compaction")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="dedupd-bench-") as name:
        base = Path(name)
        rows = [
            *measure_gc(base, arguments.mib),
            *measure_walk(base, arguments.files),
            *measure_recipes(base, arguments.files),
            *measure_in_place(base, arguments.mib),
            *measure_compaction(base, arguments.mib),
            *measure_readers(base, arguments.mib, arguments.rounds),
        ]
    print("| | |\n| --- | --- |")
    for row in rows:
        print(f"| {row.name} | {row.value:,.2f} {row.unit} |")
    keep([row._asdict() for row in rows], arguments.json)


if __name__ == "__main__":
    main()
