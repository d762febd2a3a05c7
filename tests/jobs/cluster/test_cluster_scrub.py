"""Damage in a cluster is found by any host, and repaired by any that has the bytes."""

import os
import shutil
from pathlib import Path

import pytest

from dedupd_core import failpoint
from dedupd_core.errors import DamagedChunk
from dedupd_core.format.cluster.objects import ChunkState, chunk_object
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.damage import DamageList
from dedupd_core.rados.upkeep.store_status import status_of
from tests.support.cluster_lab import ClusterLab, cluster_lab
from tests.support.lab import noise
from tests.support.rados_hosts import Site

pytestmark = pytest.mark.root
CONTENT = noise(300_000, 1)


def flip(site: Site, here: ClusterLab, name: str, ordinal: int = 0) -> bytes:
    """Damage the stored content of a chunk of a file; returns its fingerprint."""
    recipe = site.store.recipes.read(here.version(name))
    assert recipe is not None
    fingerprint = recipe.fingerprints[ordinal]
    oid = chunk_object(fingerprint)
    frame = bytearray(site.cluster.read(oid) or b"")
    frame[-1] ^= 1
    change = AtomicChange("rados.chunk-created", oid, data=bytes(frame))
    assert site.cluster.apply(change) is Outcome.DONE
    return fingerprint


def forget_cache(here: ClusterLab) -> None:
    shutil.rmtree(here.lab.base / "cluster-cache", ignore_errors=True)


def listed(site: Site) -> set[bytes]:
    return {one.fingerprint for one in DamageList(site.cluster).all()}


def test_a_chunk_comes_back_from_the_cache_of_another_host(site: Site, tmp_path: Path) -> None:
    with (
        cluster_lab(tmp_path / "one", site) as one,
        cluster_lab(tmp_path / "two", site) as two,
    ):
        for here in (one, two):
            here.lab.put("file", CONTENT)
            here.optimize()
        assert two.lab.read("file") == CONTENT  # its cache has all of it now
        forget_cache(one)
        fingerprint = flip(site, one, "file")
        with pytest.raises(DamagedChunk):
            one.lab.read("file")
        assert listed(site) == {fingerprint}
        assert status_of(site.store).damaged == 1
        assert one.scrub().left == 1
        assert "scrub" in status_of(site.store).lines[-1]
        report = two.scrub()
        assert (report.repaired, report.left) == ({"from the cache": 1}, 0)
        assert one.lab.read("file") == CONTENT
        assert listed(site) == set() and status_of(site.store).total.repaired == 1
        site.assert_whole()


def test_a_chunk_comes_back_from_a_plain_file_of_another_host(site: Site, tmp_path: Path) -> None:
    with (
        cluster_lab(tmp_path / "one", site) as one,
        cluster_lab(tmp_path / "two", site) as two,
    ):
        one.lab.put("file", CONTENT)
        one.optimize()
        two.lab.put("other", noise(50_000, 9))
        fingerprint = flip(site, one, "file")
        # Nobody has read it: found by its fingerprint.
        report = one.scrub(share=1.0)
        assert report.chunks > 20 and report.read_bytes > 290_000
        assert (report.damaged, report.left) == (1, 1)
        assert two.scrub().left == 1
        (known,) = DamageList(site.cluster).all()
        assert len(known.searched) == 2 and known.fingerprint == fingerprint
        with cluster_lab(tmp_path / "three", site) as three:
            three.lab.put("plain", noise(5_000, 8))
            three.lab.put("copy", CONTENT)
            report = three.scrub()
        assert (report.repaired, report.left) == ({"from plain files": 1}, 0)
        assert one.lab.read("file") == CONTENT
        assert DamageList(site.cluster).all() == []
        site.assert_whole()


def test_what_the_cluster_has_repaired_itself_is_right_again(site: Site, tmp_path: Path) -> None:
    with cluster_lab(tmp_path / "one", site) as one:
        one.lab.put("file", CONTENT)
        one.optimize()
        fingerprint = flip(site, one, "file")
        assert one.scrub(share=1.0).left == 1
        frame = bytearray(site.cluster.read(chunk_object(fingerprint)) or b"")
        frame[-1] ^= 1
        site.cluster.apply(
            AtomicChange("rados.chunk-created", chunk_object(fingerprint), data=bytes(frame))
        )
        assert one.scrub().repaired == {"right after all": 1}
        assert site.cluster.value(chunk_object(fingerprint), "S") == ChunkState.VALID.value
        assert one.lab.read("file") == CONTENT


def test_each_run_looks_at_another_part(site: Site, tmp_path: Path) -> None:
    with cluster_lab(tmp_path / "one", site) as one:
        one.lab.put("file", CONTENT)
        one.optimize()
        chunks = site.audit().chunks
        read = [one.scrub(share=0.25).chunks for _ in range(4)]
        assert max(read) < chunks and sum(read) > 0


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("gap", ["damage-listed", "chunk-marked", "chunk-mended", "damage-dropped"])
def test_a_crash_between_list_and_flag_loses_no_damage(
    site: Site, tmp_path: Path, gap: str
) -> None:
    def hook(name: str) -> None:
        if name == f"rados.{gap}":
            raise Crash

    with cluster_lab(tmp_path / "one", site) as one:
        one.lab.put("file", CONTENT)
        one.optimize()
        flip(site, one, "file")
        one.lab.put("plain", CONTENT)
        os.utime(one.lab.data / "plain")
        failpoint.hook = hook
        try:
            with pytest.raises(Crash):
                one.scrub(share=1.0)
        finally:
            failpoint.hook = None
        assert one.scrub(share=1.0).left == 0
        assert one.scrub().damaged == 0
        assert one.lab.read("file") == CONTENT
        site.assert_whole()
