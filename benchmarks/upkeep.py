"""Scrub and verify against the disk and against BLAKE3, in one run, on the same store.

    python -m benchmarks.upkeep [--work DIR] [--rounds N] [--json FILE] DATASET

Makes a volume below DIR of a copy of DATASET (a file or a directory), optimizes it, and measures:
how long the containers take to read from one end to the other, how long their raw bytes take to
fingerprint, in memory and on all cores, how long zstd takes to decompress what is compressed; then
the jobs themselves. The best that a full scrub could do is the longer of what the disk takes, and
what the cores take, for zstd and then for BLAKE3. The store's pages are dropped before each step.
The steps take turns; best of the rounds.
"""

import argparse
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import drop_pages, keep, read_through
from benchmarks.volumes import new_volume, optimize
from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format.container import Codec
from dedupd_core.store.container.scan import ScannedRecord, scan
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB, format_size
from dedupd_core.volume.volume import Volume
from jobs.check.verify import Verify
from jobs.frame.run import JobRun
from jobs.scrub.scrub_job import Depth, Scrub

SAMPLE_BYTES = 256 * MIB
"""Raw bytes that are fingerprinted in memory: more than any processor's cache."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One volume's figures: bytes, and the best seconds of each step."""

    stored_bytes: int
    raw_bytes: int
    records: int
    stubs: int
    read_s: float
    fingerprint_s: float
    decompress_s: float
    quick_s: float
    full_s: float
    verify_s: float

    @property
    def best_s(self) -> float:
        """The slower of disk and BLAKE3."""
        return max(self.read_s, self.fingerprint_s)

    @property
    def best_decompressed_s(self) -> float:
        """The slower of disk and cores, which have zstd to do, and then BLAKE3."""
        return max(self.read_s, self.decompress_s + self.fingerprint_s)


def measure(dataset: Path, work: Path, rounds: int) -> Measured:
    """Build the volume, and measure. Removes it again."""
    with tempfile.TemporaryDirectory(dir=work, prefix="upkeep-") as root:
        _build(dataset, Path(root))
        return _measure(Path(root), rounds)


def _build(dataset: Path, root: Path) -> None:
    if dataset.is_dir():
        shutil.copytree(dataset, root / "data", symlinks=True)
    else:
        shutil.copyfile(dataset, root / "data")
    new_volume(root, min_size="1")
    optimize(root)
    scrub(root, Depth.QUICK)  # writes the second copies that are missing
    os.sync()


def scrub(root: Path, depth: Depth) -> None:
    with Volume.open(str(root)) as volume, volume.job_lock():
        report = Scrub(volume, JobRun("scrub"), depth).run()
        assert not report.findings


def verify(root: Path) -> None:
    with Volume.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        assert not Verify(volume, JobRun("verify")).run().findings


def _measure(root: Path, rounds: int) -> Measured:
    containers = sorted((root / ".dedupd/store").rglob("*.dat"))
    with Volume.open(str(root)) as volume, volume.job_lock():
        report = Scrub(volume, JobRun("scrub"), Depth.FULL).run()
    steps: dict[str, Callable[[], object]] = {
        "read_s": lambda: any(read_through(path, 8 * MIB) < 0 for path in containers),
        "quick_s": lambda: scrub(root, Depth.QUICK),
        "full_s": lambda: scrub(root, Depth.FULL),
        "verify_s": lambda: verify(root),
    }
    best = dict.fromkeys([*steps, "fingerprint_s", "decompress_s"], float("inf"))
    sample = _sample(containers)
    for _ in range(rounds):
        for name, step in steps.items():
            for path in containers:
                drop_pages(path)
            began = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - began)
        fingerprint_s = report.raw_bytes / _fingerprint_rate()
        best["fingerprint_s"] = min(best["fingerprint_s"], fingerprint_s)
        best["decompress_s"] = min(best["decompress_s"], _decompress_s(sample))
    return Measured(
        stored_bytes=report.read_bytes,
        raw_bytes=report.raw_bytes,
        records=report.records,
        stubs=report.stubs,
        **best,
    )


def _fingerprint_rate() -> float:
    """Bytes a second of BLAKE3, chunks of 80 KiB, in memory, on all cores."""
    data = os.urandom(MIB) * (SAMPLE_BYTES // MIB)
    ends = array("I", [*range(80 << 10, len(data), 80 << 10), len(data)])
    began = time.perf_counter()
    native.hashing.fingerprints(data, ends, "blake3", cores())
    return len(data) / (time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Sample:
    """Payloads that are compressed, each with its record, and the raw bytes of all there are."""

    payloads: list[tuple[fmt.Record, bytes]]
    raw_bytes: int


def _sample(containers: list[Path]) -> Sample:
    payloads: list[tuple[fmt.Record, bytes]] = []
    raw_bytes = kept_bytes = 0
    for path in containers:
        with open(path, "rb", buffering=0) as file:
            header = fmt.decode_file_header(file.read(fmt.FILE_HEADER_BYTES), path.name)
            seed = fmt.seed_of(header)
            end = path.stat().st_size
            for item in scan(file.fileno(), seed, fmt.FILE_HEADER_BYTES, end):
                if not isinstance(item, ScannedRecord) or item.record.codec != Codec.ZSTD:
                    continue
                record = item.record
                raw_bytes += record.raw_length
                if kept_bytes < SAMPLE_BYTES:
                    offset = item.offset + fmt.RECORD_HEADER_BYTES
                    payload = os.pread(file.fileno(), record.stored_length, offset)
                    payloads.append((record, payload))
                    kept_bytes += record.raw_length
    return Sample(payloads, raw_bytes)


def _decompress_s(sample: Sample) -> float:
    """Seconds that zstd takes for everything that is compressed, on all cores, estimated from a
    sample on one."""
    began, raw_bytes = time.perf_counter(), 0
    for record, stored in sample.payloads:
        native.codec.decode(stored, record.codec, record.raw_length, record.checksum)
        raw_bytes += record.raw_length
    spent_s = time.perf_counter() - began
    return spent_s / raw_bytes * sample.raw_bytes / cores() if raw_bytes else 0.0


def table(found: Measured) -> str:
    """Markdown."""

    def row(name: str, seconds: float) -> str:
        stored, raw = found.stored_bytes / seconds / 1e6, found.raw_bytes / seconds / 1e6
        shares = f"{found.best_s / seconds:.0%} | {found.best_decompressed_s / seconds:.0%}"
        return f"| {name} | {seconds:.2f} | {stored:,.0f} | {raw:,.0f} | {shares} |"

    lines = [
        f"{format_size(found.stored_bytes)} stored, {format_size(found.raw_bytes)} raw,"
        f" {found.records} records, {found.stubs} stubs, {cores()} cores",
        "",
        "| | s | stored MB/s | raw MB/s | of the slower of disk and BLAKE3 | with zstd |",
        "| --- | --- | --- | --- | --- | --- |",
        row("reading the containers", found.read_s),
        row("BLAKE3 of their raw bytes", found.fingerprint_s),
        row("zstd of what is compressed", found.decompress_s or 1e-9),
        row("scrub --full", found.full_s),
        row("scrub", found.quick_s),
        row("verify", found.verify_s),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.dataset, options.work, options.rounds)
    print(table(found))
    keep(asdict(found), options.json)


if __name__ == "__main__":
    main()
