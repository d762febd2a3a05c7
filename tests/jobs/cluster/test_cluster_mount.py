"""A mounted volume whose chunks are in a cluster, as its users see it."""

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.format.store_kinds import BINDING_FILE
from dedupd_core.rados.reading.volume_store import bind, binding_at
from dedupd_core.system.disk import Disk
from jobs.cluster.gc import ClusterGc
from jobs.cluster.optimize import ClusterOptimize
from jobs.frame.run import JobRun
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.rados_hosts import Site
from tests.support.rights import WRITING, assert_bounded

pytestmark = pytest.mark.root


def bind_lab(lab: MountedLab, site: Site, cache_bytes: int = 1 << 20) -> None:
    lab.unmount()
    with lab.opened() as volume:
        uuid = volume.parameters.uuid
        bind(volume.base_fd, str(lab.root), uuid, site.store, cache_bytes, Disk())
    lab.mount()


def optimize(lab: MountedLab) -> int:
    with lab.opened() as volume, volume.job_lock():
        report = ClusterOptimize(volume, JobRun("optimize")).run()
    assert report.messages == []
    return report.files_optimized


def test_users_read_and_write_what_is_in_the_cluster(site: Site, tmp_path: Path) -> None:
    content = bytearray(noise(3_000_000, 1))
    with mounted_lab(tmp_path) as lab:
        bind_lab(lab, site)
        (lab.view / "file").write_bytes(content)
        (lab.view / "small").write_bytes(b"small")
        assert optimize(lab) == 2
        assert (lab.view / "file").read_bytes() == content
        assert (lab.view / "small").read_bytes() == b"small"
        assert (lab.data / "file").stat().st_blocks == 0
        assert_bounded(lab.pid, WRITING)  # with the threads of Ceph
        with (lab.view / "file").open("r+b") as file:
            os.pwrite(file.fileno(), b"new" * 1000, 100_000)
            content[100_000:103_000] = b"new" * 1000
        assert (lab.view / "file").read_bytes() == content
        lab.unmount()
        lab.mount(cache_bytes=1 << 16)
        assert (lab.view / "file").read_bytes() == content
        assert optimize(lab) == 1
        assert (lab.view / "file").read_bytes() == content
        (lab.view / "file").rename(lab.view / "other")
        (lab.view / "small").unlink()
        with lab.opened() as volume, volume.job_lock():
            report = ClusterGc(volume, JobRun("gc"), all_garbage=True).run()
        assert report.messages == []
        assert (lab.view / "other").read_bytes() == content
        site.assert_whole()
        lab.unoptimize()
        assert (lab.view / "other").read_bytes() == content
        assert lab.stub("other") is None


def test_a_copy_outlives_the_file_that_it_was_made_of(site: Site, tmp_path: Path) -> None:
    """A version is forgotten with its file, so no other file may have it."""
    content = noise(300_000, 2)
    with mounted_lab(tmp_path) as lab:
        bind_lab(lab, site)
        (lab.view / "file").write_bytes(content)
        assert optimize(lab) == 1
        with (lab.view / "file").open("rb") as source, (lab.view / "copy").open("wb") as copy:
            while os.copy_file_range(source.fileno(), copy.fileno(), 1 << 20):
                pass
        (lab.view / "file").unlink()
        with lab.opened() as volume, volume.job_lock():
            assert ClusterGc(volume, JobRun("gc"), all_garbage=True).run().files_forgotten == 1
        lab.unmount()
        lab.mount()
        assert (lab.view / "copy").read_bytes() == content
        site.assert_whole()


@pytest.mark.slow
def test_a_cluster_that_is_gone_is_an_error_and_the_mount_lives_on(
    site: Site, tmp_path: Path
) -> None:
    content = noise(500_000, 1)
    with mounted_lab(tmp_path) as lab:
        bind_lab(lab, site)
        for name in ("file", "other"):
            (lab.view / name).write_bytes(content if name == "file" else content[::-1])
        (lab.view / "plain").write_bytes(b"plain")
        assert optimize(lab) >= 2
        lab.unmount()
        lab.mount()  # so that it is not read from the pages of the kernel
        assert (lab.view / "other").read_bytes() == content[::-1]
        lab.unmount()
        binding = redirect(lab, tmp_path)
        lab.mount()
        with pytest.raises(OSError) as caught:
            (lab.view / "file").read_bytes()
        assert caught.value.errno == errno.EIO
        # What was read before is on this host's disk.
        assert (lab.view / "other").read_bytes() == content[::-1]
        (lab.view / "new").write_bytes(b"goes on")
        assert (lab.view / "new").read_bytes() == b"goes on"
        lab.unmount()
        (lab.base / BINDING_FILE.decode()).write_bytes(binding)
        lab.mount()
        assert (lab.view / "file").read_bytes() == content


def redirect(lab: MountedLab, directory: Path) -> bytes:
    """Let the volume look for its store where nobody answers; returns what was there."""
    with lab.opened() as volume:
        found = binding_at(volume.base_fd, "")
    before = (lab.base / BINDING_FILE.decode()).read_bytes()
    conf = re.search(r"conf=([^&]*)", found.address)
    assert conf is not None
    text = Path(conf[1]).read_text()
    nobody = directory / "nobody.conf"
    nobody.write_text(re.sub(r"mon host = .*", "mon host = [v2:127.0.0.1:9,v1:127.0.0.1:10]", text))
    address = found.address.replace(conf[1], str(nobody)) + "&timeout=1s"
    after = replace(found, address=address)
    (lab.base / BINDING_FILE.decode()).write_bytes(after.to_json())
    return before
