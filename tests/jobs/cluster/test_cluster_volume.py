"""A volume whose chunks are in a cluster: files become stubs, are read, change, and go."""

import os
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from dedupd_core.config.policy import RunLimits
from dedupd_core.errors import DamagedRecipe, UsageError
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.format.store_kinds import BINDING_FILE
from jobs.backup.receiver import Receiver, ReplicaVolume
from jobs.backup.sender import Sender
from jobs.check.verify import Verify
from jobs.cluster.session import StubVersions
from jobs.frame.run import JobRun
from jobs.usage.volume_figures import VolumeFigures, volume_figures
from tests.support.cluster_lab import cluster_lab
from tests.support.lab import Lab, new_lab, noise, prose
from tests.support.rados_hosts import Site

pytestmark = pytest.mark.root


def sparse(path: Path, length: int, at: int, content: bytes) -> None:
    with path.open("wb") as file:
        file.truncate(length)
        file.seek(at)
        file.write(content)


def test_files_become_stubs_and_read_as_before(site: Site, tmp_path: Path) -> None:
    contents = {"a": noise(300_000, 1), "b": prose(200_000), "c": noise(300_000, 1), "d": b"x"}
    with cluster_lab(tmp_path, site) as here:
        for name, content in contents.items():
            here.lab.put(name, content)
        sparse(here.lab.put("sparse", b""), 10_000_000, 5_000_000, noise(100_000, 3))
        report = here.optimize()
        assert report.files_optimized == 5 and report.freed_bytes > 800_000
        assert report.arrivals["created"] == site.assert_whole().chunks
        for name, content in contents.items():
            assert here.lab.read(name) == content
            assert (here.lab.base / "data" / name).stat().st_blocks == 0
        read = here.lab.read("sparse")
        assert len(read) == 10_000_000 and read[5_000_000:5_100_000] == noise(100_000, 3)
        assert read.count(0) > 9_890_000
        assert here.optimize().files_optimized == 0


def test_what_is_sent_is_received_by_a_volume_of_its_own_store(site: Site, tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    with cluster_lab(tmp_path / "here", site) as here:
        contents = {"a": noise(300_000, 1), "b": prose(200_000), "c": noise(300_000, 1)}
        for name, content in contents.items():
            here.lab.put(name, content)
        here.optimize()
        there = new_lab(tmp_path / "there" / "volume", "4k")
        stream = tmp_path / "stream"
        with stream.open("wb") as file, here.lab.opened() as volume:
            Sender(volume, JobRun("send"), file.fileno(), None).run()
        with (
            stream.open("rb") as file,
            ReplicaVolume.open(str(there.root)) as volume,
            volume.job_lock(),
        ):
            Receiver(volume, JobRun("receive"), file.fileno(), None).run()
        for name, content in contents.items():
            assert there.read(name) == content
        there.verify_clean()
        figures = volume_figures_of(here.lab)
        assert figures.saved_bytes > 700_000 and figures.messages == []


def volume_figures_of(lab: Lab) -> VolumeFigures:
    with lab.opened() as volume:
        return volume_figures(volume)


def test_volumes_share_what_is_equal(site: Site, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with cluster_lab(tmp_path / "one", site) as one, cluster_lab(tmp_path / "two", site) as two:
        one.lab.put("file", noise(400_000, 7))
        two.lab.put("other", noise(400_000, 7))
        assert one.optimize().arrivals.keys() == {"created"}
        assert two.optimize().arrivals.keys() == {"referenced"}
        (one.lab.base / "data" / "file").unlink()
        assert one.collect().files_forgotten == 1
        assert two.lab.read("other") == noise(400_000, 7)
        (two.lab.base / "data" / "other").unlink()
        two.collect()
        assert site.assert_whole().chunks == 0


def test_a_stub_that_was_written_to_is_stored_again(site: Site, tmp_path: Path) -> None:
    content = bytearray(noise(300_000, 2))
    with cluster_lab(tmp_path, site) as here:
        here.lab.put("file", content)
        here.optimize()
        first = here.version("file")
        here.lab.let_write("file")
        with (here.lab.base / "data" / "file").open("r+b") as file:
            os.pwrite(file.fileno(), b"n" * 4096, 8192)
        content[8192 : 8192 + 4096] = b"n" * 4096
        assert here.lab.read("file") == content
        os.utime(here.lab.base / "data" / "file", ns=(1, 1))
        report = here.optimize()
        assert report.files_optimized == 1 and report.arrivals["referenced"] > 20
        assert here.version("file") != first
        assert here.lab.read("file") == content
        assert site.store.recipes.read(first) is None
        here.collect()
        site.assert_whole()


def test_what_is_made_plain_is_forgotten(site: Site, tmp_path: Path) -> None:
    with cluster_lab(tmp_path, site) as here:
        here.lab.put("file", noise(200_000, 4))
        here.optimize()
        here.lab.unoptimize()
        assert here.lab.stub("file") is None
        assert (here.lab.base / "data" / "file").read_bytes() == noise(200_000, 4)
        assert here.collect(all_garbage=False).chunks_waiting > 10
        here.collect()
        assert site.assert_whole().chunks == 0
        site.store.leave(UUID(here.uuid).hex)


def test_a_renamed_file_is_not_gone_and_a_new_one_of_its_number_is_another(
    site: Site, tmp_path: Path
) -> None:
    with cluster_lab(tmp_path, site) as here:
        data = here.lab.base / "data"
        here.lab.put("file", noise(100_000, 5))
        here.optimize()
        (data / "folder").mkdir()
        (data / "file").rename(data / "folder" / "other")
        assert here.collect().files_forgotten == 0
        assert here.lab.read("folder/other") == noise(100_000, 5)
        with (data / "folder" / "other").open("rb"):
            (data / "folder" / "other").unlink()
            assert here.collect().files_forgotten == 0  # it is still open
        inode = 0
        for number in range(50):
            inode = here.lab.put(f"new{number}", b"plain").stat().st_ino
        assert inode and here.collect().files_forgotten == 1
        assert site.assert_whole().chunks == 0


def test_a_stub_older_than_the_store_fails(site: Site, tmp_path: Path) -> None:
    """As one that an older backup of the tree brings back: never other bytes."""
    with cluster_lab(tmp_path, site) as here:
        here.lab.put("file", noise(100_000, 5))
        here.optimize()
        host, _ = site.store.writer(UUID(here.uuid).hex, None, is_holder_dead=lambda state: True)
        with host, here.lab.opened() as volume:
            stubs = StubVersions(volume)
            ((file, versions),) = host.table.files()
            assert stubs.settle(file) == versions.new == here.version("file")
            assert stubs.settle(FileId(file.inode, file.generation + 1)) is None
            host.delete([(file, versions.new)])
        shutil.rmtree(here.lab.base / "cluster-cache")
        with pytest.raises(DamagedRecipe, match="does not have"):
            here.lab.read("file")


def test_jobs_of_a_local_store_refuse(site: Site, tmp_path: Path) -> None:
    with cluster_lab(tmp_path, site) as here, here.lab.opened() as volume:
        with pytest.raises(UsageError, match="has nothing to do"):
            Verify(volume, JobRun("verify"))
        assert volume.limits == RunLimits()
        assert (here.lab.base / BINDING_FILE.decode()).exists()
