"""How fast a file whose chunks are in a Ceph cluster is read through a mount.

    sudo python -m benchmarks.cluster_mount [--megabytes N] [--rounds N] [--work DIRECTORY]

A small cluster is brought up on this machine, as the tests do, so that its OSDs share the cores
with the mount. A file that does not compress is read from end to end with nothing in any memory:
from the cluster alone, while the cache on this host's disk takes it up, and from there; beside what
``rados bench`` reads, in turns.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.cluster import CHUNK_BYTES, ceph_bench
from benchmarks.measure import drop_caches, keep, machine, read_through
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.reading.volume_store import CACHE_BYTES, CACHE_DIR, bind
from dedupd_core.rados.store import RadosStore
from dedupd_core.system.disk import Disk
from jobs.cluster.optimize import ClusterOptimize
from jobs.frame.run import JobRun
from tests.support.ceph import mini_ceph
from tests.support.mounts import MountedLab, mounted_lab


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


def measure(address: StoreAddress, work: Path, megabytes: int, rounds: int) -> dict[str, object]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", help="a directory on the file system of the volume")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.work)))
        address = stack.enter_context(mini_ceph(directory / "ceph")).address("bench")
        (directory / "volume").mkdir()
        found = {
            "machine": machine(directory),
            **measure(address, directory / "volume", options.megabytes, options.rounds),
        }
    print(json.dumps(found, indent=2))
    keep(found, options.output)


if __name__ == "__main__":
    main()
