"""What a store in a Ceph cluster is asked for, by the counters of its OSDs: 10 GB that two hosts
store, and a collection among a million chunks. What the hundred-thousandth reference of a chunk
takes beside the first.

    python -m benchmarks.cluster_scale [--gigabytes N] [--chunks N] [--references N] [--output FILE]

A small cluster is brought up on this machine, as the tests do, with its OSDs in memory. Two hosts
store the same files, of chunks of 80 KiB that compress well. Then, in a store of its own, a
thousand chunks are let go and collected among ten thousand small ones, and again among a million.
The times of references are medians of hundreds, one after the other, in turns of few.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import keep, machine
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.chunks import PIN_SAMPLE, TAGS_MAX, NewChunk
from dedupd_core.rados.garbage import Collection
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import OSDS, MiniCeph, mini_ceph
from tests.support.rados_hosts import Host, Site, new_chunk

CHUNK_BYTES = 80 << 10
SMALL_BYTES = 1000
FILE_CHUNKS = 64
BATCH_FILES = 16
FEW_CHUNKS = 10_240
GONE_FILES = 16
"""Of 64 chunks each."""
BATCH_REFERENCES = 1000
TURNS, TURN_REFERENCES = 30, 30

COUNTERS = ("op", "op_r", "op_w", "op_rw", "op_in_bytes", "op_out_bytes", "subop_w")
"""Of an OSD: what clients ask for, and what other OSDs do for their replicas."""

CHANGES_A_FILE = 4
"""In the model: intent, recipe, commit and end; each change of an object that several files of a
batch have in common counts once."""


class Counters:
    """What the OSDs have done since the last look."""

    def __init__(self, ceph: MiniCeph) -> None:
        self._ceph = ceph
        self._before = self._all()

    def _all(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for number in range(OSDS):
            found = self._ceph.ask_osd(number, "perf dump")["osd"]
            total.update({name: found[name] for name in COUNTERS})
        return total

    def look(self) -> dict[str, int]:
        now = self._all()
        since = {name: now[name] - self._before[name] for name in COUNTERS}
        self._before = self._all()
        return since


@contextmanager
def counted(host: Host) -> Iterator[Counter[str]]:
    """The operations of a host, as it counts them itself, by kind."""
    kinds: Counter[str] = Counter()
    clusters = (host.store.cluster, host.writer.cluster)
    for cluster in clusters:
        cluster.gate = lambda operation: kinds.update([operation])
    yield kinds
    for cluster in clusters:
        cluster.gate = None


def content_of(file: int, chunk_bytes: int) -> bytes:
    """Chunks that no other file has, and that take little: OSDs are in memory."""
    seeds = (hashlib.blake2b(b"%d.%d" % (file, n)).digest() for n in range(FILE_CHUNKS))
    return b"".join((seed * (chunk_bytes // len(seed) + 1))[:chunk_bytes] for seed in seeds)


def put(host: Host, files: range, chunk_bytes: int, *, is_expected: bool = False) -> None:
    for first in range(files.start, files.stop, BATCH_FILES):
        batch = range(first, min(first + BATCH_FILES, files.stop))
        contents = {file + 1: content_of(file, chunk_bytes) for file in batch}
        host.put(contents, is_expected=is_expected)


def measured(act: Callable[[], object], host: Host, counters: Counters) -> dict[str, Any]:
    counters.look()
    begun_s = time.monotonic()
    with counted(host) as kinds:
        act()
    seconds = time.monotonic() - begun_s
    return {"seconds": seconds, "osds": counters.look(), "client": dict(kinds)}


def ingest(ceph: MiniCeph, address: StoreAddress, work: Path, gigabytes: float) -> dict[str, Any]:
    """Two hosts store the same files, one after the other."""
    files = range(round(gigabytes * 1e9 / CHUNK_BYTES / FILE_CHUNKS))
    chunks = len(files) * FILE_CHUNKS
    counters, rows = Counters(ceph), []
    with Site(RadosStore.create(address), work) as site:
        for name in ("a", "b"):
            with site.host(name, operations_at_once=16, piece_bytes=CHUNK_BYTES) as host:

                def store(host: Host = host, is_expected: bool = name == "b") -> None:
                    put(host, files, CHUNK_BYTES, is_expected=is_expected)

                rows.append({"host": name, **measured(store, host, counters)})
        names = Counter(name[:2] for name in site.cluster.names())
    model = chunks + CHANGES_A_FILE * len(files)
    return {
        "raw_gb": chunks * CHUNK_BYTES / 1e9,
        "files": len(files),
        "chunks": chunks,
        "objects": dict(names),
        "operations_by_the_model": model,
        "hosts": [{**row, "of_the_model": row["osds"]["op"] / model} for row in rows],
    }


def collection(ceph: MiniCeph, address: StoreAddress, work: Path, chunks: int) -> dict[str, Any]:
    """A thousand chunks are let go and collected, in a small store and in a large one."""
    counters, rows, first = Counters(ceph), [], 0
    with (
        Site(RadosStore.create(address), work) as site,
        site.host("a", operations_at_once=16, piece_bytes=SMALL_BYTES) as host,
    ):
        for count in (FEW_CHUNKS, chunks):
            last = count // FILE_CHUNKS
            begun_s = time.monotonic()
            put(host, range(first, last), SMALL_BYTES)
            filled_s = time.monotonic() - begun_s
            gone = range(last - GONE_FILES, last)
            letting = measured(partial(host.delete, [n + 1 for n in gone]), host, counters)
            # By the same connection, so that its operations are counted.
            run = Collection(host.store.chunks, 0.0)
            collecting = measured(run.run, host, counters)
            assert run.removed == GONE_FILES * FILE_CHUNKS
            rows.append(
                {
                    "chunks": count,
                    "filled_s": filled_s,
                    "letting_go": letting,
                    "collecting": collecting,
                }
            )
            first = last
    few, many = (row["collecting"]["osds"]["op"] for row in rows)  # type: ignore[index]
    return {"gone_chunks": GONE_FILES * FILE_CHUNKS, "rows": rows, "many_of_few": many / few}


def references(ceph: MiniCeph, address: StoreAddress, work: Path, count: int) -> dict[str, Any]:
    """Seconds for one reference of a chunk: of few files, of ``count``, of one that is pinned."""
    few, many, pinned = (new_chunk(raw, is_expected=True) for raw in (b"few", b"many", b"pinned"))
    taken_s: dict[str, list[float]] = {}
    number = 0
    with Site(RadosStore.create(address), work) as site:
        chunks = site.store.chunks

        def refer(chunk: NewChunk, times: int) -> None:
            nonlocal number
            chunks.put(chunk, [f"{n:032x}" for n in range(number, number + times)])
            number += times

        for chunk in (few, many, pinned):
            refer(chunk, 1)
        chunks.tags_max, chunks.pin_sample = 0, 1
        refer(pinned, 1)
        chunks.tags_max, chunks.pin_sample = TAGS_MAX, PIN_SAMPLE * TAGS_MAX
        for _ in range(0, count, BATCH_REFERENCES):
            refer(many, BATCH_REFERENCES)
        for _ in range(TURNS):
            for name, chunk in (("few", few), ("many", many), ("pinned", pinned)):
                for _ in range(TURN_REFERENCES):
                    begun_s = time.monotonic()
                    refer(chunk, 1)
                    taken_s.setdefault(name, []).append(time.monotonic() - begun_s)
    medians = {name: median(values) for name, values in taken_s.items()}
    return {
        "references": count,
        "seconds": medians,
        "many_of_few": medians["many"] / medians["few"],
        "pinned_of_few": medians["pinned"] / medians["few"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--references", type=int, default=TAGS_MAX)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(Path.cwd())}
    with tempfile.TemporaryDirectory() as name:
        parts: dict[str, Callable[..., dict[str, Any]]] = {}
        if options.gigabytes:
            parts["ingest"] = ingest
        if options.chunks:
            parts["collection"] = collection
        if options.references:
            parts["references"] = references
        sizes = {
            "ingest": options.gigabytes,
            "collection": options.chunks,
            "references": options.references,
        }
        for part, act in parts.items():
            work = Path(name) / part
            work.mkdir()
            with mini_ceph(work / "ceph", sockets=True) as ceph:
                found[part] = act(ceph, ceph.address(part, 120), work, sizes[part])
    print(json.dumps(found, indent=2))
    keep(found, options.output)


if __name__ == "__main__":
    main()
