"""Somebody is told: of each problem once when it begins, and once when it is over, by each way."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from email import message_from_string
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dedupd.format.container import Kind
from dedupd.service.config import ServiceConfig, VolumeConfig
from dedupd.service.notices.ledger import WAITING_MAX, Ledger, begin_or_end
from dedupd.service.notices.problem import Problem, Severity
from dedupd.service.problems import problems
from dedupd.service.scheduler import TaskHistory
from dedupd.service.served_volume import ServedVolume
from dedupd.units import KIB
from tests.support.lab import Lab, flip_bit, noise
from tests.support.service import ServiceLab, eventually

A = Problem("space", "/srv/a", Severity.WARNING, "text")
B = Problem("job", "/srv/a", Severity.WARNING, "text", "gc")


def test_a_problem_begins_once_and_ends_once() -> None:
    ledger = Ledger()
    assert ledger.update([A, B], 10, 5) == ([A, B], [])
    assert ledger.update([A], 12, 5) == ([], [])
    assert ledger.update([A, B], 14, 5) == ([], [])  # it came back within the time of calm
    assert ledger.update([A], 20, 5) == ([], [B])
    assert ledger.update([], 25, 5) == ([], [])
    assert ledger.update([], 26, 5) == ([], [A])


def test_a_ledger_that_was_kept_goes_on() -> None:
    ledger = Ledger()
    ledger.update([A], 10, 5)
    ledger.queue(begin_or_end(A, False, 10, "host"), ["command", "mail"])
    again = Ledger.of_json(ledger.to_json(), 1000)
    assert again.update([A], 1001, 5) == ([], [])
    assert again.waiting == ledger.waiting
    assert Ledger.of_json(b"\xff nonsense", 5).open == {}


def test_notices_for_a_way_that_hangs_have_a_bound() -> None:
    ledger = Ledger()
    for _ in range(WAITING_MAX + 5):
        ledger.queue(begin_or_end(A, False, 10, "host"), ["mail"])
    assert (len(ledger.waiting), ledger.dropped) == (WAITING_MAX, 5)


class Heard:
    """All that was told, by way."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.posted: list[dict[str, Any]] = []
        heard = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                heard.posted.append(json.loads(self.rfile.read(length)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Hook)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._script("command", "import os, sys, uuid; n = sys.stdin.read()")
        self._script("sendmail", "import os, sys, uuid; n = sys.stdin.read()")
        for name in ("commands", "mails"):
            (base / name).mkdir()

    def _script(self, name: str, text: str) -> None:
        path = self.base / name
        where = self.base / ("commands" if name == "command" else "mails")
        # As a whole or not at all: a test may look meanwhile.
        made = f"p = r'{self.base}/' + uuid.uuid4().hex; f = open(p, 'w'); f.write(n); f.close()"
        save = f"{made}; os.rename(p, r'{where}/' + os.path.basename(p))"
        path.write_text(f"#!{sys.executable}\n{text}\n{save}\n")
        path.chmod(0o755)

    @property
    def configuration(self) -> str:
        return (
            f'on_problem = "{self.base}/command"\nmail_to = "root"\n'
            f'sendmail = "{self.base}/sendmail"\nproblem_calm = "2s"\n'
            f'webhook = "http://127.0.0.1:{self._server.server_port}/hook"\n'
        )

    def by_command(self) -> Counter[tuple[str, str]]:
        values = [json.loads(path.read_text()) for path in (self.base / "commands").iterdir()]
        return Counter((value["event"], value["kind"]) for value in values)

    def by_webhook(self) -> Counter[tuple[str, str]]:
        return Counter((value["event"], value["kind"]) for value in self.posted)

    def by_mail(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for path in (self.base / "mails").iterdir():
            mail = message_from_string(path.read_text(), policy=default)
            about = mail["Subject"].partition(f"{socket.gethostname()}: ")[2].partition(" of ")[0]
            how, _, kind = about.partition(": ")
            found["end" if how == "over" else "begin", kind] += 1
        return found

    def all_are(self, *expected: tuple[str, str]) -> bool:
        wanted = Counter(expected)
        return self.by_command() == self.by_webhook() == self.by_mail() == wanted

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    (tmp_path / "heard").mkdir()
    heard = Heard(tmp_path / "heard")
    yield heard
    heard.close()


@pytest.fixture
def machine(tmp_path: Path, heard: Heard) -> Iterator[ServiceLab]:
    machine = ServiceLab(tmp_path)
    machine.configure(heard.configuration)
    yield machine
    machine.close()


def told(heard: Heard, *expected: tuple[str, str]) -> None:
    try:
        eventually(lambda: heard.all_are(*expected), f"told {expected}")
    except AssertionError:
        raise AssertionError((heard.by_command(), heard.by_webhook(), heard.by_mail())) from None


def mount_dies(machine: ServiceLab, lab: Lab) -> Callable[[], object]:
    os.kill(machine.mount_pid(lab), signal.SIGKILL)
    return lambda: None


def is_damaged(machine: ServiceLab, lab: Lab) -> Callable[[], object]:
    assert machine.run("umount", lab.root).returncode == 0
    container = lab.container(Kind.CHUNKS)
    flip_bit(container, 1000)
    assert machine.run("mount", lab.root).returncode == 0
    assert machine.run("run", "scrub", "--full", "--wait", lab.root).returncode == 4

    def repair() -> None:
        assert machine.run("umount", lab.root).returncode == 0
        flip_bit(container, 1000)
        assert machine.run("mount", lab.root).returncode == 0
        assert machine.run("run", "scrub", "--full", "--wait", lab.root).returncode == 0

    return repair


def space_is_low(machine: ServiceLab, lab: Lab) -> Callable[[], object]:
    assert machine.run("policy", lab.root, "space_low", "99%").returncode == 0
    return lambda: machine.run("policy", lab.root, "space_low", "0")


def backlog_grows(machine: ServiceLab, lab: Lab) -> Callable[[], object]:
    machine.client.act(str(lab.root), "pause")
    assert machine.run("policy", lab.root, "stop_when_busy", "false").returncode == 0
    assert machine.run("policy", lab.root, "schedule_background", "every 1h").returncode == 0
    return lambda: machine.client.act(str(lab.root), "resume")


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "inject"),
    [
        ("mount", mount_dies),
        ("damage", is_damaged),
        ("space", space_is_low),
        ("backlog", backlog_grows),
    ],
)
def test_each_kind_of_problem_is_told_once_also_over_a_restart(
    machine: ServiceLab,
    heard: Heard,
    kind: str,
    inject: Callable[[ServiceLab, Lab], Callable[[], object]],
) -> None:
    lab = machine.add_volume()
    lab.put("f", noise(100 * KIB))
    lab.optimize()
    if kind == "backlog":
        old = time.time() - 10 * 86400
        os.utime(lab.base / "volume.json", (old, old))
    machine.start()
    machine.mount_pid(lab)
    end = inject(machine, lab)
    told(heard, ("begin", kind))
    machine.stop()
    machine.start()
    machine.mount_pid(lab)
    end()
    told(heard, ("begin", kind), ("end", kind))
    machine.stop()
    machine.start()
    time.sleep(3)
    assert heard.all_are(("begin", kind), ("end", kind))


def test_a_task_that_fails_is_a_problem_until_it_gets_through() -> None:
    config = VolumeConfig("/srv/nowhere", "/srv/nowhere")
    volume = ServedVolume(config)
    served = Service(config, volume)
    for failures, kinds in ((0, []), (2, [("job", "gc")]), (0, [])):
        volume.tasks["gc"] = TaskHistory(1.0, 2.0, not failures, failures)
        found = problems(served, 5.0)
        assert [(one.kind, one.subject) for one in found] == kinds


class Service:
    """One that serves a volume."""

    listen_problem = ""

    def __init__(self, config: VolumeConfig, volume: ServedVolume) -> None:
        self.config = ServiceConfig()
        self.volumes = {config: volume}


@pytest.mark.root
def test_ways_that_hang_hold_nothing_up(machine: ServiceLab, heard: Heard) -> None:
    """Neither the service, nor the way that works."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (heard.base / "sendmail").write_text("#!/bin/sh\nsleep 1000 &\nsleep 1000\n")
        configuration = heard.configuration.rpartition("webhook")[0]
        machine.configure(f'{configuration}webhook = "http://127.0.0.1:{port}/"\n')
        lab = machine.add_volume(policy="")
        machine.start()
        assert machine.run("policy", lab.root, "space_low", "99%").returncode == 0
        eventually(lambda: heard.by_command() == Counter([("begin", "space")]), "it was told")
        began_s = time.monotonic()
        assert machine.client.get("/v1/service")["problems"]
        assert machine.run("policy", lab.root, "space_low", "0").returncode == 0
        wanted = Counter([("begin", "space"), ("end", "space")])
        eventually(lambda: heard.by_command() == wanted, "its end, too")
        assert machine.stop() == 0
        assert time.monotonic() - began_s < 40


@pytest.mark.root
def test_the_ways_can_be_tried(machine: ServiceLab, heard: Heard) -> None:
    machine.start()
    assert machine.json("notify", "--test") == {"command": "", "mail": "", "webhook": ""}
    assert heard.by_command() == heard.by_webhook() == Counter([("test", "test")])
    (heard.base / "command").write_text("#!/bin/sh\necho so it is >&2\nexit 3\n")
    failed = machine.run("notify", "--test")
    assert failed.returncode == 1 and "command: so it is" in failed.stdout
    assert machine.run("notify").returncode == 2


@pytest.mark.root
def test_a_summary_comes_once_a_window(machine: ServiceLab, heard: Heard) -> None:
    days = "Mon,Tue,Wed,Thu,Fri,Sat,Sun"
    machine.configure(f'{heard.configuration}summary = "{days} 00:00 for 24h"\n')
    lab = machine.add_volume()
    machine.start()
    eventually(lambda: heard.by_webhook() == Counter([("summary", "summary")]), "it was sent")
    (value,) = heard.posted
    assert value["details"]["volumes"][0]["path"] == str(lab.root)
    machine.stop()
    machine.start()
    time.sleep(3)
    assert sum(heard.by_webhook().values()) == 1
