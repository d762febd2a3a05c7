"""A machine without Ceph needs nothing of it, and what is missing is named."""

import subprocess
import sys

import pytest

from dedupd.errors import UsageError
from dedupd.rados.cluster import binding
from dedupd.rados.cluster.address import StoreAddress
from dedupd.rados.store import RadosStore

LOADS_NOTHING = """
import sys
import dedupd.cli.main, dedupd.rados.store, dedupd.volume.volume
import fuse_stub.process, jobs.optimize.job
sys.exit("rados" in sys.modules)
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
