"""A task of the service that fails unexpectedly ends neither the service nor any other task."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dedupd.service import mount_keeper
from dedupd.service import service as service_module
from dedupd.service.job_process import JobProcess, JobState
from dedupd.service.mount_keeper import MountKeeper, MountState
from dedupd.service.scheduler import Urgency, next_action
from dedupd.service.served_volume import ServedVolume
from dedupd.service.service import Service
from dedupd.service.systemd.notify import Notifier
from dedupd.service.telling import Notifications
from jobs.frame import backoff
from jobs.frame.channel import Channel
from jobs.frame.pace import Pace
from jobs.frame.run import JobRun
from tests.support.service import eventually

TIMES = 3
PATH = "/nonexistent"


def failing(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[], int]:
    """Have a method fail a few times; how often it was called."""
    original, calls = getattr(owner, name), 0

    def fail(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= TIMES:
            raise RuntimeError("injected")
        return original(*arguments, **named)

    patch.setattr(owner, name, fail)
    return lambda: calls


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr(service_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(service_module, "SPACE_LOOK_S", 0.01)
    config = tmp_path / "dedupd.toml"
    config.write_text(f'socket = "{tmp_path}/socket"\nstate = "{tmp_path}/state"\n')
    (tmp_path / "volumes.d").mkdir()
    (tmp_path / "volumes.d/one.toml").write_text(f'path = "{PATH}"\n')
    return Service(str(config), Notifier({}))


def served_until(service: Service, condition: Callable[[], bool]) -> None:
    """Run a service until a condition holds, and end it as a signal does."""

    @asynccontextmanager
    async def control() -> Any:
        yield

    async def run() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(service.run(control()))
            while not condition():
                await asyncio.sleep(0.01)
            service._stop.set()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("owner", "name", "counted"),
    [
        (Service, "_decide", "the schedule"),
        (Notifications, "_look", "notifications"),
        (ServedVolume, "look_at_space", f"watching {PATH}"),
        (MountKeeper, "_wait_for_change", f"keeping {PATH} mounted"),
    ],
)
def test_a_lasting_task_starts_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, counted: str
) -> None:
    calls = failing(monkeypatch, owner, name)
    served_until(service, lambda: calls() > TIMES)
    assert service.failures.counts == {counted: TIMES}


def test_a_volume_that_cannot_be_viewed_keeps_the_schedule_of_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ServedVolume, "view")
    decided = list[int]()

    def decide(*arguments: Any) -> Any:
        decided.append(1)
        return next_action(*arguments)

    monkeypatch.setattr(service_module, "next_action", decide)
    served_until(service, lambda: bool(decided))
    assert service.failures.counts[f"the view of {PATH}"] > 0


def test_a_mount_that_fails_unexpectedly_is_a_problem_of_its_volume(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(monkeypatch, MountKeeper, "_bring_up")
    monkeypatch.setattr(mount_keeper, "RETRY_S_MIN", 0.01)

    def has_failed() -> bool:
        states = [volume.keeper.state for volume in service.volumes.values()]
        return calls() > TIMES and states == [MountState.FAILED]

    served_until(service, has_failed)
    assert service.failures.counts == {}


def test_a_job_whose_end_fails_is_over_all_the_same(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no other job of its volume would start."""
    job = JobProcess("gc-1", "uuid", "gc", PATH, (), Urgency.BY_HAND, 0.0)
    failing(monkeypatch, ServedVolume, "note_end")
    monkeypatch.setattr(JobProcess, "_command", lambda _: ["true"])
    monkeypatch.setattr(Service, "by_uuid", lambda self, _: next(iter(self.volumes.values())))

    def is_over() -> bool:
        if job.started_s is None and service.volumes and not service.running:
            service._start(job)
        return job in service.ended

    served_until(service, is_over)
    assert service.failures.counts == {f"gc on {PATH}": 1}
    assert job.state is JobState.ENDED
    assert not service.running


def test_an_order_that_makes_no_sense_is_passed_over() -> None:
    """The job still obeys the next one."""
    ours, theirs = socket.socketpair()
    run = JobRun("gc")
    with ours, theirs, Channel(theirs).serving(run):
        ours.sendall(b'{"order": "pause"}\n[]\nnonsense\n{"order": 5}\n')
        eventually(lambda: run.pace.is_held, "the job is held")
        ours.sendall(b'{"order": "resume"}\n')
        eventually(lambda: not run.pace.is_held, "the job is no longer held")


def test_a_load_that_cannot_be_measured_holds_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    monkeypatch.setattr(backoff, "TICK_S", 0.01)
    failing(monkeypatch, backoff.Meter, "read")
    pace.hold("back-off", "users are at work")
    with backoff.backing_off("no such volume", pace, backoff.decide, lambda: None):
        eventually(lambda: not pace.is_held, "the job is no longer held")
