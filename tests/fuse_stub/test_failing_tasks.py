"""A task or a request of a mount that fails unexpectedly ends neither the mount nor any other."""

import errno
import logging
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.failures import Failures
from fuse_stub.control import ControlServer
from fuse_stub.deleted import noting
from fuse_stub.files import sealing
from fuse_stub.files.inodes import Inodes
from fuse_stub.files.open_files import OpenFiles
from fuse_stub.files.unsealed_stubs import UnsealedStubs
from fuse_stub.mounts import tasks
from fuse_stub.operations import StubOperations
from tests.fuse_stub.test_odd_paths import serve_hastily, wait_until_sealed
from tests.support.lab import noise
from tests.support.mounts import MountedLab, Nursery, is_serving, mounted_lab
from tests.support.service import eventually

TIMES = 3
CONTENT = noise(100_000)


class Fault(NamedTuple):
    """A function of the mount process that fails a few times, and what that is counted as."""

    owner: Any
    function: str
    counted: str


FAULTS = {
    "sweep": Fault(Inodes, "close_idle", "closing idle files"),
    "close": Fault(OpenFiles, "_close_if_idle", "closing an idle file"),
    "note": Fault(OpenFiles, "_note_unsealed", "noting an unsealed stub"),
    "policy": Fault(Inodes, "delay_files", "watching the policy"),
    "seal": Fault(sealing, "_sealed", "sealing a stub"),
    "seals": Fault(UnsealedStubs, "take_due", "sealing stubs"),
    "deletions": Fault(noting.Deletions, "_sync_once", "syncing deletions"),
    "control": Fault(ControlServer, "_answer", "a conversation on the control socket"),
    "request": Fault(StubOperations, "serve", "a request"),
    "write": Fault(OpenFiles, "_open", "request write_at"),
}


def serve_failing(
    name: str, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """Serve a mount in which one function fails the first few times."""
    owner, function, _ = FAULTS[name]
    original, failures = getattr(owner, function), 0

    def fail(*arguments: Any, **named: Any) -> Any:
        nonlocal failures
        if failures < TIMES:
            failures += 1
            raise RuntimeError("injected")
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, function, fail)
        patch.setattr(tasks, "AGAIN_S", 0.01)
        patch.setattr(noting, "SYNC_S", 0.01)
        serve_hastily(path, mountpoint, cache_bytes, answer)


def counted(lab: MountedLab, what: str) -> int:
    try:
        failures = lab.status()["failures"]
    except ServiceUnreachable:
        return 0
    assert isinstance(failures, dict)
    return int(failures.get(what, 0))


def insisted(action: Callable[[], object]) -> None:
    """A user's call that may fail as often as the fault does, and with nothing but EIO."""
    for _ in range(TIMES):
        try:
            action()
            return
        except OSError as error:
            assert error.errno == errno.EIO
    action()


@pytest.mark.root
@pytest.mark.logs_traceback
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_counted_and_the_mount_goes_on(tmp_path: Path, name: str) -> None:
    with mounted_lab(tmp_path, {"keep_deleted": "7d"}) as lab:
        path = lab.make_stub("stub", CONTENT)
        lab.make_stub("removed", CONTENT[:50_000])
        lab.unmount()
        lab = MountedLab(lab.root, lab.view, Nursery(serve_failing, (name,)))
        lab.mount()

        def write() -> None:
            with open(path, "r+b", buffering=0) as file:
                file.write(b"new")

        insisted(write)
        insisted((lab.view / "removed").unlink)
        eventually(lambda: counted(lab, FAULTS[name].counted) > 0, "it is counted")
        assert is_serving(lab)
        insisted(partial(path.read_bytes))
        assert path.read_bytes() == b"new" + CONTENT[3:]
        insisted(write)
        if name != "note":  # then nothing is known of the stub until it is closed once more
            wait_until_sealed(lab, b"stub")
        log = Path(f"{lab.view}.log").read_text()
        assert "RuntimeError: injected" in log
        assert "Traceback" in log
        lab.unmount()
        lab.verify_clean()


def test_a_task_starts_again_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    rounds = 0

    async def task() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 4:
            raise ValueError(f"round {rounds}")

    async def run() -> None:
        await tasks.kept_up("a task of a test", task)

    with caplog.at_level(logging.ERROR):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert rounds == 4
    assert tasks.failures.counts["a task of a test"] == 3
    assert "ValueError: round 3" in caplog.text


def test_the_end_of_the_mount_is_no_failure() -> None:
    async def run() -> None:
        with trio.move_on_after(1):
            await tasks.kept_up("a task that is cancelled", trio.sleep_forever)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert "a task that is cancelled" not in tasks.failures.counts


def test_failures_are_counted_by_name(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures("dedupd.test")
    for error in (ValueError("a"), OSError(errno.ENOSPC, "full")):
        with failures.noted("something"):
            raise error
    with pytest.raises(KeyboardInterrupt), failures.noted("something"):
        raise KeyboardInterrupt
    assert failures.counts == {"something": 2}
    assert "ValueError: a" in caplog.text
