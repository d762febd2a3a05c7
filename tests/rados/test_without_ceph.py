"""A machine without Ceph needs nothing of it, and what is missing is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.cluster import binding
from dedupd_core.rados.store import RadosStore
from tests.support.lab import noise
from tests.support.mounts import mounted_lab

LOADS_NOTHING = """
import sys
from pathlib import Path
import dedupd.cli.main, dedupd_core.rados.store, dedupd_core.volume.volume
import fuse_stub.process, jobs.optimize.optimize_job
sys.exit("rados" in sys.modules or "librados" in Path("/proc/self/maps").read_text())
"""


def test_nothing_of_ceph_is_loaded_before_a_store_is_opened() -> None:
    assert subprocess.run([sys.executable, "-c", LOADS_NOTHING], check=False).returncode == 0


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "PLACES", ())
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "rados", raising=False)
    binding.binding.cache_clear()
    try:
        with pytest.raises(UsageError, match="python3-rados"):
            RadosStore.open(StoreAddress("pool", "name"))
    finally:
        binding.binding.cache_clear()


@pytest.mark.root
def test_the_mount_of_a_local_volume_has_nothing_of_ceph(tmp_path: Path) -> None:
    content = noise(300_000, 1)
    with mounted_lab(tmp_path) as lab:
        (lab.view / "file").write_bytes(content)
        assert lab.optimize().files_optimized == 1
        assert (lab.view / "file").read_bytes() == content
        maps = Path(f"/proc/{lab.pid}/maps").read_text()
        assert "native" in maps and "rados" not in maps and "libceph" not in maps
