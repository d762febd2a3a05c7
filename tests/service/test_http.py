"""The control socket: who may do what, and what is said to those who ask for nonsense."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd.service.client import Denied, ServiceClient, exchange
from dedupd.service.config import Readers
from dedupd.service.web.peers import AccessLevel, Peer, right_of
from dedupd_core.errors import NotAVolume, ServiceUnreachable, UsageError
from dedupd_core.units import KIB
from jobs.specs import JOBS
from tests.support.lab import let_others_pass, noise
from tests.support.mounts import ALICE, TEAM, as_user
from tests.support.service import WAIT_S, ServiceLab, service_lab

pytestmark = pytest.mark.root

MEMBERS = "users"
"""A group that every Debian has."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceLab]:
    """One service for all tests here: each leaves it as it was."""
    base = tmp_path_factory.mktemp("machine")
    let_others_pass(base)
    with service_lab(base) as machine:
        machine.configure(f'group = "{MEMBERS}"\nreaders = "everyone"\n')
        lab = machine.add_volume()
        lab.put("f", noise(100 * KIB))
        machine.start()
        yield machine


def curl(machine: ServiceLab, path: str, *options: str) -> tuple[int, Any]:
    done = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--unix-socket", str(machine.socket)),
            *("--write-out", "\n%{http_code}", f"http://dedupd{path}", *options),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


def test_curl_reads_the_state(machine: ServiceLab) -> None:
    status, volumes = curl(machine, "/v1/volumes")
    assert status == 200
    assert volumes[0]["path"] == str(machine.volumes[0].root)


@pytest.mark.parametrize(
    ("path", "options", "status", "message"),
    [
        ("/v1/service", ["-X", "PUT"], 405, "Method Not Allowed"),
        ("/v2/volumes", [], 404, "Not Found"),
        ("/v1/volumes/none", [], 404, "the service has no such volume"),
        ("/v1/volumes?path=/nowhere", [], 404, "not in a volume that the service manages"),
        ("/v1/jobs/none", [], 404, "no such job"),
        ("/v1/jobs?last=-1", [], 400, "write a whole number"),
        ("/v1/jobs", ["-d", "{"], 400, "the body is not JSON"),
        ("/v1/jobs", ["-d", "[]"], 400, "not a JSON object"),
        ("/v1/jobs", ["-d", '{"job": "gc"}'], 400, "path: missing"),
        ("/v1/jobs", ["-d", '{"job": "gc", "path": 1}'], 400, "not of the type str"),
        ("/v1/jobs", ["-d", '{"job": "gc", "path": "x"}'], 400, "write an absolute path"),
        ("/v1/jobs", ["-d", r'{"job": "gc", "path": "/\ud800"}'], 400, "write an absolute path"),
        ("/v1/jobs", ["-d", '{"job": "format", "path": "/"}'], 400, "no such job; use one of"),
        (
            "/v1/jobs",
            ["-d", '{"job": "gc", "path": "/nowhere"}'],
            404,
            "not in a volume that the service manages",
        ),
        ("/v1/jobs", ["-d", '{"jop": "gc", "path": "/"}'], 400, "'jop': unknown"),
    ],
)
def test_nonsense_is_refused_with_a_reason(
    machine: ServiceLab, path: str, options: list[str], status: int, message: str
) -> None:
    answered, body = curl(machine, path, *options)
    assert (answered, set(body)) == (status, {"error", "kind", "exit_status"})
    assert message in body["error"]


def test_options_are_those_of_the_job(machine: ServiceLab) -> None:
    lab = machine.volumes[0]
    with pytest.raises(UsageError, match="'full': not an option of compact"):
        machine.submit("compact", lab, full=True)
    with pytest.raises(UsageError, match="full: write true or false"):
        machine.submit("gc", lab, full="yes")
    with pytest.raises(UsageError, match="rate: write a short text"):
        machine.submit("scrub", lab, rate="9" * 1000)
    for text in ("a\0b", "\ud800", "a\nb"):
        with pytest.raises(UsageError, match="strategy: write a short text"):
            machine.submit("reconcile", lab, strategy=text)


def test_a_body_that_is_too_long_is_refused(machine: ServiceLab, tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b" " * (1 << 20))
    status, body = curl(machine, "/v1/jobs", "--data-binary", f"@{tmp_path / 'long'}")
    assert status == 413 and body["kind"] == "UsageError"


# --- who may do what --------------------------------------------------------------------------


def gid_of(name: str) -> int:
    import grp

    return grp.getgrnam(name).gr_gid


def try_as(machine: ServiceLab, uid: int, *groups: int) -> None:
    """Read, then pause and resume, as somebody."""

    def act() -> None:
        client = ServiceClient(str(machine.socket))
        path = str(machine.volumes[0].root)
        assert client.volume(path)["path"] == path
        client.act(path, "pause")
        client.act(path, "resume")

    as_user(uid, act, groups=groups)


def test_members_of_the_group_may_act(machine: ServiceLab) -> None:
    try_as(machine, ALICE, TEAM, gid_of(MEMBERS))


def test_others_may_read_and_not_act(machine: ServiceLab) -> None:
    def look() -> None:
        client = ServiceClient(str(machine.socket))
        path = str(machine.volumes[0].root)
        assert client.get("/v1/jobs")["waiting"] == []
        for act in (
            lambda: client.act(path, "pause"),
            lambda: client.act(path, "unmount"),
            lambda: client.post("/v1/reload"),
            lambda: client.post("/v1/jobs", {"job": "gc", "path": path}),
            lambda: client.delete("/v1/jobs/none"),
        ):
            with pytest.raises(Denied):
                act()

    as_user(ALICE, look, groups=(TEAM,))
    assert f"user {ALICE} (process" in machine.log.read_text()
    assert machine.view(machine.volumes[0])["paused"] is False


@given(
    st.integers(0, 2**32 - 1),
    st.frozensets(st.integers(0, 2**32 - 1), max_size=4),
    st.none() | st.integers(0, 2**32 - 1),
    st.sampled_from(Readers),
)
def test_only_root_the_own_user_and_the_group_act(
    uid: int, groups: frozenset[int], group: int | None, readers: Readers
) -> None:
    right = right_of(Peer(1, uid, groups), 7, group, readers)
    assert (right is AccessLevel.ACT) == (uid in (0, 7) or (group is not None and group in groups))
    assert right is not AccessLevel.NOTHING or readers is Readers.GROUP


# --- fuzz -------------------------------------------------------------------------------------

METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD", "PATCH", "OPTIONS", "get", "\x00")
PATHS = (
    *("/", "/v1", "/v1/service", "/v1/reload/", "/v1/volumes", "/v1/volumes/%00", "/v1/jobs"),
    *("/v1/volumes/x/pause", "/v1/volumes/UUID/explode", "/v1/jobs/x?wait=9e9", "/v1/jobs?last=x"),
    *("/v1/volumes?path=%ff%fe", "/v1/volumes/../../etc/passwd", "/v1/jobs/%2e%2e%2f", "//", "*"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
bodies = st.one_of(
    st.binary(max_size=60),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {},
        optional={
            "job": st.sampled_from([*JOBS, "verify", "--help", ""]) | json_values,
            "path": st.sampled_from(["/", "/nowhere", "../..", "/\0", "-x"]) | json_values,
            "options": st.dictionaries(
                st.sampled_from(["full", "rate", "strategy", "here"]), json_values, max_size=2
            )
            | json_values,
        },
    ).map(lambda value: json.dumps(value).encode()),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Something that looks like a request, more or less."""
    method = draw(st.sampled_from(METHODS))
    path = draw(st.sampled_from(PATHS) | st.text(max_size=30))
    body = draw(bodies)
    length = draw(st.sampled_from([str(len(body)), "-1", "x", "999999999999", ""]))
    headers = draw(
        st.sampled_from(
            ["", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "Host: \x01\r\n"]
        )
    )
    text = f"{method} {path} HTTP/1.1\r\nHost: dedupd\r\nContent-Length: {length}\r\n{headers}\r\n"
    raw = text.encode("utf-8", "surrogateescape") + body
    return draw(st.sampled_from([raw, raw[: len(raw) // 2], body]))


def answer_to(machine: ServiceLab, raw: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(machine.socket))
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            parts = []
            while data := connection.recv(1 << 16):
                parts.append(data)
        except (ConnectionResetError, BrokenPipeError):
            return b""
        return b"".join(parts)


def fuzz(machine: ServiceLab, raw: bytes) -> None:
    """Whatever is sent, an error comes back or nothing, and nothing has changed."""
    answer = answer_to(machine, raw)
    head = answer.partition(b"\r\n")[0]
    assert b" 500 " not in head, (raw, answer)
    assert b" 202 " not in head, (raw, answer)


def unchanged(machine: ServiceLab) -> dict[str, Any]:
    view = machine.view(machine.volumes[0])
    return {name: view[name] for name in ("mount", "paused", "job", "waiting", "tasks")}


@contextmanager
def nothing_changes(machine: ServiceLab) -> Iterator[None]:
    """Neither state nor process, and nothing that the program did not expect is in its log."""
    before = unchanged(machine)
    pid = machine.client.get("/v1/service")["pid"]
    yield
    assert unchanged(machine) == before
    assert machine.client.get("/v1/service")["pid"] == pid
    assert "Traceback" not in machine.log.read_text()


def fuzz_at_random(machine: ServiceLab, count: int) -> None:
    @settings(max_examples=count)
    @given(raw=requests())
    def some(raw: bytes) -> None:
        fuzz(machine, raw)

    some()


def test_malformed_requests_are_refused(machine: ServiceLab) -> None:
    with nothing_changes(machine):
        fuzz_at_random(machine, 100)
        for path in PATHS:
            fuzz(machine, f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())


def test_a_client_that_hangs_up_is_no_failure_of_the_service(machine: ServiceLab) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    with nothing_changes(machine):
        for _ in range(5):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(WAIT_S)
                connection.connect(str(machine.socket))
                connection.sendall(head)
                assert connection.recv(100).startswith(b"HTTP/1.1 100 ")


@pytest.mark.slow
def test_ten_thousand_malformed_requests_are_refused(machine: ServiceLab) -> None:
    with nothing_changes(machine):
        fuzz_at_random(machine, 10_000)


def test_many_silent_connections_keep_no_client_out(machine: ServiceLab) -> None:
    idle = []
    try:
        for _ in range(200):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            idle.append(one)
            one.connect(str(machine.socket))
            one.send(b"GET /v1/serv")
        assert machine.client.get("/v1/service")["pid"] > 0
    finally:
        for one in idle:
            one.close()


def test_a_client_among_many_waits_for_its_turn(tmp_path: Path) -> None:
    """The queue of a listening socket may be full for a moment."""
    path = str(tmp_path / "s")
    with (
        socket.socket(socket.AF_UNIX) as server,
        socket.socket(socket.AF_UNIX) as first,
        ThreadPoolExecutor(1) as pool,
    ):
        server.bind(path)
        server.listen(0)
        first.connect(path)
        answer = pool.submit(exchange, path, "GET", "/v1/service")
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.3)
        server.accept()[0].close()
        with server.accept()[0] as second:
            assert second.recv(65536).startswith(b"GET /v1/service")
            second.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            assert answer.result(WAIT_S) == (200, {})


def test_a_service_that_does_not_run_is_said_not_to(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable, match="the service is not running"):
        ServiceClient(str(tmp_path / "none"))


def test_paths_need_not_be_text(machine: ServiceLab) -> None:
    name = os.fsdecode(b"\xff\xfe")
    with pytest.raises(NotAVolume):
        machine.client.volume(f"/nowhere/{name}")
    inside = f"{machine.volumes[0].root}/{name}"
    assert machine.client.volume(inside)["path"] == str(machine.volumes[0].root)
