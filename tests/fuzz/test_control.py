"""Control messages that are no such thing, sent to a mount in service (fuzzing, by hypothesis)."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from dedupd_core.system.control_socket import socket_path
from fuse_stub.control import OPERATIONS
from tests.support.fuzzing import SECONDS_SLOW, damaged, fuzz
from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = [pytest.mark.root, pytest.mark.logs_traceback]

CONTENTS = {"noise": noise(300_000), "prose": prose(200_000), "plain": noise(70_000, 3)}
ANSWER_S = 20
FIELDS = (
    *("op", "path", "files", "inodes", "kind", "containers", "identity", "recipe", "digest"),
    *("age_s", "bytes_max", "inode", "saves_little", "freed_bytes", "options"),
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), inner, max_size=5)
    ),
    max_leaves=12,
)
requests = st.builds(
    lambda operation, fields: json.dumps({**fields, "op": operation}).encode(),
    st.sampled_from(list(OPERATIONS)),
    st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
)
samples = [
    json.dumps({"op": "status"}).encode(),
    json.dumps({"op": "fill_begin", "path": "absent"}).encode(),
    json.dumps({"op": "commit_many", "payload_bytes": 0}).encode(),
    json.dumps({"op": "reopen", "kind": "chunks", "containers": [1]}).encode(),
    b"[" * 20_000 + b"]" * 20_000,
]
lines = requests | damaged(samples) | st.binary(max_size=300) | st.sampled_from(samples)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("control")) as lab:
        for name in ("noise", "prose"):
            lab.make_stub(name, CONTENTS[name])
        (lab.view / "plain").write_bytes(CONTENTS["plain"])
        yield lab


def talk(path: str) -> Callable[[list[bytes]], None]:
    """A conversation of these lines: each is answered by one of JSON, and the mount lives on."""

    def check(said: list[bytes]) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(path)
            answers = connection.makefile("rb")
            for line in said:
                line = line.replace(b"\n", b" ")
                connection.sendall(line + b"\n")
                assert isinstance(json.loads(answers.readline()), dict)
            connection.sendall(b'{"op": "status"}\n')
            status: dict[str, Any] = json.loads(answers.readline())
            assert "pid" in status and "error" not in status

    return check


def expect_nothing_changed(lab: MountedLab) -> None:
    for name, content in CONTENTS.items():
        path: Path = lab.view / name
        assert path.read_bytes() == content
    lab.unmount()
    assert lab.verify().findings == []
    lab.mount()


def test_a_mount_answers_whatever_it_is_told(lab: MountedLab) -> None:
    path = socket_path(str(lab.status()["volume"]))
    assert fuzz(1, st.lists(lines, min_size=1, max_size=6), talk(path))
    expect_nothing_changed(lab)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_mount_answers_for_long(lab: MountedLab) -> None:
    path = socket_path(str(lab.status()["volume"]))
    assert fuzz(SECONDS_SLOW, st.lists(lines, min_size=1, max_size=6), talk(path))
    expect_nothing_changed(lab)
