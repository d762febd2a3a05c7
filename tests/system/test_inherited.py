"""What a process inherits from its caller reaches neither users nor volumes."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.system.inherited import lift_limits, take_normal_priority
from dedupd_core.system.processes import server_environment
from tests.support.closed_streams import CLOSED, command_without
from tests.support.sources import ROOT

LIMITS = ("RLIMIT_FSIZE", "RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_DATA")
LARGE = 1 << 40
"""A limit that stops nothing here."""

PROGRAM = """
import os, sys
sys.path.insert(0, os.getcwd())
from dedupd_core.system.inherited import open_standard_streams
open_standard_streams()
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
sys.stdin.read()
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(fd, b" ".join(os.readlink(f"/proc/self/fd/{fd}").encode() for fd in (0, 1, 2)))
sys.exit(fd < 3)
"""


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_a_closed_stream_is_no_number_for_a_file(closed: tuple[int, ...], tmp_path: Path) -> None:
    run = command_without(closed, "dedupd")  # its python, which is given a program instead
    run[run.index("-P") :] = ["-c", PROGRAM, str(tmp_path / "file")]
    done = subprocess.run(
        run, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "file").read_text().split()
    assert [shown[fd] for fd in closed] == [os.devnull] * len(closed)
    assert done.stdout == ("" if 1 in closed else "out\n")
    assert done.stderr == ("" if 2 in closed else "err\n")


def in_child(action: Callable[[], str]) -> str:
    """What an action says, in a process of its own."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_fd, action().encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as output:
        said = output.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_the_caller_is_removed(name: str) -> None:
    def action() -> str:
        number: int = getattr(resource, name)
        resource.setrlimit(number, (LARGE, resource.getrlimit(number)[1]))
        lift_limits()
        return str(resource.getrlimit(number)[0] == resource.RLIM_INFINITY)

    assert in_child(action) == "True"


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_cannot_be_removed_is_refused(name: str) -> None:
    def action() -> str:
        if os.geteuid() == 0:
            native.system.give_up_capability("CAP_SYS_RESOURCE")
        resource.setrlimit(getattr(resource, name), (LARGE, LARGE))
        try:
            lift_limits()
        except UsageError as error:
            return str(error)
        return "lifted"

    said = in_child(action)
    assert "limits it to" in said and "`ulimit -H -" in said


@pytest.mark.root
@pytest.mark.parametrize(("nice", "expected"), [(10, 0), (-5, -5)])
def test_only_a_lower_priority_is_not_kept(nice: int, expected: int) -> None:
    def action() -> str:
        os.nice(nice)
        take_normal_priority()
        return str(os.nice(0))

    assert in_child(action) == str(expected)


def test_blocked_signals_are_not_kept() -> None:
    def action() -> str:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        take_normal_priority()
        return str(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    assert in_child(action) == "set()"


def test_a_shell_s_variables_do_not_reach_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = ("LD_PRELOAD", "PYTHONOPTIMIZE", "PYTHONINSPECT", "TMPDIR", "AWS_SECRET_ACCESS_KEY")
    kept = ("PATH", "LC_ALL", "XDG_RUNTIME_DIR", "DEDUPD_CONFIG", "CEPH_CONF")
    for name in (*dropped, *kept):
        monkeypatch.setenv(name, "x")
    found = server_environment()
    assert not {*dropped} & {*found}
    assert {*kept, "PYTHONPATH"} <= {*found}
