"""Scrub and verify against the disk and against BLAKE3, in one run, on the same store.

    python -m benchmarks.upkeep [--work DIR] [--rounds N] [--cold] [--json FILE] DATASET

Makes a volume below DIR of a copy of DATASET (a file or a directory), optimises it, and measures:
how long the containers take to read from one end to the other, how long their raw bytes take to
fingerprint, in memory and on all cores, how long zstd takes to decompress what is compressed; then
the jobs themselves. The best that a full scrub of raw chunks could do is the longer of reading and
fingerprinting; of compressed ones, which are decompressed on the way, the longest of the three.
``--cold`` drops the store's pages before each reading. Best of the rounds.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dedupd import native
from dedupd.disk import Disk
from dedupd.enable import enable
from dedupd.format import container as fmt
from dedupd.format.container import Codec
from dedupd.priority import cores
from dedupd.store.container import Found, scan
from dedupd.units import MIB, format_size
from dedupd.volume import Volume
from jobs.frame import JobRun
from jobs.optimize import Optimize
from jobs.scrub import Depth, Scrub
from jobs.verify import Verify

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
        """The slowest of disk, BLAKE3 and zstd."""
        return max(self.best_s, self.decompress_s)


def measure(dataset: Path, work: Path, rounds: int, cold: bool) -> Measured:
    """Build the volume, and measure. Removes it again."""
    root = Path(tempfile.mkdtemp(dir=work, prefix="upkeep-"))
    try:
        _build(dataset, root)
        return _measure(root, rounds, cold)
    finally:
        shutil.rmtree(root)


def _build(dataset: Path, root: Path) -> None:
    if dataset.is_dir():
        shutil.copytree(dataset, root / "data", symlinks=True)
    else:
        shutil.copyfile(dataset, root / "data")
    values = {"min_age": "0s", "min_size": "1"}
    enable(str(root), chunk_size="64k", fingerprint="blake3", policy_values=values, disk=Disk())
    with Volume.open(str(root)) as volume, volume.job_lock():
        Optimize(volume, JobRun("optimize")).run()
    scrub(root, Depth.QUICK)  # writes the second copies that are missing
    os.sync()


def scrub(root: Path, depth: Depth) -> None:
    with Volume.open(str(root)) as volume, volume.job_lock():
        report = Scrub(volume, JobRun("scrub"), depth).run()
        assert not report.findings


def verify(root: Path) -> None:
    with Volume.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        assert not Verify(volume, JobRun("verify")).run().findings


def _measure(root: Path, rounds: int, cold: bool) -> Measured:
    containers = sorted((root / ".dedupd/store").rglob("*.dat"))

    def best(step: Callable[[], object]) -> float:
        taken = []
        for _ in range(rounds):
            for path in containers:
                _pages(path, cold)
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
        return min(taken)

    with Volume.open(str(root)) as volume, volume.job_lock():
        report = Scrub(volume, JobRun("scrub"), Depth.FULL).run()
    rate, decompress_s = _fingerprint_rate(), _decompress_s(root)
    return Measured(
        stored_bytes=report.read_bytes,
        raw_bytes=report.raw_bytes,
        records=report.records,
        stubs=report.stubs,
        read_s=best(lambda: any(_read(path) < 0 for path in containers)),
        fingerprint_s=report.raw_bytes / rate,
        decompress_s=decompress_s,
        quick_s=best(lambda: scrub(root, Depth.QUICK)),
        full_s=best(lambda: scrub(root, Depth.FULL)),
        verify_s=best(lambda: verify(root)),
    )


def _pages(path: Path, cold: bool) -> None:
    """Have all pages of a file in memory, or none."""
    with open(path, "rb", buffering=0) as file:
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            _read(path)


def _read(path: Path) -> int:
    """The bytes of a file, read into memory that is used again."""
    buffer, total = bytearray(8 * MIB), 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def _fingerprint_rate() -> float:
    """Bytes a second of BLAKE3, chunks of 80 KiB, in memory, on all cores."""
    data = os.urandom(MIB) * (SAMPLE_BYTES // MIB)
    ends = array("I", [*range(80 << 10, len(data), 80 << 10), len(data)])
    began = time.perf_counter()
    native.fingerprints(data, ends, "blake3", cores())
    return len(data) / (time.perf_counter() - began)


def _decompress_s(root: Path) -> float:
    """Seconds that zstd takes for everything that is compressed, on all cores, estimated from a
    sample on one."""
    spent = raw = total = 0.0
    for path in sorted((root / ".dedupd/store/chunks").glob("*.dat")):
        with Volume.open(str(root)) as volume, open(path, "rb", buffering=0) as file:
            header = fmt.decode_file_header(file.read(fmt.FILE_HEADER_BYTES), path.name)
            seed = fmt.checksum_seed(volume.space.volume, header.container, header.generation)
            end = path.stat().st_size
            for item in scan(file.fileno(), seed, fmt.FILE_HEADER_BYTES, end):
                if not isinstance(item, Found) or item.record.codec != Codec.ZSTD:
                    continue
                record = item.record
                total += record.raw_length
                if raw < SAMPLE_BYTES:
                    offset = item.offset + fmt.RECORD_HEADER_BYTES
                    stored = os.pread(file.fileno(), record.stored_length, offset)
                    began = time.perf_counter()
                    native.decode(stored, record.codec, record.raw_length, record.checksum)
                    spent += time.perf_counter() - began
                    raw += record.raw_length
    return spent / raw * total / cores() if raw else 0.0


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
        "| | s | stored MB/s | raw MB/s | of the slower of disk and BLAKE3 | and zstd |",
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
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.dataset, options.work, options.rounds, options.cold)
    print(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
