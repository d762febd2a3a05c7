"""What a stream may do: the tree that root has sent, with its rights, and nothing beside it."""

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.errors import Damaged
from dedupd_core.format.stream import StreamNode
from jobs.backup.sender import Sender
from tests.support.lab import Lab, new_lab
from tests.support.mounts import ALICE
from tests.support.streams import sent

pytestmark = pytest.mark.root

RAW_SOCKETS = bytes.fromhex("0100000200200000000000000000000000000000")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", b"content")
    return lab


HOSTILE: dict[str, Callable[[StreamNode], StreamNode]] = {
    "above": lambda node: replace(node, path=b"../../escaped"),
    "absolute": lambda node: replace(node, path=b"/var/tmp/escaped"),
    "stub": lambda node: replace(node, attributes=((b"trusted.dedupd", bytes(64)),)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_stream_with_such_a_node_is_damaged_and_the_next_one_is_received(
    tmp_path: Path, lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    replica, real = new_lab(tmp_path / "replica"), Sender._put_node

    def put(sender: Sender, node: StreamNode) -> None:
        real(sender, HOSTILE[kind](node) if node.path == b"file" else node)

    with monkeypatch.context() as patch:
        patch.setattr(Sender, "_put_node", put)
        with pytest.raises(Damaged, match=r"not a valid node|only stubs can have"):
            sent(lab, replica)
    assert os.listdir(replica.data) == []
    assert not list(tmp_path.rglob("escaped")) and not Path("/var/tmp/escaped").exists()
    sent(lab, replica)
    assert os.listdir(replica.data) == ["file"]


def test_a_replica_has_the_rights_of_the_tree_that_was_sent(tmp_path: Path, lab: Lab) -> None:
    replica = new_lab(tmp_path / "replica")
    os.chown(lab.data / "file", ALICE, ALICE)
    os.chmod(lab.data / "file", 0o4711)
    (lab.data / "directory").mkdir()
    os.chmod(lab.data / "directory", 0o3775)
    lab.put("directory/capable", b"x")
    os.setxattr(lab.data / "directory/capable", "security.capability", RAW_SOCKETS)
    os.mknod(lab.data / "device", stat.S_IFBLK | 0o660, os.makedev(7, 0))
    assert sent(lab, replica)[1].messages == []
    status = (replica.data / "file").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (ALICE, 0o4711)
    assert stat.S_IMODE((replica.data / "directory").stat().st_mode) == 0o3775
    capable = os.fsencode(replica.data / "directory/capable")
    assert os.getxattr(capable, "security.capability") == RAW_SOCKETS
    assert (replica.data / "device").stat().st_rdev == os.makedev(7, 0)
    assert not list(replica.data.rglob(".dedupd-*"))
