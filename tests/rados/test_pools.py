"""What a store asks of the pool that it lies in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd.errors import UsageError
from dedupd.rados.cluster.address import StoreAddress
from dedupd.rados.store import RadosStore
from tests.support.ceph import MiniCeph


def test_an_erasure_coded_pool_is_refused(ceph: Path, address: StoreAddress) -> None:
    """It has no keys on its objects. The message says what to do."""
    keyring = ceph / "client.admin.keyring"
    admin = MiniCeph(ceph).client("admin", keyring)
    try:
        for command in (
            {
                "prefix": "osd erasure-code-profile set",
                "name": "two",
                "profile": ["k=2", "m=1", "crush-failure-domain=osd"],
            },
            {
                "prefix": "osd pool create",
                "pool": "coded",
                "pool_type": "erasure",
                "erasure_code_profile": "two",
                "pg_num": 4,
            },
        ):
            status, _, message = admin.mon_command(json.dumps(command), b"")
            assert status == 0, message
        coded = replace(address, pool="coded", user="admin", keyring=str(keyring))
        with pytest.raises(UsageError, match="osd pool create NAME replicated"):
            RadosStore.create(coded)
        with pytest.raises(UsageError, match="no store"):
            RadosStore.open(coded)
    finally:
        admin.shutdown()
