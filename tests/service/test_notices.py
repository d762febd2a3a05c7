"""Somebody is told: of each problem once when it begins, and once when it is over, by each way."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from email import message_from_string
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from dedupd.cli.policy import saved
from dedupd.service.config import ServiceConfig, VolumeConfig, load_config
from dedupd.service.history import Savings
from dedupd.service.mount_keeper import MountState
from dedupd.service.notices.ledger import WAITING_MAX, Ledger
from dedupd.service.notices.problem import Notice, NoticeReason, Problem, Severity
from dedupd.service.problems import problems
from dedupd.service.scheduler import TaskHistory
from dedupd.service.served_volume import ServedVolume
from dedupd.service.space import Sample, SpaceWatch
from dedupd.service.telling import Notifications
from dedupd_core.config.policy import Policy
from dedupd_core.format.container import Kind
from dedupd_core.units import GIB, KIB
from dedupd_core.volume.volume import Volume
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
    ledger.queue(Notice(NoticeReason.BEGIN, A, 10, "host"), ["command", "mail"])
    again = Ledger.of_json(ledger.to_json(), 1000)
    assert again.update([A], 1001, 5) == ([], [])
    assert again.waiting == ledger.waiting
    assert Ledger.of_json(b"\xff nonsense", 5).open == {}


def test_notices_for_a_way_that_hangs_have_a_bound() -> None:
    ledger = Ledger()
    for _ in range(WAITING_MAX + 5):
        ledger.queue(Notice(NoticeReason.BEGIN, A, 10, "host"), ["mail"])
    assert len(ledger.waiting) == WAITING_MAX


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
        for name in ("command", "sendmail"):
            self._script(name)

    def _script(self, name: str) -> None:
        path = self.base / name
        where = self.base / f"{name}s"
        where.mkdir()
        # As a whole or not at all: a test may look meanwhile.
        path.write_text(f"#!/bin/sh\nset -e\ncat > '{path}'.$$\nmv '{path}'.$$ '{where}'/$$\n")
        path.chmod(0o755)

    @property
    def configuration(self) -> str:
        return (
            f'on_problem = "{self.base}/command"\nmail_to = "root"\n'
            f'sendmail = "{self.base}/sendmail"\nproblem_calm = "0.5s"\n'
            f'webhook = "http://127.0.0.1:{self._server.server_port}/hook"\n'
        )

    def by_command(self) -> Counter[tuple[str, str]]:
        values = [json.loads(path.read_text()) for path in (self.base / "commands").iterdir()]
        return Counter((value["event"], value["kind"]) for value in values)

    def by_webhook(self) -> Counter[tuple[str, str]]:
        return Counter((value["event"], value["kind"]) for value in self.posted)

    def by_mail(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for path in (self.base / "sendmails").iterdir():
            mail = message_from_string(path.read_text(), policy=default)
            about = mail["Subject"].partition(f"{socket.gethostname()}: ")[2].partition(" of ")[0]
            how, _, kind = about.partition(": ")
            event = {"resolved": "end"}.get(how, "begin") if kind else how
            found[event, kind or how] += 1
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
    change_policy(lab, lambda text: text.replace("space_low = 0", 'space_low = "99%"'))
    return lambda: change_policy(lab, lambda text: text.replace('"99%"', "0"))


def backlog_grows(machine: ServiceLab, lab: Lab) -> Callable[[], object]:
    machine.client.act(str(lab.root), "pause")
    due = 'schedule_background = "every 1h"\nstop_when_busy = false'
    change_policy(lab, lambda text: text.replace('schedule_background = "off"', due))
    return lambda: machine.client.act(str(lab.root), "resume")


def a_job_fails(machine: ServiceLab, lab: Lab) -> Callable[[], object]:
    change_policy(lab, lambda text: text.replace('gc = "off"', 'gc = "every 1h"'))
    with Volume.open(str(lab.root)) as volume:
        below = os.dup(volume.base_fd)
    os.rename("lock", "lock.away", src_dir_fd=below, dst_dir_fd=below)
    os.mkdir("lock", dir_fd=below)
    machine.client.post("/v1/reload")  # and look at what is due now, not in a minute
    machine.wait_for_word("READY=1")

    def repair() -> None:
        os.rmdir("lock", dir_fd=below)
        os.rename("lock.away", "lock", src_dir_fd=below, dst_dir_fd=below)
        os.close(below)
        assert machine.run("run", "gc", "--wait", lab.root).returncode == 0

    return repair


def policy_is_wrong(lab: Lab) -> None:
    change_policy(lab, lambda text: f"{text}nonsense = 1\n")


def change_policy(lab: Lab, change: Callable[[str], str]) -> None:
    """Below its mount, and at once."""
    with Volume.open(str(lab.root)) as volume:
        saved(volume, change)


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "inject"),
    [
        ("backlog", backlog_grows),
        pytest.param("space", space_is_low, marks=pytest.mark.slow),
        pytest.param("mount", mount_dies, marks=pytest.mark.slow),
        pytest.param("damage", is_damaged, marks=pytest.mark.slow),
        pytest.param("job", a_job_fails, marks=pytest.mark.slow),
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
    if kind == "mount":  # it is over by itself, and should not be before all ways have heard of it
        machine.configure(heard.configuration.replace('"0.5s"', '"5s"'))
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
    policy_is_wrong(lab)  # told after everything that there may be to tell of the other
    told(heard, ("begin", kind), ("end", kind), ("begin", "policy"))


GONE = {"volume": "0" * 32, "host": "h", "path": "/srv/h", "since_s": 1.0, "left": 1}
AUDITED = {"host": "h", "begun_s": 1.0, "found": {"dangling": 1, "damaged": 0}}

KINDS: dict[str, Callable[[ServedVolume, "Service", bool], None]] = {
    "mount": lambda volume, _, bad: setattr(volume.keeper, "problem", "gone" if bad else ""),
    "policy": lambda volume, _, bad: setattr(volume, "policy_problem", "wrong" if bad else ""),
    "damage": lambda volume, _, bad: setattr(volume, "savings", savings(quarantined=int(bad))),
    "damage_met": lambda volume, _, bad: setattr(volume, "damage_met", int(bad)),
    "job": lambda volume, _, bad: volume.tasks.__setitem__(
        "gc", TaskHistory(1, 2, not bad, int(bad))
    ),
    "space": lambda volume, _, bad: look_at(volume.space, 1 if bad else 90),
    "backlog": lambda volume, _, bad: setattr(volume, "optimized_s", 1.0 if bad else time.time()),
    "host_gone": lambda volume, _, bad: setattr(
        volume, "neighbours", {**volume.neighbours, "gone": [GONE] if bad else []}
    ),
    "store_damaged": lambda volume, _, bad: setattr(
        volume, "neighbours", {**volume.neighbours, "audit": AUDITED if bad else {}}
    ),
    "page": lambda _, service, bad: setattr(service, "listen_problem", "taken" if bad else ""),
}
"""What the service knows when there is a problem of a kind, and when there is none."""


def savings(quarantined: int) -> Savings:
    return Savings(1.0, 1, 1, 1, 1, 1, 1, 1, quarantined_records=quarantined)


def look_at(watch: SpaceWatch, free: int) -> None:
    watch.look(Sample(1.0, free * GIB, 100 * GIB, 0), Policy())


def test_every_kind_is_told_once_by_every_way_and_in_another_life(
    tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the service does it, with what it would know of its volumes."""
    monkeypatch.setattr("dedupd.service.telling.LOOK_S", 0.02)
    (tmp_path / "dedupd.toml").write_text(f'state = "{tmp_path}/state"\n{heard.configuration}')
    config = VolumeConfig("/srv/nowhere", "/srv/nowhere")
    volume = ServedVolume(config)
    volume.is_known, volume.keeper.state = True, MountState.MOUNTED
    served = Service(config, volume, load_config(str(tmp_path / "dedupd.toml")))

    def all_are(bad: bool) -> None:
        for inject in KINDS.values():
            inject(volume, served, bad)

    begun = [("begin", kind) for kind in KINDS]
    over = [("end", kind) for kind in KINDS]
    all_are(False)

    async def lives() -> None:
        async with life(served):
            await heard_all(heard)
            all_are(True)
            await heard_all(heard, *begun)
        async with life(served):
            await asyncio.sleep(1)  # longer than the time of calm
            await heard_all(heard, *begun)
            all_are(False)
            await heard_all(heard, *begun, *over)
        async with life(served):
            KINDS["page"](volume, served, True)
            await heard_all(heard, *begun, *over, ("begin", "page"))

    asyncio.run(lives())


def test_an_older_state_never_takes_the_place_of_a_newer_one(tmp_path: Path) -> None:
    (tmp_path / "dedupd.toml").write_text(f'state = "{tmp_path}/state"\n')
    config = VolumeConfig("/srv/nowhere", "/srv/nowhere")
    loaded = load_config(str(tmp_path / "dedupd.toml"))
    telling = Notifications(Service(config, ServedVolume(config), loaded))
    for state in (1, 3, 2):
        telling._save(state, b"%d" % state)
    assert (tmp_path / "state/notices.json").read_bytes() == b"3"


@asynccontextmanager
async def life(served: "Service") -> AsyncIterator[None]:
    """The service's part that tells, from its start to its end."""
    task = asyncio.create_task(Notifications(served).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def heard_all(heard: Heard, *expected: tuple[str, str]) -> None:
    await asyncio.to_thread(told, heard, *expected)


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

    def __init__(
        self,
        config: VolumeConfig,
        volume: ServedVolume,
        service: ServiceConfig = ServiceConfig(),  # noqa: B008 - a value
    ) -> None:
        self.config = service
        self.volumes = {config: volume}


@pytest.mark.root
@pytest.mark.slow
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
    policy_is_wrong(lab)
    told(heard, ("summary", "summary"), ("begin", "policy"))
