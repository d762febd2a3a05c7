"""What a store asks of the pool that it lies in, and of the user that it is reached as."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import CAPABILITIES, REPOSITORY, USER, MiniCeph


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


def test_the_user_of_all_tests_has_what_the_documentation_gives(ceph: Path) -> None:
    """With cephx, and no more than that: all that any test does as this user these allow."""
    text = (REPOSITORY / "docs/guide/cluster.md").read_text()
    told = " ".join(text.replace("\\\n", " ").split())
    (mon, mon_cap), (osd, osd_cap) = zip(CAPABILITIES[::2], CAPABILITIES[1::2], strict=True)
    assert f"get-or-create client.{USER} {mon} '{mon_cap}' {osd} '{osd_cap}' >" in told
    assert "auth client required = cephx" in (ceph / "ceph.conf").read_text()
    user = MiniCeph(ceph).client(USER, ceph / f"client.{USER}.keyring")
    admin = MiniCeph(ceph).client("admin", ceph / "client.admin.keyring")
    try:
        about = json.dumps({"prefix": "auth get", "entity": f"client.{USER}", "format": "json"})
        status, answer, _ = admin.mon_command(about, b"")
        assert status == 0
        assert json.loads(answer)[0]["caps"] == {mon: mon_cap, osd: osd_cap}
        status, _, _ = user.mon_command(json.dumps({"prefix": "osd out", "ids": ["0"]}), b"")
        assert status == -errno.EACCES
    finally:
        user.shutdown()
        admin.shutdown()
