"""Stubs of a volume in a cluster, which native code reads once Python has opened the store."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.format.cluster.objects import chunk_object
from dedupd_core.format.store_kinds import BINDING_FILE
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.reading.volume_store import CACHE_DIR, binding_at
from dedupd_core.rados.store import RadosStore
from tests.fuse_stub.test_line import handed_over, wait_for
from tests.jobs.cluster.test_cluster_mount import bind_lab, optimize
from tests.support.ceph import MiniCeph, mini_ceph
from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.rados_hosts import Site

pytestmark = pytest.mark.root

LARGE = noise(3_000_000, 1)
TEXT = prose(600_000)
MEMORY_BYTES = 1 << 16
"""Of a mount that keeps next to nothing in memory."""


@contextmanager
def reading_lab(site: Site, directory: Path) -> Iterator[MountedLab]:
    """With a large stub, one that compresses, one with a hole and a small one."""
    with mounted_lab(directory) as lab:
        bind_lab(lab, site, 64 << 20)
        (lab.view / "large").write_bytes(LARGE)
        (lab.view / "text").write_bytes(TEXT)
        (lab.view / "small").write_bytes(b"small")
        with (lab.view / "sparse").open("wb") as file:
            file.write(LARGE[:200_000])
            file.seek(1_000_000)
            file.write(LARGE[200_000:400_000])
            file.truncate(2_000_000)
        assert optimize(lab) == 4
        lab.unmount()
        yield lab


SPARSE = LARGE[:200_000] + bytes(800_000) + LARGE[200_000:400_000] + bytes(800_000)
CONTENTS = {"large": LARGE, "text": TEXT, "small": b"small", "sparse": SPARSE}


def read_anew(path: Path) -> bytes:
    """The content of a file, past the kernel's pages."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.readall()


def forget_disk(lab: MountedLab) -> None:
    shutil.rmtree(lab.base / CACHE_DIR.decode(), ignore_errors=True)


@pytest.mark.parametrize("memory_bytes", [MEMORY_BYTES, 64 << 20])
def test_native_code_reads_what_python_has_stored(
    site: Site, tmp_path: Path, memory_bytes: int
) -> None:
    with reading_lab(site, tmp_path) as lab:
        for _ in range(2):  # with nothing on this host's disk, and with all
            lab.mount(memory_bytes)
            (lab.view / "small").read_bytes()  # by Python, which opens the store
            for name in ("large", "text", "sparse"):
                reads = partial(read_anew, lab.view / name)
                assert handed_over(lab, reads) == 0
                assert read_anew(lab.view / name) == CONTENTS[name]
            wait_for(lambda: handed_over(lab, lambda: read_anew(lab.view / "small")) == 0)
            assert (lab.view / "small").read_bytes() == b"small"
            lab.unmount()
        assert (lab.base / CACHE_DIR.decode()).exists()


def test_parts_that_are_read_in_any_order_are_right(site: Site, tmp_path: Path) -> None:
    with reading_lab(site, tmp_path) as lab:
        lab.mount(MEMORY_BYTES)
        for name, content in CONTENTS.items():
            fd = os.open(lab.view / name, os.O_RDONLY)
            try:
                for at in (*reversed(range(0, len(content), 90_001)), 0, 5, 4095, 4096):
                    for length in (1, 4096, 130_000):
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                        assert os.pread(fd, length, at) == content[at : at + length]
            finally:
                os.close(fd)


def test_what_users_write_is_read(site: Site, tmp_path: Path) -> None:
    with reading_lab(site, tmp_path) as lab:
        lab.mount(MEMORY_BYTES)
        (lab.view / "small").read_bytes()
        content = bytearray(read_anew(lab.view / "large"))
        with (lab.view / "large").open("r+b", buffering=0) as file:
            for at, data in ((4096, noise(8192, 9)), (1_000_001, b"few"), (2_999_999, b"longer")):
                file.seek(at)
                file.write(data)
                content[at : at + len(data)] = data
                assert read_anew(lab.view / "large") == content
        wait_for(lambda: handed_over(lab, lambda: read_anew(lab.view / "large")) == 0)
        assert read_anew(lab.view / "large") == content
        assert optimize(lab) == 1
        assert read_anew(lab.view / "large") == content


def test_a_damaged_chunk_is_an_error_and_the_rest_is_read(site: Site, tmp_path: Path) -> None:
    with reading_lab(site, tmp_path) as lab:
        stub = lab.stub("large")
        assert stub is not None
        recipe = site.store.recipes.read(stub.digest.hex())
        assert recipe is not None
        entry = recipe.entries[len(recipe.entries) // 2]
        good = site.cluster.read(chunk_object(entry.fingerprint))
        assert good is not None
        oid = chunk_object(entry.fingerprint)
        bad = good[:-1] + bytes([good[-1] ^ 1])
        site.cluster.apply(AtomicChange("rados.chunk-repaired", oid, data=bad))
        forget_disk(lab)
        lab.mount(MEMORY_BYTES)
        (lab.view / "small").read_bytes()
        fd = os.open(lab.view / "large", os.O_RDONLY)
        try:
            with pytest.raises(OSError) as caught:
                os.pread(fd, 10, entry.offset)
            assert caught.value.errno == errno.EIO
            assert os.pread(fd, 4096, 0) == LARGE[:4096]
        finally:
            os.close(fd)
        assert site.cluster.value(oid, "S") == "I"  # it is marked, and listed
        site.cluster.apply(AtomicChange("rados.chunk-repaired", oid, data=good))
        assert read_anew(lab.view / "large") == LARGE


def test_what_lies_on_this_host_and_is_not_right_is_fetched(site: Site, tmp_path: Path) -> None:
    with reading_lab(site, tmp_path) as lab:
        forget_disk(lab)
        lab.mount(MEMORY_BYTES)
        for name, content in CONTENTS.items():
            assert read_anew(lab.view / name) == content
        lab.unmount()
        for path in (lab.base / CACHE_DIR.decode()).glob("*.frames"):
            data = bytearray(path.read_bytes())
            for at in range(100, len(data), 20_000):
                data[at] ^= 4
            path.write_bytes(data)
        lab.mount(MEMORY_BYTES)
        for name, content in CONTENTS.items():
            assert read_anew(lab.view / name) == content


@contextmanager
def resting(ceph: MiniCeph) -> Iterator[None]:
    """No OSD answers."""
    osds = [name for name in ceph.daemons if name.startswith("osd.")]
    try:
        for name in osds:
            ceph.pause_daemon(name)
        yield
    finally:
        for name in osds:
            ceph.go_on(name)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_waited_for_once(tmp_path: Path) -> None:
    """Native code has waited: Python, which tells why, does not wait again."""
    timeout_s = 4
    with mini_ceph(tmp_path / "ceph") as ceph:
        (tmp_path / "lab").mkdir()
        store = RadosStore.create(ceph.address("store"))
        with Site(store, tmp_path) as site, reading_lab(site, tmp_path / "lab") as lab:
            forget_disk(lab)
            with lab.opened() as volume:
                binding = binding_at(volume.base_fd, "")
            path = lab.base / BINDING_FILE.decode()
            address = f"{binding.address}&timeout={timeout_s}s"
            path.write_bytes(replace(binding, address=address, cache_bytes=0).to_json())
            lab.mount(MEMORY_BYTES)
            (lab.view / "small").read_bytes()
            with (lab.view / "large").open("rb", buffering=0) as file:
                assert os.pread(file.fileno(), 10, 0) == LARGE[:10]
                with resting(ceph):
                    begun_s = time.monotonic()
                    with pytest.raises(OSError) as caught:
                        os.pread(file.fileno(), 10, 2_000_000)
                    waited_s = time.monotonic() - begun_s
                assert caught.value.errno == errno.EIO
                assert timeout_s * 0.9 < waited_s < timeout_s * 1.7

                def is_back() -> bool:
                    try:
                        return os.pread(file.fileno(), 10, 2_000_000) == LARGE[2_000_000:2_000_010]
                    except OSError:
                        return False

                wait_for(is_back)
            assert read_anew(lab.view / "large") == LARGE
