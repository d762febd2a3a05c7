"""The index by itself: memory an entry, look-ups and insertions a second, reads from the disk.

Rates are by processor time (user and system) of the calls into the index alone; the clock's time
stands beside it. What else the benchmark does, fingerprints and redirection tables, which are the
container writer's in a real run, is in neither.

Fingerprints are BLAKE3 of a counter; the redirection tables are real files with valid entries, in
containers of 16,384 chunks (1 GiB of 64 KiB chunks). A stream of look-ups is made of runs: with the
given share duplicates, else new. A run of duplicates begins anywhere in the store and goes on
through neighbours, as the chunks of a copied file do; its length is exponential.
With ``--program`` there is also the stream of look-ups of later versions of real trees. The trees
of a program are its versions, in their order. Each tree is walked in the order of its names and cut
as an optimize run cuts it. Programs take turns. The chunks of each version are at a random place in
the store. A small program is repeated until it has as many look-ups as the largest one.

    python -m benchmarks.index DIRECTORY [--index table|bloom] [--chunks N] [--duplicates 0.5]
                               [--program TREE TREE…]…
"""

import argparse
import ctypes
import gc
import json
import os
import random
import shutil
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.domain import FIRST
from dedupd_core.format.ids import make_id
from dedupd_core.format.table_columns import PackedEntries
from dedupd_core.format.volume_parameters import new_parameters
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.choice import make_index, saved_name
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.chunk_index import StoreIndex
from dedupd_core.store.container.container import data_name, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.system.disk import Disk

PRESET = "64k"
VOLUME = bytes(range(16))
CONTAINER_CHUNKS = 1 << 14
UNREAD = PackedEntries(bytes(CONTAINER_CHUNKS * tbl.ENTRY_BYTES), bytes(CONTAINER_CHUNKS))
"""Of a container: the index asks only for their number."""

BATCH = 1 << 12
STREAM_CHUNKS = 1_000_000
RUN_MEANS = (16, 64, 256)
FILE_BYTES_MIN = 32 << 10
"""Smaller files of the trees are skipped."""


def rss_bytes() -> int:
    """Resident memory of this process that no file can give back, without what is free in it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status")


def fingerprints(numbers: "array[int]") -> bytes:
    """The fingerprints of chunks by their numbers; new ones have numbers beyond the store."""
    data = numbers.tobytes()
    return native.hashing.fingerprints(data, array("I", range(8, len(data) + 1, 8)))


class Version(NamedTuple):
    """The chunks of one tree in the order in which they are looked up, by their numbers."""

    first_new: int
    """Numbers from this one on are of chunks that no earlier version has."""
    numbers: "array[int]"


def files(tree: Path) -> Iterator[Path]:
    """Regular files in the order of their names."""
    for directory, names, found in os.walk(tree):
        names.sort()
        for name in sorted(found):
            path = Path(directory) / name
            if not path.is_symlink() and path.stat().st_size >= FILE_BYTES_MIN:
                yield path


def versions(trees: list[Path]) -> list[Version]:
    """The versions of one program."""
    chunker = new_parameters(PRESET, "blake3", "user.dedupd").chunker()
    known: dict[bytes, int] = {}
    made = []
    for tree in trees:
        version = Version(len(known), array("Q"))
        for path in files(tree):
            data = path.read_bytes()
            packed = chunker.process(data, [(0, len(data), True)]).fingerprints
            for at in range(0, len(packed), native.hashing.HASH_BYTES):
                fingerprint = packed[at : at + native.hashing.HASH_BYTES]
                version.numbers.append(known.setdefault(fingerprint, len(known)))
        made.append(version)
    return made


def replay(programs: list[list[Version]], chunks: int, seed: int) -> Iterator["array[int]"]:
    """Chunk numbers of a store of ``chunks``, or beyond it where a chunk is new, without an end."""
    rng = Random(seed)
    new = chunks
    lookups = [sum(len(version.numbers) for version in program[1:]) for program in programs]
    turns = [
        program
        for program, count in zip(programs, lookups, strict=True)
        for _ in range(max(lookups) // count)
    ]
    while True:
        for program in turns:
            firsts = [version.first_new for version in program]
            sizes = [b - a for a, b in pairwise([*firsts, max(program[-1].numbers) + 1])]
            places = [rng.randrange(max(1, chunks - size)) for size in sizes]
            for version in program[1:]:
                stream = array("Q")
                for number in version.numbers:
                    if number < version.first_new:
                        origin = bisect_right(firsts, number) - 1
                        stream.append(places[origin] + number - firsts[origin])
                    else:
                        stream.append(new + number - version.first_new)
                new = max(new, *stream) + 1
                yield stream


def run_lengths(program: list[Version]) -> list[int]:
    """Lengths of the runs of known chunks of later versions that are neighbours in the log."""
    lengths: list[int] = []
    for version in program[1:]:
        expected = None
        for number in version.numbers:
            if number >= version.first_new:
                expected = None
                continue
            if number == expected:
                lengths[-1] += 1
            else:
                lengths.append(1)
            expected = number + 1
    return lengths


class Tables:
    """Writes redirection tables of containers that have nothing in them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ends = array("I", range(BATCH))
        self._ones = array("I", [1]) * BATCH
        self._encoded = native.codec.encode(
            bytes(BATCH), ends, self._ones, level=0, saving_min=0.05,
            header_bytes=fmt.RECORD_HEADER_BYTES, align_bytes=fmt.ALIGN_BYTES,
        )  # fmt: skip

    def append(self, container: int, ordinal: int, packed: bytes) -> None:
        """Entries for a batch of fingerprints."""
        container_header = fmt.FileHeader(fmt.Kind.CHUNKS, container, 1, 0, VOLUME, 0)
        seed = fmt.seed_of(container_header)
        entries = native.store.seal(
            self._encoded, packed, self._ones, self._ones, seed=seed, ordinal=ordinal, offset=0
        )
        header = tbl.TableHeader.of(container_header, 0, 0)
        with open(self._directory / table_name(container).decode(), "ab") as file:
            if ordinal == 0:
                (self._directory / data_name(container).decode()).touch()
                file.write(tbl.encode_header(header))
            file.write(entries)


def container_of(number: int) -> int:
    return number // CONTAINER_CHUNKS + 1


def id_of(number: int) -> int:
    return make_id(container_of(number), number % CONTAINER_CHUNKS)


def recovered(container: int) -> Recovered:
    """What an index wants to know of a container, whose entries it reads itself."""
    header = fmt.FileHeader(fmt.Kind.CHUNKS, container, 1, 0, VOLUME, 0)
    return Recovered(header, 0, UNREAD, False, 0)


def runs(chunks: int, duplicates: float, run_mean: int) -> Iterator[range]:
    """Runs of chunk numbers, without an end."""
    rng = random.Random(run_mean)
    new = chunks
    while True:
        length = max(1, round(rng.expovariate(1 / run_mean)))
        if rng.random() < duplicates:
            start = rng.randrange(chunks)
            yield range(start, min(chunks, start + length))
        else:
            yield range(new, new + length)
            new += length


def batches(stream: Iterator[range] | Iterator["array[int]"]) -> Iterator["array[int]"]:
    """A stream of chunk numbers as an optimize run looks them up, up to a million."""
    batch, made = array("Q"), 0
    for run in stream:
        batch.extend(run)
        while len(batch) >= BATCH:
            yield batch[:BATCH]
            made += BATCH
            if made >= STREAM_CHUNKS:
                return
            del batch[:BATCH]


def fill(index: StoreIndex, tables: Tables, chunks: int) -> dict[str, float]:
    """Insert all chunks as ingest does; the seconds in ``insert``, and insertions for each."""
    cpu_s = wall_s = 0.0
    for first in range(0, chunks, BATCH):
        packed = fingerprints(array("Q", range(first, first + BATCH)))
        ids = range(id_of(first), id_of(first) + BATCH)
        packed_ids = array("Q", ids)
        began, began_cpu = time.perf_counter(), time.process_time()
        index.insert(packed, packed_ids)
        cpu_s += time.process_time() - began_cpu
        wall_s += time.perf_counter() - began
        tables.append(container_of(first), first % CONTAINER_CHUNKS, packed)
    return {"inserts_per_cpu_s": chunks / cpu_s, "inserts_cpu_s": cpu_s, "inserts_wall_s": wall_s}


def look_up(
    index: StoreIndex, stream: Iterator[range] | Iterator["array[int]"], chunks: int
) -> dict[str, float]:
    """Look-ups a second, and reads for each; checks every answer."""
    before, spent, count = index.counters(), 0.0, 0
    for batch in batches(stream):
        packed = fingerprints(batch)
        began = time.process_time()
        found = index.lookup(packed)
        spent += time.process_time() - began
        count += len(batch)
        assert list(found) == [id_of(one) if one < chunks else 0 for one in batch]
    after = index.counters()
    return {
        "lookups_per_s": count / spent,
        "reads_per_lookup": (after.disk_reads - before.disk_reads) / count,
        "false_per_lookup": (after.false_positives - before.false_positives) / count,
        "found": (after.hits - before.hits) / count,
    }


def streams(
    chunks: int, duplicates: float, programs: list[list[Version]]
) -> dict[str, Iterator[range] | Iterator["array[int]"]]:
    """What is looked up, by what it is called in the result."""
    made: dict[str, Iterator[range] | Iterator[array[int]]] = {
        f"runs of {mean}": runs(chunks, duplicates, mean) for mean in RUN_MEANS
    }
    made["new"] = runs(chunks, 0.0, 64)
    if programs:
        made["versions of real trees"] = replay(programs, chunks, seed=1)
    return made


def make(
    choice: IndexChoice, directory: ContainerDirectory, chunks: int
) -> TableIndex | BloomIndex:
    """An index that ``chunks`` entries are about to be loaded into."""
    index = make_index(choice, directory, partition=FIRST, entries=chunks)
    assert isinstance(index, TableIndex | BloomIndex)
    return index


def measure(
    directory: Path,
    choice: IndexChoice,
    chunks: int,
    duplicates: float,
    programs: list[list[Version]],
) -> dict[str, object]:
    """Every figure of one size."""
    directory.mkdir(parents=True)
    chunks = -(-chunks // CONTAINER_CHUNKS) * CONTAINER_CHUNKS
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    containers = ContainerDirectory(fd, fmt.Kind.CHUNKS, VOLUME, Disk())
    asked = streams(chunks, duplicates, programs)
    base = rss_bytes()
    index = make(choice, containers, 0)
    result: dict[str, object] = {"index": choice, "chunks": chunks, "duplicates": duplicates}
    result |= fill(index, Tables(directory), chunks)
    for name, stream in asked.items():
        result[name] = look_up(index, stream, chunks)
    result["rss_bytes_per_chunk"] = (rss_bytes() - base) / chunks
    result["counted_bytes_per_chunk"] = index.counters().memory_bytes / chunks
    if isinstance(index, TableIndex):
        result["load_factor"] = native.testing.load_factor(index._native)
    began = time.process_time()
    index.save()
    result["save_s"] = time.process_time() - began
    file = directory / saved_name(choice).decode()
    result["file_bytes_per_chunk"] = file.stat().st_blocks * 512 / chunks
    del index
    for name in ("restore_s", "scan_s"):
        began = time.process_time()
        index = make(choice, containers, chunks)
        for container in range(1, container_of(chunks - 1) + 1):
            index.load(recovered(container))
        result[name] = time.process_time() - began
        assert len(index) == chunks and index.was_restored == (name == "restore_s")
        result[name.replace("_s", "_rss_bytes_per_chunk")] = (rss_bytes() - base) / chunks
        del index
        file.unlink(missing_ok=True)
    containers.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="must not exist; 64 bytes a chunk go there")
    parser.add_argument("--index", type=IndexChoice, default=IndexChoice.TABLE)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--duplicates", type=float, default=0.5)
    parser.add_argument("--program", type=Path, nargs="+", action="append", default=[])
    options = parser.parse_args()
    programs = [versions(group) for group in options.program]
    try:
        found = measure(
            options.directory, options.index, options.chunks, options.duplicates, programs
        )
        found["lengths of runs of known chunks"] = {
            group[0].name: mean(run_lengths(program))
            for group, program in zip(options.program, programs, strict=True)
        }
        print(json.dumps(found, indent=2))
    finally:
        shutil.rmtree(options.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
