"""Sequential reads of stubs, beside what could limit them, in turns of one run.

    python -m benchmarks.mount_streams [--directory DIR] [--mib N] [--turns N] [--json FILE]

A file of texts of this machine and one that nothing compresses, each as a stub and as a plain file.
One turn, after fresh mounts, takes in any order

- the stub through the mount, with the store's pages in memory below and nothing of it above;
- the same chunks by zstd (and the checksum of what is stored) alone: in memory, without any file
  system, by one process for each core, each with one buffer that it uses again and again;
- the plain file on the file system below, its pages in memory;
- the plain file through the mount.

All in MB/s, medians of the turns of which the host of a virtual machine took 3 % at most.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from analysis.dataset import TEXT_SUFFIXES, programs
from benchmarks.measure import STOLEN_MAX, keep, processor_ticks, stolen_since
from benchmarks.mount import Bench
from dedupd_core import native
from dedupd_core.system.files import opened
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume

Payload = tuple[bytes, int, int, int]
"""Stored bytes, codec, raw length and checksum of a chunk."""

_payloads: list[Payload] = []
"""Of the file at hand; processes that are forked have them too."""


def write_texts(path: Path, size: int) -> None:
    """Texts and sources of this machine, one after the other, none of them twice."""
    seen = set()
    with open(path, "wb") as out:
        for file in (one for program in programs(path) for one in program):
            if file.path.suffix in TEXT_SUFFIXES and 2000 < file.size_bytes < MIB:
                data = file.path.read_bytes()
                key = native.hashing.xxh3_64(data)
                if key not in seen:
                    out.write(data[: size - out.tell()])
                    seen.add(key)
            if out.tell() == size:
                return
    raise SystemExit(f"this machine has no {size >> 20} MiB of texts")


def write_media(path: Path, size: int) -> None:
    with open(path, "wb") as out:
        for _ in range(size // MIB):
            out.write(os.urandom(MIB))


def payloads_of(volume_path: Path, name: str) -> list[Payload]:
    """What the store has of a stub."""
    with Volume.open(str(volume_path)) as volume:
        with opened(os.open(volume_path / ".dedupd" / "data" / name, os.O_RDONLY)) as fd:
            attribute = volume.space.read(fd, name)
            size = os.fstat(fd).st_size
        assert attribute is not None
        found = []
        for span in volume.content(attribute, name).spans(0, size):
            record, stored = volume.chunk_records.read_alone(span.chunk)
            found.append((stored, record.codec, record.raw_length, record.checksum))
        return found


def decode_all_mbs() -> float:
    """How fast the payloads are verified and decompressed, by a process for each core."""
    context = multiprocessing.get_context("fork")
    ready, gate = context.Barrier(cores() + 1), context.Barrier(cores() + 1)
    next_one = context.Value("L", 0)

    def work() -> None:
        ready.wait()
        while True:
            with next_one.get_lock():
                first = next_one.value
                next_one.value += 16
            if first >= len(_payloads):
                break
            for stored, codec, length, checksum in _payloads[first : first + 16]:
                native.codec.decode(stored, codec, length, checksum)
        gate.wait()

    processes = [context.Process(target=work) for _ in range(cores())]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    gate.wait()
    taken_s = time.perf_counter() - began
    for process in processes:
        process.join()
    return sum(length for _, _, length, _ in _payloads) / taken_s / 1e6


def read_mbs(path: Path) -> float:
    buffer = bytearray(MIB)
    buffer[:] = b"x" * MIB
    total = 0
    with open(path, "rb", buffering=0) as file:
        began = time.perf_counter()
        while count := file.readinto(buffer):
            total += count
        return total / (time.perf_counter() - began) / 1e6


FILES = {"texts": write_texts, "media": write_media}

HEADER = """\
| | stub | zstd | below | plain | stub / zstd | stub / below | stub / plain | stolen |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def fill(bench: Bench) -> None:
    """Each file as a stub, and once more as a plain one."""
    sources = {file: bench.volume.parent / file for file in FILES}
    for file, write in FILES.items():
        write(sources[file], bench.bytes)
        shutil.copyfile(sources[file], bench.data / file)
        bench.optimize()
    for file, source in sources.items():
        source.rename(bench.data / f"{file}.plain")


@dataclass(frozen=True, slots=True)
class Turn:
    """MB/s, of one file."""

    file: str
    stub: float
    zstd: float
    below: float
    plain: float
    stolen: float


def turn(bench: Bench, file: str, number: int) -> Turn:
    global _payloads
    values: dict[str, float] = {}
    _payloads = payloads_of(bench.volume, file)

    def through_mount(name: str) -> float:
        bench.own.start()
        try:
            return read_mbs(bench.own.root / name)
        finally:
            bench.own.stop()

    def stub() -> float:
        bench.read_store(bench.data)
        return through_mount(file)

    def below() -> float:
        read_mbs(bench.data / f"{file}.plain")
        return read_mbs(bench.data / f"{file}.plain")

    steps: list[tuple[str, Callable[[], float]]] = [
        ("stub", stub),
        ("zstd", decode_all_mbs),
        ("below", below),
        ("plain", lambda: through_mount(f"{file}.plain")),
    ]
    ticks = processor_ticks()
    for name, step in steps if number % 2 == 0 else reversed(steps):
        os.sync()
        values[name] = step()
    return Turn(file, **values, stolen=stolen_since(ticks))


def typical(turns: list[Turn]) -> Turn:
    """The median of each figure, of the turns that the host has not disturbed, if there are any."""
    calm = [one for one in turns if one.stolen <= STOLEN_MAX] or turns
    return Turn(
        turns[0].file,
        *(
            statistics.median(getattr(one, name) for one in calm)
            for name in ("stub", "zstd", "below", "plain", "stolen")
        ),
    )


def show(one: Turn) -> str:
    return (
        f"| {one.file} | {one.stub:,.0f} | {one.zstd:,.0f} | {one.below:,.0f} | {one.plain:,.0f} |"
        f" {one.stub / one.zstd:.2f} | {one.stub / one.below:.2f} | {one.stub / one.plain:.2f} |"
        f" {one.stolen:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", default="/var/tmp", type=Path)
    parser.add_argument("--mib", default=256, type=int)
    parser.add_argument("--turns", default=7, type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory(prefix="dedupd-bench-", dir=options.directory) as base:
        bench = Bench(Path(base), options.mib, options.turns, None)
        fill(bench)
        for number in range(options.turns):
            for file in FILES:
                turns.append(turn(bench, file, number))
                print(show(turns[-1]), file=sys.stderr, flush=True)
    print(HEADER)
    for file in FILES:
        print(show(typical([one for one in turns if one.file == file])))
    keep([asdict(one) for one in turns], options.json)


if __name__ == "__main__":
    main()
