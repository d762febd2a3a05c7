"""Users that may read the service: they cost it little, and learn of no file."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dedupd.service.client import ServiceClient, exchange
from dedupd.service.web import connections
from dedupd.service.web.connections import REQUEST_BYTES_MAX, USER_CONNECTIONS_MAX, Connections
from dedupd.service.web.peers import AccessLevel
from dedupd_core.errors import ServiceUnreachable
from dedupd_core.volume.hints import HintKey
from tests.hostile.test_greedy_users import resident_bytes
from tests.support.lab import let_others_pass, noise
from tests.support.mounts import ALICE, BOB, TEAM, as_user
from tests.support.service import WAIT_S, ServiceLab, service_lab

pytestmark = pytest.mark.root

RUNS = 230
SECRET = "alice's letter to the lawyer"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    """A service that everybody may read, with reports that name files."""
    base = tmp_path_factory.mktemp("machine")
    let_others_pass(base)
    with service_lab(base) as machine:
        machine.configure('group = "users"\nreaders = "everyone"\n')
        lab = machine.add_volume()
        lab.put(f"private/{SECRET}", noise(4096))
        began_s = time.time() - RUNS
        with lab.opened() as volume:
            for number in range(RUNS):
                report = {
                    "job": "verify",
                    "started_s": began_s + number,
                    "outcome": f"{SECRET}: damaged",
                    "path": f"private/{SECRET}",
                    "messages": [f"private/{SECRET} {at}: damaged" for at in range(100)],
                    "resources": {"wall_s": 1.0, "note": SECRET},
                }
                volume.hints.put(HintKey.RUNS.at(report["started_s"]), report)  # type: ignore[arg-type]
        machine.start()
        machine.ended(machine.submit("gc", lab))
        yield machine


def connected(machine: ServiceLab, request: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(machine.socket))  # with a timeout it would not wait for its turn
    connection.settimeout(WAIT_S)
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(request)
    return connection


UNREAD = b"GET /v1/jobs?last=50 HTTP/1.1\r\nHost: dedupd\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"GET /v1/jo", UNREAD, b"GET /v1/volumes HTTP/1.1\r\nHost: dedupd\r\n\r\n" * 4000],
    ids=["silent", "half a head", "unread", "one after the other"],
)
def test_five_hundred_connections_of_a_user_take_little_memory(
    machine: ServiceLab, request_bytes: bytes
) -> None:
    pid = machine.client.get("/v1/service")["pid"]
    before = resident_bytes(pid)

    def crowd_in() -> None:
        crowd = [connected(machine, request_bytes) for _ in range(500)]
        time.sleep(0.5)  # the service may do its worst
        grown = resident_bytes(pid) - before
        assert grown < 50 << 20, f"{grown >> 20} MiB"
        # Those that say too much are cut off, which makes room: also for the last one.
        cut_off = {b""} if len(request_bytes) > REQUEST_BYTES_MAX else set[bytes]()
        assert begin_of_answer(crowd[-1]) in {b"HTTP/1.1 503", *cut_off}

    as_user(ALICE, crowd_in)
    assert machine.client.get("/v1/service")["pid"] == pid


def begin_of_answer(connection: socket.socket) -> bytes:
    try:
        return connection.recv(12)
    except ConnectionResetError:
        return b""


def test_connections_of_one_user_keep_no_other_user_out(machine: ServiceLab) -> None:
    def read() -> None:
        assert ServiceClient(str(machine.socket)).get("/v1/service")["pid"]

    holding = os.fork()
    if holding == 0:
        os.setresuid(ALICE, ALICE, ALICE)
        crowd = [connected(machine, UNREAD) for _ in range(USER_CONNECTIONS_MAX + 20)]
        while crowd:
            time.sleep(1)
    try:
        time.sleep(1)
        as_user(BOB, read)
        assert machine.client.get("/v1/service")["pid"]
    finally:
        os.kill(holding, signal.SIGKILL)
        os.waitpid(holding, 0)


def test_a_user_that_may_read_learns_of_no_file(machine: ServiceLab) -> None:
    lab = machine.volumes[0]
    uuid = machine.view(lab)["uuid"]
    paths = [
        *("/v1/service", "/v1/volumes", f"/v1/volumes/{uuid}", "/v1/jobs?last=50", "/metrics"),
        *(f"/v1/volumes/{uuid}/savings", "/"),
    ]

    def texts() -> str:
        found = []
        for path in paths:
            with connected(machine, f"GET {path} HTTP/1.0\r\nHost: x\r\n\r\n".encode()) as one:
                while data := one.recv(1 << 16):
                    found.append(data)
        return b"".join(found).decode()

    def look() -> None:
        told = texts()
        assert SECRET not in told and "private" not in told
        assert told.count('"started_s"') > 50 and str(lab.root) in told

    as_user(ALICE, look, groups=(TEAM,))
    assert SECRET in texts(), "root is told"


def test_a_client_follows_the_pages(machine: ServiceLab) -> None:
    found = machine.client.jobs(RUNS + 10)
    times = [run["started_s"] for run in found["history"]]
    assert len(times) == RUNS + 1 and times == sorted(times, reverse=True)
    assert len({*times}) == len(times)
    assert [run["started_s"] for run in machine.client.jobs(75)["history"]] == times[:75]
    status, answer = exchange(str(machine.socket), "GET", "/v1/jobs?last=51")
    assert status == 400 and "from 0 to 50" in answer["error"]


def test_only_the_group_reads_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    with service_lab(tmp_path) as machine:
        machine.start()

        def look() -> None:
            with pytest.raises(ServiceUnreachable):
                ServiceClient(str(machine.socket))

        as_user(ALICE, look)
        assert machine.client.get("/v1/service")["pid"]


# --- time limits ------------------------------------------------------------------------------


class Endless(asyncio.Protocol):
    """A server that answers with more than its client takes."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if b"\n" in data:
            self.transport.write(b"x" * (8 << 20))


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET /\n"])
def test_a_client_that_sends_or_takes_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_WAIT_S", 0.2 if b"\n" not in sent else 60.0)
    monkeypatch.setattr(connections, "STALL_WAIT_S", 0.2)
    found = Connections(Endless, lambda _: (ALICE, AccessLevel.READ))

    async def run() -> None:
        server = await asyncio.get_running_loop().create_unix_server(
            found.connection, str(tmp_path / "socket")
        )
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"), limit=1)
        writer.write(sent)
        while not found._of_transport:
            await asyncio.sleep(0.01)
        while found._of_transport:
            await asyncio.sleep(0.01)
        assert found._strangers == 0 and not found._count
        writer.close()
        server.close()

    asyncio.run(run())


def test_answers_are_json_to_the_letter(machine: ServiceLab) -> None:
    for last in (0, 1, 9, 10, 11, 50):
        status, answer = exchange(str(machine.socket), "GET", f"/v1/jobs?last={last}")
        assert status == 200 and len(answer["history"]) == last
        assert json.dumps(answer)
