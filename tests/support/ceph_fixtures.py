"""Fixtures: a cluster for the tests of a folder, and stores in it."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import address_in, shared_ceph
from tests.support.rados_hosts import Site


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a cluster that all processes of a test run share.

    ``DEDUPD_TEST_CEPH`` names one that is up already: see ``tests/support/ceph.py``.
    """
    running = os.environ.get("DEDUPD_TEST_CEPH")
    if running:
        yield Path(running)
        return
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    with shared_ceph(shared / "ceph") as directory:
        yield directory


@pytest.fixture
def address(ceph: Path) -> StoreAddress:
    """Of a store that is not there yet."""
    return address_in(ceph, f"s{uuid.uuid4().hex[:12]}")


@pytest.fixture
def site(address: StoreAddress, tmp_path: Path) -> Iterator[Site]:
    """A new store, and hosts that use it."""
    with Site(RadosStore.create(address), tmp_path) as site:
        yield site
