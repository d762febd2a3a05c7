"""What the study costs, and how good its samples are: the figures in docs/analyze.md.

python -m benchmarks.analyze speed DIR        collection against the bare kernel, one core
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
from dataclasses import asdict
from pathlib import Path

import click
import duckdb

from analysis.chunkings import DEFAULT
from analysis.collect import collect
from analysis.database import EVERYTHING, Database
from analysis.log import Dataset, Log, Spec, Timing
from analysis.resample import resample
from analysis.results import SavingsRow
from analysis.study import run_study
from dedupd import native
from dedupd.parameters import PRESETS
from dedupd.units import MIB

_ALIGNED = 8 * MIB
_COMPRESSED_SHARE = 0.55


@click.group()
@click.option("--work", default=None, type=click.Path(), help="Where large scratch files go.")
@click.pass_context
def main(context: click.Context, work: str | None) -> None:
    """Benchmarks of the study."""
    context.obj = work


@main.command()
@click.argument("directory", type=click.Path(exists=True))
@click.pass_obj
def speed(work: str | None, directory: str) -> None:
    """Collection of one chunking without compression, against chunking and fingerprints alone.

    Both on one core, in processes of their own, one after the other, with the files in the page
    cache; the best of three.
    """
    for path in Path(directory).rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.read_bytes()
    core = str(min(os.sched_getaffinity(0)))
    results: dict[str, list[float]] = {"kernel": [], "collect": []}
    peak = 0
    for _ in range(3):
        for step, speeds in results.items():
            with tempfile.TemporaryDirectory(dir=work) as out:
                command = ["taskset", "-c", core, sys.executable, "-m", __spec__.name, "once", step]
                done = subprocess.run([*command, directory, out], capture_output=True, check=True)
            found = json.loads(done.stdout)
            speeds.append(found["mb_per_s"])
            if step == "collect":
                peak = max(peak, found["memory_mb_peak"])
    kernel, whole = max(results["kernel"]), max(results["collect"])
    print(f"kernel {kernel:.0f} MB/s, collection {whole:.0f} MB/s: {whole / kernel:.2f} of it")
    print(f"peak memory {peak:.0f} MB")


@main.command(hidden=True)
@click.argument("step")
@click.argument("directory")
@click.argument("out")
def once(step: str, directory: str, out: str) -> None:
    """One measurement, in seconds of CPU: other work on the core does not count."""
    began = time.process_time()
    size = _kernel(directory) if step == "kernel" else _collect(directory, out)
    seconds = time.process_time() - began - _not_counted
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"mb_per_s": size / seconds / 1e6, "memory_mb_peak": memory}))


def _kernel(directory: str) -> int:
    """The chunker's process() on content already in memory; loading it is not counted."""
    global _not_counted
    began = time.process_time()
    data = bytearray()
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file() and not path.is_symlink() and len(data) < 512 * MIB:
            data += path.read_bytes()
    view = memoryview(data)
    chunker = native.Chunker(**asdict(PRESETS[DEFAULT]))
    _not_counted = time.process_time() - began
    for start in range(0, len(data), _ALIGNED):
        part = view[start : start + _ALIGNED]
        chunker.process(part, [(0, len(part), True)])
    return len(data)


_not_counted = 0.0


def _collect(directory: str, out: str) -> int:
    spec = Spec((Dataset("x", directory),), (DEFAULT,), compression_level=0)
    log = Log.create(os.path.join(out, "log"), spec)
    collect(log, out, threads=1)
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
                ('d' || i % 97 || '/e' || i % 1009 || '/f' || i)::BLOB AS path,
                'd' || i % 97 || '/e' || i % 1009 AS directory,
                i AS inode, 1 AS links, 1000000 AS size_bytes, 1000000 AS allocated_bytes,
                i * 1000000000 AS changed_ns, i * 1000000000 AS modified_ns,
                't' || sqrt(hash(i) % 10000)::INT AS type
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
