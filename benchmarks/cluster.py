"""What operations on a store in a Ceph cluster cost, beside what Ceph's own benchmark gets.

    python -m benchmarks.cluster [--address rados:POOL/NAME?…] [--chunks N] [--rounds N]
        [--output FILE]
    sudo python -m benchmarks.cluster --mount [--megabytes N] [--rounds N] [--work DIRECTORY]
        [--output FILE]

Without an address a small cluster is brought up on this machine, as the tests do: its three OSDs
share the cores with the client, so the ratios say more than the figures. Store and ``rados bench``
write and read objects of the same size, with as many operations in flight, in turns: Ceph's own
benchmark runs before and after each of ours, so what else the machine does meanwhile hits both.

``--mount`` reads a file that does not compress through a mount, from end to end with nothing in any
memory: from the cluster alone, while the cache on this host's disk stores it, and from there.
``rados bench`` reads in turns with it.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import drop_caches, keep, machine, read_through
from dedupd_core import native
from dedupd_core.format.cluster.address import StoreAddress, parse_address
from dedupd_core.format.cluster.objects import FRAME_BYTES, FileId, frame_of
from dedupd_core.rados.chunks import NewChunk
from dedupd_core.rados.cluster.connection import OPERATIONS_AT_ONCE
from dedupd_core.rados.garbage import Collection
from dedupd_core.rados.reading.sources import RECIPE_NUMBER, ClusterChunks
from dedupd_core.rados.reading.volume_store import CACHE_BYTES, CACHE_DIR, bind
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.writer import FileChunk, NewFile, Writer
from dedupd_core.system.disk import Disk
from jobs.cluster.optimize import ClusterOptimize
from jobs.frame.run import JobRun
from tests.support.ceph import mini_ceph
from tests.support.mounts import MountedLab, mounted_lab

CHUNK_BYTES = 80 << 10
FILE_CHUNKS = 64
READERS = 2
TRAIN_CHUNKS = 32
"""Of a reader's turn: 2.5 MB."""


def files_of(count: int, seed: int) -> list[NewFile]:
    """Files of new, incompressible chunks; their frames are made beforehand."""
    chance = random.Random(seed)
    files = []
    for number in range(count // FILE_CHUNKS):
        chunks = []
        for at in range(FILE_CHUNKS):
            raw = chance.randbytes(CHUNK_BYTES)
            own = native.hashing.fingerprint(raw)
            frame = frame_of(raw, own)
            chunk = NewChunk(own, lambda frame=frame: frame)  # type: ignore[misc]
            chunks.append(FileChunk(at * CHUNK_BYTES, CHUNK_BYTES, chunk))
        files.append(NewFile(FileId(number + 1, seed), FILE_CHUNKS * CHUNK_BYTES, chunks))
    return files


def seconds(act: Callable[..., object], *arguments: object) -> float:
    begun_s = time.monotonic()
    act(*arguments)
    return time.monotonic() - begun_s


def ceph_bench(address: StoreAddress, kind: str, count: int) -> float:
    """MB/s that ``rados bench`` gets for as many objects of a chunk's size."""
    command = ["rados", "-c", address.conf, "-n", f"client.{address.user}", "-p", address.pool]
    command += ["-N", f"{address.name}.bench"]
    if address.keyring:
        command += ["--keyring", address.keyring]
    command += ["bench", "60", kind, "-t", str(OPERATIONS_AT_ONCE), "--max-objects", str(count)]
    if kind == "write":
        command += ["-b", str(CHUNK_BYTES + FRAME_BYTES), "--no-cleanup"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Bandwidth \(MB/sec\):\s+([\d.]+)", result.stdout)
    assert found is not None, result.stdout
    return float(found[1]) * (1 << 20) / 1e6


def write_all(writer: Writer, files: list[NewFile], batch: int = 8) -> None:
    for first in range(0, len(files), batch):
        prepared = writer.prepare(files[first : first + batch])
        writer.commit(prepared)
        writer.finish(prepared)


def read_all(store: RadosStore, versions: list[str]) -> int:
    """As a mount reads for a sequential reader, chunks ahead of it, over the ends of files.

    Every chunk is proved by its fingerprint; none is kept.
    """
    chunks = ClusterChunks(lambda: store)
    chunks.connect(store)
    stub_bytes = native.store.StubBytes.of_cluster(chunks.content, native.store.ChunkCache(0))
    file_bytes, train_bytes = FILE_CHUNKS * CHUNK_BYTES, TRAIN_CHUNKS * CHUNK_BYTES

    def read_train(train: tuple[str, int]) -> int:
        version, start = train
        stub = RECIPE_NUMBER, bytes.fromhex(version), False, file_bytes
        found = stub_bytes.read(-1, stub, (), start, start + train_bytes, waits=True)
        assert isinstance(found, bytes)
        return len(found)

    trains = [(version, at) for version in versions for at in range(0, file_bytes, train_bytes)]
    with ThreadPoolExecutor(READERS) as pool:
        read_bytes = sum(pool.map(read_train, trains))
    assert read_bytes == len(versions) * file_bytes
    return read_bytes


def measure(address: StoreAddress, count: int, rounds: int) -> dict[str, Any]:
    """Figures of all rounds, their best and their median."""
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    with RadosStore.create(address) as store:
        store.join("1" * 32, "/bench", host="bench")
        writer, _ = store.writer("1" * 32, None)
        with writer:
            for turn in range(rounds):
                measure_chunks(store, count // 2, turn, note)
                measure_files(store, writer, count, turn, note)
    return {
        "chunk_bytes": CHUNK_BYTES,
        "operations_at_once": OPERATIONS_AT_ONCE,
        **{name: best(name, values) for name, values in rows.items()},
        "medians": {name: median(values) for name, values in rows.items()},
        "rounds": rows,
    }


def measure_chunks(
    store: RadosStore, count: int, turn: int, note: Callable[[str, float], None]
) -> None:
    """Operations on chunks alone: what Ceph's benchmark does, and no more."""
    chunks = [one.chunk for new in files_of(count, turn + 1) for one in new.chunks]
    known = [replace(chunk, is_expected=True) for chunk in chunks]
    each, own = store.cluster.each, store.chunks
    note("create_s", seconds(own.put_all, [(one, ["a" * 32]) for one in chunks]) / count)
    note("refer_s", seconds(own.put_all, [(one, ["b" * 32]) for one in known]) / count)

    def release(chunk: NewChunk) -> None:
        own.drop_references(chunk.fingerprint, ["a" * 32])

    note("release_s", seconds(each, release, chunks) / count)


def measure_files(
    store: RadosStore, writer: Writer, count: int, turn: int, note: Callable[[str, float], None]
) -> None:
    """Whole files, from the intent to the collection."""
    files, table = files_of(count, 100 + turn), writer.table
    megabytes = count * CHUNK_BYTES / 1e6

    def beside(name: str, kind: str, act: Callable[..., object], *arguments: object) -> None:
        before = ceph_bench(store.cluster.address, kind, count)
        own = megabytes / seconds(act, *arguments)
        after = ceph_bench(store.cluster.address, kind, count)
        note(f"{name}_mb_s", own)
        note(f"bench_{name}_mb_s", (before + after) / 2)
        note(f"{name}_ratio", own * 2 / (before + after))

    beside("write", "write", write_all, writer, files)
    versions = [found.new for one in files if (found := table.versions(one.file))]
    beside("read", "seq", read_all, store, versions)
    small = [
        NewFile(FileId(10**6 + at, turn), one.length, [chunk._replace(offset=0)])
        for at, (one, chunk) in enumerate((one, c) for one in files for c in one.chunks[:16])
    ]
    note("small_file_s", seconds(write_all, writer, small, 256) / len(small))
    gone = [(one.file, version) for one, version in zip(files, versions, strict=True)]
    gone += [(one.file, found.new) for one in small if (found := table.versions(one.file))]
    note("delete_chunk_s", seconds(delete, writer, gone) / count)
    note("collect_chunk_s", seconds(Collection(store.chunks, 0).run) / count)


def delete(writer: Writer, gone: list[tuple[FileId, str]]) -> None:
    writer.delete(gone)
    writer.retire()


def read(path: Path) -> float:
    """MB/s of a reader from end to end, with no page of it in memory before."""
    drop_caches()
    begun_s = time.monotonic()
    return read_through(path) / 1e6 / (time.monotonic() - begun_s)


def make_file(path: Path, megabytes: int) -> None:
    with Path("/dev/urandom").open("rb") as noise, path.open("wb") as file:
        for _ in range(megabytes):
            file.write(noise.read(10**6))


def bind_lab(lab: MountedLab, store: RadosStore, cache_bytes: int) -> None:
    with lab.opened() as volume:
        uuid = volume.parameters.uuid
        bind(volume.base_fd, str(lab.root), uuid, store, cache_bytes, Disk())


def measure_mount(
    address: StoreAddress, work: Path, megabytes: int, rounds: int
) -> dict[str, object]:
    """MB/s of a reader from end to end through a mount, and of ``rados bench``."""
    rows: dict[str, list[float]] = {}
    with RadosStore.create(address) as store, mounted_lab(work) as lab:
        lab.unmount()
        bind_lab(lab, store, 0)
        make_file(lab.data / "file", megabytes)
        with lab.opened() as volume, volume.job_lock():
            report = ClusterOptimize(volume, JobRun("optimize")).run()
            assert report.files_optimized == 1, report
        ceph_bench(address, "write", megabytes * 10**6 // CHUNK_BYTES)
        for _ in range(rounds):
            bench = ceph_bench(address, "seq", megabytes * 10**6 // CHUNK_BYTES)
            rows.setdefault("rados bench seq", []).append(bench)
            for name, cache_bytes in (
                ("from the cluster", 0),
                ("first, while the disk takes it up", CACHE_BYTES),
                ("again, from this host's disk", CACHE_BYTES),
            ):
                if name.startswith("first"):
                    shutil.rmtree(lab.base / CACHE_DIR.decode(), ignore_errors=True)
                bind_lab(lab, store, cache_bytes)
                lab.mount()
                # The store is opened for another reader.
                (lab.view / "file").open("rb").read(1)
                rows.setdefault(name, []).append(read(lab.view / "file"))
                lab.unmount()
                subprocess.run(["sync"], check=True)
        kept = sum(one.stat().st_size for one in (lab.base / CACHE_DIR.decode()).iterdir())
    return {
        "megabytes": megabytes,
        "kept_megabytes": kept / 1e6,
        "medians": {name: median(values) for name, values in rows.items()},
        "rounds": rows,
    }


def best(name: str, values: list[float]) -> float:
    return max(values) if name.endswith(("mb_s", "ratio")) else min(values)


def lines(found: dict[str, Any]) -> Iterator[str]:
    for name, what, bench in (
        ("write", "ingest, all new", "rados bench write"),
        ("read", "sequential read", "rados bench seq"),
    ):
        own, other, ratio = (
            row(found["rounds"][key])
            for key in (f"{name}_mb_s", f"bench_{name}_mb_s", f"{name}_ratio")
        )
        yield f"{what}  {own} MB/s; {bench} {other} MB/s; ratio of the rounds {ratio}"
    for name, value in found.items():
        if name.endswith("_s") and not name.endswith("mb_s"):
            yield f"{name[:-2]:15}  {value * 1e6:6.0f} µs each, {OPERATIONS_AT_ONCE} in flight"


def row(values: list[float]) -> str:
    """The median, and how far the rounds are apart."""
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--address", help="of a store that is not there yet")
    parser.add_argument("--chunks", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mount", action="store_true", help="measure a reader of a mount instead")
    parser.add_argument("--megabytes", type=int, default=400, help="of the file behind the mount")
    parser.add_argument("--work", help="a directory on the file system of the volume")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.work)))
        if options.address:
            address = parse_address(options.address)
        else:
            cluster = stack.enter_context(mini_ceph(directory / "ceph"))
            address = cluster.address("bench")
        address = replace(address, name=f"{address.name}.{os.getpid()}")
        found: dict[str, Any] = {"machine": machine(directory)}
        if options.mount:
            (directory / "volume").mkdir()
            found |= measure_mount(address, directory / "volume", options.megabytes, options.rounds)
            print(json.dumps(found, indent=2))
        else:
            found |= measure(address, options.chunks, options.rounds)
            print("\n".join(lines(found)))
    keep(found, options.output)


if __name__ == "__main__":
    main()
