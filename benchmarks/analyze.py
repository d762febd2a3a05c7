"""What the study costs, and how good its samples are: the figures in docs/figures/analyze.md.

python -m benchmarks.analyze speed DIR        collection against the bare kernel
python -m benchmarks.analyze rows [COUNT]     all queries over a made-up log of COUNT chunks
python -m benchmarks.analyze coverage DIR     samples of the log in DIR (an --out)
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click
import duckdb

from analysis.collection.chunk_log import Dataset, Log, Spec, Timing
from analysis.collection.chunkings import DEFAULT
from analysis.collection.collector import collect
from analysis.database import EVERYTHING, Database
from analysis.figures import SavingsRow
from analysis.study import run_study
from benchmarks.measure import read_through
from dedupd_core import native
from dedupd_core.format.volume_parameters import PRESETS
from dedupd_core.units import MIB
from tests.support.resample import resample

_BATCH = 8 * MIB
_COMPRESSED_SHARE = 0.55
_SECTOR_BYTES = 512


@click.group()
@click.option("--work", default=None, type=click.Path(), help="Where large scratch files go.")
@click.pass_context
def main(context: click.Context, work: str | None) -> None:
    """Benchmarks of the study."""
    context.obj = work


@main.command()
@click.argument("directory", type=click.Path(exists=True))
@click.option("--rounds", default=3)
@click.pass_obj
def speed(work: str | None, directory: str, rounds: int) -> None:
    """Collection of one chunking without compression, against chunking and fingerprints alone.

    The kernel runs on one core, once over the files one by one, as a collection cuts them, and once
    as if they were one large file. Collection runs on all cores by the clock, and on one core in
    seconds of CPU. Each in a process of its own, one after the other, with the files in the page
    cache; the best of the rounds, and the ratio of collection and kernel in each of them. Says what
    the collections had to read from the disk all the same, and how many cores they had: of two that
    others do not use, nearly two. ``native/examples/small_files.rs`` measures what a tree of small
    files costs at the least.
    """
    # Not whole: the programs that are measured begin with a copy of this process, and the largest
    # that it ever was counts as theirs.
    for path in Path(directory).rglob("*"):
        if path.is_file() and not path.is_symlink():
            read_through(path)
    steps = ("kernel", "joined", "collect", "one-core")
    best = dict.fromkeys(steps, 0.0)
    peak = missed = 0.0
    cores: list[float] = []
    ratios: list[float] = []
    for _ in range(rounds):
        row = {}
        for step in steps:
            with tempfile.TemporaryDirectory(dir=work) as out:
                command = [sys.executable, "-m", __spec__.name, "once", step, directory, out]
                done = subprocess.run(command, capture_output=True, check=True)
            found = json.loads(done.stdout)
            row[step] = found["mb_per_s"]
            best[step] = max(best[step], row[step])
            if step == "collect":
                peak = max(peak, found["memory_mb_peak"])
                cores.append(found["cores"])
            if step in ("collect", "one-core"):
                missed = max(missed, found["read_mb"])
        ratios.append(row["collect"] / row["kernel"])
    for kernel in ("kernel", "joined"):
        print(
            f"{kernel} {best[kernel]:.0f} MB/s;"
            f" collection {best['collect']:.0f} MB/s, {best['collect'] / best[kernel]:.2f} of it;"
            f" on one core {best['one-core']:.0f} MB/s, {best['one-core'] / best[kernel]:.2f}"
        )
    each = ", ".join(
        f"{ratio:.2f} on {used:.1f} cores" for ratio, used in zip(ratios, cores, strict=True)
    )
    print(f"in each round {each}; median {median(ratios):.2f}")
    print(f"peak memory {peak:.0f} MB; up to {missed:.0f} MB were not in the page cache")


@main.command(hidden=True)
@click.argument("step")
@click.argument("directory")
@click.argument("out")
def once(step: str, directory: str, out: str) -> None:
    """One measurement: by the clock on all cores, or in seconds of CPU on one."""
    clock = time.monotonic if step == "collect" else time.process_time
    if step != "collect":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    if step in ("kernel", "joined"):
        size, seconds = _kernel(directory, clock, joined=step == "joined")
    else:
        began = clock()
        size = _collect(directory, out, threads=0 if step == "collect" else 1)
        seconds = clock() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "mb_per_s": size / seconds / 1e6,
        "cores": (time.process_time() - began_cpu_s) / (time.monotonic() - began_s),
        "memory_mb_peak": usage.ru_maxrss / 1000,
        "read_mb": usage.ru_inblock * _SECTOR_BYTES / 1e6,
    }
    print(json.dumps(found))


def _kernel(directory: str, clock: Callable[[], float], *, joined: bool) -> tuple[int, float]:
    """The chunker's process() on content that is in memory already: bytes, and seconds."""
    data = bytearray()
    segments = []
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file() and not path.is_symlink() and len(data) < 512 * MIB:
            start = len(data)
            data += path.read_bytes()
            segments.append((start, len(data), True))
    if joined:
        ends = [*range(_BATCH, len(data), _BATCH), len(data)]
        segments = [(start, end, True) for start, end in zip([0, *ends], ends, strict=False)]
    view = memoryview(data)
    chunker = native.chunker.Chunker(**asdict(PRESETS[DEFAULT]))
    began = clock()
    chunker.process(view, segments)
    return len(data), clock() - began


def _collect(directory: str, out: str, threads: int) -> int:
    spec = Spec((Dataset("x", directory),), (DEFAULT,), compression_level=0)
    log = Log.create(os.path.join(out, "log"), spec)
    collect(log, out, threads=threads)
    return log.checkpoint.done_bytes


@main.command()
@click.argument("count", default=50_000_000)
@click.pass_obj
def rows(work: str | None, count: int) -> None:
    """All queries over a made-up log; half of its chunks occur once, others up to 2,000 times."""
    with tempfile.TemporaryDirectory(dir=work) as out:
        log = _made_up_log(os.path.join(out, "log"), count)
        print(f"log of {log.size_bytes() / 1e9:.2f} GB")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        began = last = time.monotonic()

        def step(query: str) -> None:
            nonlocal last
            now = time.monotonic()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
            print(f"{now - last:7.1f} s  {peak:6.0f} MB  then {query}", flush=True)
            last = now

        run_study([log], os.path.join(out, "database"), step)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    took = time.monotonic() - began
    print(f"{count:,} rows: {took:.0f} s, peak {peak:.0f} MB ({before:.0f} before)")


def _made_up_log(path: str, count: int) -> Log:
    """Rows in the proportions of a real collection: sizes of chunkings, copies, files, types."""
    names = ("64k", "64k-basic", "4k", "4k-basic", "fixed-64k")
    shares = dict(zip(names, (0.045, 0.045, 0.43, 0.43, 0.05), strict=True))
    datasets = tuple(Dataset(f"server{number}", "/") for number in range(4))
    log = Log.create(path, Spec(datasets, names))
    files = count // 40
    with duckdb.connect(config={"memory_limit": "1GB", "temp_directory": path}) as database:
        os.makedirs(os.path.join(path, "files"))
        database.execute(
            f"""COPY (SELECT (i * 4 // {files})::USMALLINT AS dataset, i::UINTEGER AS file,
                ('d' || i % 97 || '/e' || i % 1009 || '/f' || i || '.t' ||
                 sqrt(hash(i) % 10000)::INT)::BLOB
                AS path,
                i AS inode, 1 AS links, 1000000 AS size_bytes, 1000000 AS allocated_bytes,
                i * 1000000000 AS changed_ns, i * 1000000000 AS modified_ns
                FROM range({files}) AS r(i)) TO '{path}/files/part-00001.parquet'
                (FORMAT parquet)"""
        )
        os.makedirs(os.path.join(path, "whole"))
        database.execute(
            f"""COPY (SELECT (i * 4 // {files})::USMALLINT AS dataset, i::UINTEGER AS file,
                1000000::UBIGINT AS length_bytes, 0::UBIGINT AS zero_bytes,
                0::UBIGINT AS hole_bytes, hash(i // (1 + i % 2)) AS fp_high,
                hash(i // (1 + i % 2) + 7) AS fp_low
                FROM range({files}) AS r(i)) TO '{path}/whole/part-00001.parquet'
                (FORMAT parquet)"""
        )
        for name, share in shares.items():
            number = int(share * count)
            each = max(1, number // files)
            directory = os.path.join(path, "chunks", f"chunking={name}")
            os.makedirs(directory)
            database.execute(
                f"""COPY (SELECT least(3, i // {each} * 4 // {files})::USMALLINT AS dataset,
                    least({files} - 1, i // {each})::UINTEGER AS file,
                    (i % {each} * 20000)::UBIGINT AS offset_bytes,
                    (1000 + hash(content) % 19000)::UBIGINT AS length_bytes,
                    ((1000 + hash(content) % 19000) * {_COMPRESSED_SHARE})::UINTEGER
                        AS compressed_bytes,
                    hash(content, '{name}') AS fp_high, hash(content, 2) AS fp_low
                    FROM (SELECT i, CASE WHEN i % 2 = 0 THEN i
                                    ELSE (hash(i) % ({number} // (2 + hash(i, 3) % 2000)))::BIGINT
                                    END AS content FROM range({number}) AS r(i)))
                    TO '{directory}/part-00001.parquet' (FORMAT parquet, COMPRESSION zstd)"""
            )
    log.checkpoint.scanned = log.checkpoint.complete = True
    log.checkpoint.collected_s = time.time()
    log.checkpoint.parts = 1
    log.checkpoint.timings = {DEFAULT: Timing(1.0, 1 << 30, 1.0, 1 << 28)}
    log.save()
    return log


@main.command()
@click.argument("directory", type=click.Path(exists=True))
@click.option("--sample", default=0.01)
@click.option("--seeds", default=100)
@click.pass_obj
def coverage(work: str | None, directory: str, sample: float, seeds: int) -> None:
    """How near estimates from samples come, and how often their intervals hold the truth."""
    full = Log.open(os.path.join(directory, "log"))
    with tempfile.TemporaryDirectory(dir=work) as out:
        truth = _savings(full, out)
        found = []
        for seed in range(seeds):
            place = os.path.join(out, "sample")
            found.append(_savings(resample(full, place, sample, seed, (DEFAULT,)), out))
            Log.open(place).discard()
    print(f"{truth.data_bytes / 1e9:.2f} GB, {truth.distinct_chunks:,.0f} distinct chunks")
    for name, margin in (
        ("saved", "saved_margin"),
        ("saved_compressed", "saved_compressed_margin"),
    ):
        true = getattr(truth, name)
        errors = [abs(getattr(row, name) - true) for row in found]
        held = sum(e <= getattr(r, margin) for e, r in zip(errors, found, strict=True))
        print(
            f"{name}: truth {100 * true:.2f}, mean error {100 * sum(errors) / seeds:.2f} points,"
            f" largest {100 * max(errors):.2f}, within 3 points {sum(e < 0.03 for e in errors)},"
            f" intervals of 95 % hold {held} of {seeds},"
            f" half width {100 * getattr(found[0], margin):.2f}"
        )


def _savings(log: Log, out: str) -> SavingsRow:
    database = Database([log], os.path.join(out, "database"), 0.05)
    try:
        database.choose(DEFAULT)
        database.run("savings")
        rows = database.rows("figure2_chunk_size", SavingsRow)
    finally:
        database.close()
    return next(row for row in rows if row.dataset == EVERYTHING)


if __name__ == "__main__":
    main()
