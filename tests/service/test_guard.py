"""The guard below mounts: a program that opens a stub past the mount gets an error."""

import errno
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dedupd_core.units import KIB
from tests.conftest import MakeFileSystem
from tests.support.lab import REPOSITORY, Lab, noise
from tests.support.service import ServiceLab, eventually, has_ended, service_lab

pytestmark = pytest.mark.root

CONTENT = noise(300 * KIB)

KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
REFUSED = errno.EIO if KERNEL >= (6, 13) else errno.EPERM


@pytest.fixture
def machine(loop_fs: MakeFileSystem) -> Iterator[ServiceLab]:
    with service_lab(loop_fs()) as machine:
        machine.configure("guard_below = true\n")
        yield machine


@pytest.fixture
def beside(machine: ServiceLab, tmp_path: Path) -> Iterator[Path]:
    """Another mount of the machine's file system, without the mounts that lie on it."""
    point = tmp_path / "beside"
    point.mkdir()
    subprocess.run(["mount", "--bind", machine.base, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


def served(machine: ServiceLab) -> Lab:
    """A mounted volume with a stub ``f`` and a plain file ``plain``."""
    lab = machine.add_volume()
    lab.put("f", CONTENT)
    lab.optimize()
    lab.put("plain", b"as it was written")
    machine.start()
    machine.mount_pid(lab)
    return lab


def guard_view(machine: ServiceLab) -> dict[str, Any]:
    view: dict[str, Any] = machine.client.get("/v1/service")["guard"]
    return view


def guard_pid(machine: ServiceLab) -> int:
    eventually(lambda: guard_view(machine)["guarded"] == [str(machine.base)], "it guards")
    assert machine.process is not None
    (guard,) = (
        one
        for one in psutil.Process(machine.process.pid).children()
        if one.name() == "dedupd-guard"
    )
    return int(guard.pid)


def error_of(path: Path) -> int:
    """The error with which another program fails to open a file; 0 if it reads it."""
    script = "import sys\ntry: open(sys.argv[1]).close()\nexcept OSError as e: sys.exit(e.errno)"
    return subprocess.run([sys.executable, "-c", script, path], check=False).returncode


def in_tree(beside: Path, name: str) -> Path:
    return beside / "volume" / ".dedupd" / "data" / name


def refusals(machine: ServiceLab) -> list[str]:
    return [line for line in machine.log.read_text().splitlines() if "below its mount" in line]


def test_a_program_that_opens_a_stub_past_the_mount_gets_an_error_and_is_named(
    machine: ServiceLab, beside: Path
) -> None:
    lab = served(machine)
    guard_pid(machine)
    with subprocess.Popen(
        ["cat", in_tree(beside, "f")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        output, said = program.communicate()
    assert program.returncode == 1 and output == b""
    assert os.strerror(REFUSED).encode() in said
    eventually(lambda: refusals(machine), "it is logged")
    (line,) = refusals(machine)
    for part in ("program cat", f"process {program.pid}", "user 0", str(in_tree(beside, "f"))):
        assert part in line
    assert in_tree(beside, "plain").read_bytes() == b"as it was written"
    assert (lab.root / "f").read_bytes() == CONTENT
    assert f"on for {machine.base}, 1 open refused" in eventually(
        lambda: next(
            (x for x in [machine.run("doctor", "--json").stdout] if "1 open refused" in x), None
        ),
        "doctor counts it",
    )


def test_jobs_work_and_users_write_while_it_guards(machine: ServiceLab, beside: Path) -> None:
    lab = served(machine)
    guard_pid(machine)
    (lab.root / "new").write_bytes(CONTENT)
    for job in ("optimize", "gc"):
        ended = machine.ended(machine.submit(job, lab))
        assert ended["exit_status"] == 0, ended
    assert error_of(in_tree(beside, "new")) == REFUSED, "it has become a stub"
    with open(lab.root / "f", "r+b") as file:
        file.write(b"changed")
    assert (lab.root / "f").read_bytes() == b"changed" + CONTENT[7:]
    assert (lab.root / "new").read_bytes() == CONTENT
    (machine.base / "copy").mkdir()
    copy = machine.run("restore", "new", "--from", beside / "volume", "--to", machine.base / "copy")
    assert copy.returncode == 0, copy.stdout + copy.stderr
    assert (machine.base / "copy" / "new").read_bytes() == CONTENT


def test_the_kernel_asks_the_guard_nothing_about_the_mount_and_its_neighbours(
    machine: ServiceLab,
) -> None:
    lab = served(machine)
    neighbour = machine.base / "neighbour"
    neighbour.write_bytes(b"beside the volume")
    pid = guard_pid(machine)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert (lab.root / "f").read_bytes() == CONTENT
        assert (lab.root / "plain").read_bytes() == b"as it was written"
        assert error_of(neighbour) == 0
        assert not has_ended(pid), "they have not waited until it was killed"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_program_of_ours_opens_stubs_by_any_mount(machine: ServiceLab, beside: Path) -> None:
    served(machine)
    pid = guard_pid(machine)
    script = (
        "import sys; from dedupd_core.system.processes import register; register();"
        "open(sys.argv[1]).close()"
    )
    program = [sys.executable, "-c", script, str(in_tree(beside, "f"))]
    subprocess.run(program, check=True, cwd="/", env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert error_of(in_tree(beside, "f")) == REFUSED
    machine.kill()
    eventually(lambda: has_ended(pid), "no guard outlives its service")
    assert error_of(in_tree(beside, "f")) == 0


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_guard_that_ends_or_hangs_holds_nobody_up(
    machine: ServiceLab, beside: Path, number: signal.Signals
) -> None:
    lab = served(machine)
    pid = guard_pid(machine)
    os.kill(pid, number)
    assert error_of(in_tree(beside, "plain")) == 0
    eventually(lambda: has_ended(pid), "it is killed")
    assert error_of(in_tree(beside, "f")) == 0, "it fails open"
    assert (lab.root / "f").read_bytes() == CONTENT
    eventually(lambda: guard_view(machine)["problem"], "it is told")


def test_a_new_mount_process_is_exempt_and_a_stop_leaves_no_guard(
    machine: ServiceLab, beside: Path
) -> None:
    lab = served(machine)
    first = guard_pid(machine)
    pid = machine.mount_pid(lab)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: machine.view(lab)["mount"]["pid"] not in (pid, None), "it is mounted again")
    assert (lab.root / "f").read_bytes() == CONTENT
    eventually(lambda: has_ended(first), "the guard knows the new mount")
    second = guard_pid(machine)
    assert error_of(in_tree(beside, "f")) == REFUSED
    assert machine.stop() == 0
    assert has_ended(second)
    assert error_of(in_tree(beside, "f")) == 0


def test_it_is_off_unless_it_is_asked_for(machine: ServiceLab, beside: Path) -> None:
    machine.configure()
    served(machine)
    assert error_of(in_tree(beside, "f")) == 0
    assert "guard below mounts: off" in machine.run("doctor", "--json").stdout
    machine.configure("guard_below = true\n")
    machine.client.post("/v1/reload", {})
    guard_pid(machine)
    assert error_of(in_tree(beside, "f")) == REFUSED
