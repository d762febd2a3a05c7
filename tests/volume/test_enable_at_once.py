"""Calls of enable and disable for one directory at the same time: one of them does it."""

import os
import signal
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core import failpoint
from dedupd_core.errors import Busy, NotAVolume, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import locked, opened
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from tests.support.disabling import disable
from tests.volume.test_enable import DISABLE_POINTS, ENABLE_POINTS, look, make

CALLS = 6
DONE, BUSY, ALREADY, FAILED = range(4)


def enabled(root: Path) -> None:
    enable(str(root), policy_values={}, force=True, disk=Disk())


def disabled(root: Path) -> None:
    disable(str(root), disk=Disk())


def outcome(call: Callable[[Path], None], root: Path) -> int:
    """What a call says: that it has done it, that another does it, or that it is done already."""
    try:
        call(root)
    except Busy:
        return BUSY
    except NotAVolume:
        return ALREADY
    except UsageError as error:
        return ALREADY if "already a volume" in str(error) else FAILED
    return DONE


def started(work: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        number = FAILED
        try:
            number = work()
        finally:
            os._exit(number)
    return child


def at_once(root: Path, *calls: Callable[[Path], None]) -> list[int]:
    """The outcomes of calls in processes of their own, which begin together."""
    read_fd, write_fd = os.pipe()

    def work(call: Callable[[Path], None]) -> int:
        os.close(write_fd)
        os.read(read_fd, 1)  # until all are there, and the other end is closed
        return outcome(call, root)

    children = [started(lambda call=call: work(call)) for call in calls]  # type: ignore[misc]
    os.close(read_fd)
    os.close(write_fd)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_of_many_calls_one_enables_and_one_disables(tmp_path: Path) -> None:
    """The directory's own time may be that of the race: one call may read it between the moment
    when another has made `.dedupd` and the one when it has set the time back."""
    root = make(tmp_path / "r")
    before = look(root)
    for _ in range(2):
        for call in (enabled, disabled):
            outcomes = Counter(at_once(root, *[call] * CALLS))
            assert (outcomes[DONE], outcomes[FAILED]) == (1, 0), outcomes
    after = look(root)
    assert after.pop(".")[0] == before.pop(".")[0]
    assert after == before
    assert not (root / ".dedupd").exists()


def test_enabling_and_disabling_together_end_in_one_of_both(tmp_path: Path) -> None:
    """The directory's own time may be that of the race: one call reads it while another sets it."""
    root = make(tmp_path / "r")
    before = look(root)
    entries = {name: entry for name, entry in before.items() if name != "."}
    for _ in range(2):
        outcomes = at_once(root, *[enabled, disabled] * (CALLS // 2))
        assert FAILED not in outcomes
        if (root / ".dedupd").exists():
            moved = look(root / ".dedupd/data")
            assert moved.pop(".")[0] == before["."][0]
            assert moved == entries
            Volume.open(str(root)).close()
            disabled(root)
        assert look(root)["file"] == before["file"]
        assert {*look(root)} == {*before}
        assert stat.S_IMODE(root.stat().st_mode) == 0o1751


@pytest.mark.parametrize("point", [*ENABLE_POINTS, *DISABLE_POINTS])
def test_a_killed_call_leaves_the_lock_to_the_next_ones(tmp_path: Path, point: str) -> None:
    root = make(tmp_path / "r")
    before = look(root)
    call = enabled
    if point in DISABLE_POINTS:
        enabled(root)
        call = disabled

    def killed() -> int:
        def die(name: str) -> None:
            if name == point:
                os.kill(os.getpid(), signal.SIGKILL)

        failpoint.hook = die
        return outcome(call, root)

    child = started(killed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    outcomes = Counter(at_once(root, *[call] * 3))
    assert (outcomes[DONE], outcomes[FAILED]) == (1, 0), outcomes
    if call is enabled:
        disabled(root)
    assert look(root) == before


@pytest.mark.parametrize("call", [enabled, disabled])
def test_a_call_in_progress_is_named_with_its_process(
    tmp_path: Path, call: Callable[[Path], None]
) -> None:
    root = make(tmp_path / "r")
    if call is disabled:
        enabled(root)
    else:
        (root / ".dedupd").mkdir(0o700)
    with (
        opened(os.open(root / ".dedupd", os.O_RDONLY)) as fd,
        locked(fd, ""),
        pytest.raises(Busy, match=rf"in progress; wait for it \(process {os.getpid()}, "),
    ):
        call(root)


@pytest.mark.root
def test_a_user_cannot_hold_the_lock(tmp_path: Path) -> None:
    """A user who may write to the directory makes `.dedupd` first, and locks it."""
    root = make(tmp_path / "r")
    (root / ".dedupd").mkdir(0o700)
    os.chown(root / ".dedupd", 40001, 40001)
    with (
        opened(os.open(root / ".dedupd", os.O_RDONLY)) as fd,
        locked(fd, ""),
        pytest.raises(
            UsageError, match=r"rename the entry, for example `mv -T .*/dedupd-of-a-user`"
        ),
    ):
        enabled(root)
