"""What is asked of a store by its kind, and not by its name."""

from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.address import StoreBinding
from dedupd_core.format.store_kinds import BINDING_FILE, CLUSTER, OWN, SHARED
from dedupd_core.stores.registry import kind_at
from jobs.check.verify import Verify
from jobs.frame.run import JobRun
from tests.support.lab import Lab, new_lab
from tests.support.shared import SharedLab


def bound(path: Path) -> Lab:
    """A volume on a store in a cluster that no program has reached yet."""
    lab = new_lab(path)
    binding = StoreBinding("rados:pool/name", "9d0ed1b6-9c1f-4a3f-8d4c-000000000000", 0)
    (lab.base / BINDING_FILE.decode()).write_bytes(binding.to_json())
    return lab


def test_the_kind_is_told_by_what_the_volume_has(tmp_path: Path) -> None:
    member = SharedLab(tmp_path).volume("member")
    found = [
        kind_at(str(lab.base)) for lab in (new_lab(tmp_path / "own"), member, bound(tmp_path / "b"))
    ]
    assert found == [OWN, SHARED, CLUSTER]


def test_the_store_of_a_volume_says_its_kind_and_its_place(tmp_path: Path) -> None:
    shared = SharedLab(tmp_path)
    lab = new_lab(tmp_path / "own")
    with lab.opened() as volume:
        assert (volume.chunk_store.kind, volume.chunk_store.where) == (OWN, str(lab.root))
        assert volume.chunk_store is volume.store
    with shared.volume("member").opened() as volume, shared.opened() as directory:
        assert (volume.chunk_store.kind, volume.chunk_store.where) == (SHARED, directory.path)
    with bound(tmp_path / "bound").opened() as volume:
        assert (volume.chunk_store.kind, volume.chunk_store.where) == (CLUSTER, "rados:pool/name")
        assert volume.chunk_store is volume.chunk_store  # it is opened once


def test_a_job_on_containers_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with (
        bound(tmp_path / "bound").opened() as volume,
        volume.job_lock(),
        pytest.raises(UsageError, match=r"are in rados:pool/name, where verify has nothing to do"),
    ):
        Verify(volume, JobRun("verify"))
