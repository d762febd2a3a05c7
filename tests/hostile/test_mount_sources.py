"""Mounts and sockets of users that look like those of volumes: root's commands leave them alone."""

import ctypes
import errno
import os
import socket
import struct
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dedupd.service.client import exchange
from dedupd.service.config import VolumeConfig, parse_config, parse_volume
from dedupd.service.mount_keeper import MountKeeper
from dedupd_core.errors import Busy, ServiceUnreachable
from dedupd_core.system import control_socket, mount_table
from dedupd_core.system.control_socket import ControlClient, runtime_dir
from dedupd_core.system.files import opened
from tests.support.lab import Lab, let_others_pass, new_lab, run_cli
from tests.support.mounts import ALICE, mounted_lab

pytestmark = pytest.mark.root

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def mounted_by_a_user(point: Path, source: str, uid: int) -> Iterator[None]:
    """A FUSE mount as fusermount makes it for a user, which chooses type and source."""
    point.mkdir(exist_ok=True)
    with opened(os.open("/dev/fuse", os.O_RDWR)) as fd:
        options = f"fd={fd},rootmode=40000,user_id={uid},group_id={uid},allow_other"
        result = _LIBC.mount(
            source.encode(), os.fsencode(point), b"fuse.dedupd", 6, options.encode()
        )
        assert result == 0, os.strerror(ctypes.get_errno())
        # The first request is refused, so that nobody waits for an answer to any other.
        (request,) = struct.unpack_from("<8xQ", os.read(fd, 1 << 20))
        os.write(fd, struct.pack("<IiQ", 16, -errno.EIO, request))
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def listening(path: Path, uid: int, answer: bytes = b"") -> Iterator[list[int]]:
    """A user's socket, and how many connections it has got; ``answer`` goes on for ever."""
    clients: list[int] = []
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(uid, uid, uid)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen(5)
        os.write(write_fd, b"r")
        while True:
            connection, _ = server.accept()
            os.write(write_fd, b"c")
            try:
                while answer:
                    connection.sendall(answer)
            except OSError:
                connection.close()
    assert os.read(read_fd, 1) == b"r"
    os.set_blocking(read_fd, False)
    try:
        yield clients
        try:
            clients += os.read(read_fd, 100)
        except BlockingIOError:
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(read_fd)
        os.close(write_fd)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    let_others_pass(tmp_path)
    place = tmp_path / "hers"
    place.mkdir()
    os.chmod(place, 0o777)
    return place


@pytest.mark.parametrize("named", ["a path", "a uuid"])
def test_status_talks_to_no_socket_of_a_user(place: Path, named: str) -> None:
    path = place / "x.sock"
    source = os.path.relpath(place / "x", runtime_dir())
    if named == "a uuid":
        # A name in root's own directory: somebody has made a link there that leads to the user.
        source = str(uuid.uuid4())
    with ExitStack() as stack:
        clients = stack.enter_context(listening(path, ALICE))
        if named == "a uuid":
            link = Path(runtime_dir()) / f"{source}.sock"
            link.parent.mkdir(mode=0o700, exist_ok=True)
            link.symlink_to(path)
            stack.callback(link.unlink)
        stack.enter_context(mounted_by_a_user(place / "mount", f"dedupd:{source}", ALICE))
        assert mount_table.find(str(place / "mount")) is None
        assert all(mount.point != str(place / "mount") for mount in mount_table.volumes())
        # Without a path it would look at the volumes of all tests that run now.
        assert run_cli("status", "--here", place / "mount").returncode != 0
    assert clients == []


def test_a_mount_of_a_volume_is_still_one(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        found = mount_table.find(str(lab.view))
        assert found is not None and mount_table.is_uuid(found.volume)
        assert found in mount_table.volumes()


FIVE = uuid.UUID(int=5)


@pytest.mark.parametrize(
    "text",
    ["", "x", "../../tmp/x", f"{FIVE} ", f"{{{FIVE}}}", FIVE.hex, FIVE.urn, f"../{FIVE}"],
)
def test_a_uuid_is_one_to_the_letter(text: str) -> None:
    assert not mount_table.is_uuid(text)
    assert mount_table.is_uuid(str(uuid.UUID(int=0xAB)))


def test_a_socket_of_another_user_is_left_alone(place: Path) -> None:
    with listening(place / "s", ALICE):
        with pytest.raises(ServiceUnreachable, match=f"user {ALICE} listens there"):
            ControlClient(str(place / "s"))
        with pytest.raises(ServiceUnreachable, match=f"user {ALICE} listens there"):
            exchange(str(place / "s"), "GET", "/v1/service")


def test_an_answer_without_end_is_given_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_BYTES_MAX", 1 << 20)
    with (
        listening(place / "s", 0, b"x" * 65536),
        ControlClient(str(place / "s")) as client,
        pytest.raises(ServiceUnreachable, match="too long"),
    ):
        client.call("status")
    assert threading.active_count() < 10


# --- the volume at a path ---------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return new_lab(tmp_path / "volume")


def test_a_path_that_leads_to_another_volume_is_not_served(lab: Lab) -> None:
    expected = str(uuid.uuid4())
    keeper = MountKeeper(VolumeConfig(str(lab.root), str(lab.root), uuid=expected))
    with pytest.raises(Busy, match=f"the configuration lists {expected}"):
        keeper._bring_up()
    assert mount_table.find(str(lab.root)) is None


def test_a_volume_may_be_registered_and_named_by_the_administrator() -> None:
    found = str(uuid.uuid4())
    text = f"""
    [[volume]]
    path = "/srv/share"
    [[volume]]
    path = "/srv/share"
    uuid = "{found}"
    """
    expected = VolumeConfig("/srv/share", "/srv/share", uuid=found)
    assert parse_config(text, "x").volumes == (expected,)
    assert parse_volume({"path": "/srv/share", "uuid": found}, "x") == expected
