"""Whatever the caller has closed, limited or blocked: users and jobs do not notice."""

import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.system.files import opened
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_process import mount_in_background
from tests.support.closed_streams import (
    CLOSED,
    STREAMS,
    command_without,
    environment,
    run_without,
    streams_of,
)
from tests.support.lab import Lab, let_others_pass, new_lab, noise
from tests.support.mounts import ALICE, MountedLab, Started, as_user, mounted_lab
from tests.support.service import ServiceLab, service_lab

pytestmark = pytest.mark.root

CONTENT = noise(200_000)
NULL = {os.devnull}
SLOWER = [pytest.param(one, marks=[pytest.mark.slow] * (len(one) == 2)) for one in CLOSED]
"""Each takes a second or more: pairs of streams are slow tests."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("callers"), nursery=Started()) as lab:
        yield lab


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ServiceLab]:
    with service_lab(tmp_path) as machine:
        yield machine


# --- closed streams ---------------------------------------------------------------------------


@pytest.mark.parametrize("closed", SLOWER, ids=str)
def test_a_job_is_done_without_standard_streams(lab: MountedLab, closed: tuple[int, ...]) -> None:
    name = f"job-{closed}"
    (lab.view / name).write_bytes(CONTENT)
    done = run_without(closed, "dedupd.cli.main", "run", "optimize", lab.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert lab.stub(name) is not None
    assert (lab.view / name).read_bytes() == CONTENT


@pytest.mark.parametrize("closed", SLOWER, ids=str)
def test_a_mount_has_standard_streams_of_its_own(tmp_path: Path, closed: tuple[int, ...]) -> None:
    volume = new_lab(tmp_path / "volume")
    view = tmp_path / "view"
    view.mkdir()
    done = run_without(closed, "dedupd.cli.mount_helper", volume.root, view, "-v")
    assert (done.returncode, done.stderr) == (0, "")
    mounted = MountedLab(volume.root, view)
    try:
        status = mounted.status()
        assert isinstance(status["pid"], int)
        assert streams_of(status["pid"]) == NULL
        (view / "f").write_bytes(CONTENT)
    finally:
        mounted.unmount()
    assert (volume.data / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("closed", SLOWER, ids=str)
def test_the_process_of_a_mount_opens_its_streams(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """As one that is started by a parent that has closed them."""
    volume = new_lab(tmp_path / "volume")
    view = tmp_path / "view"
    view.mkdir()
    read_fd, write_fd = os.pipe()
    with opened(read_fd), Volume.open(str(volume.root)) as opened_volume:
        arguments = (str(volume.root), str(opened_volume.base_fd), str(view), str(MIB), "")
        command = command_without(closed, "fuse_stub", *arguments, str(write_fd))
        fds = [write_fd, opened_volume.base_fd]
        served = subprocess.Popen(command, pass_fds=fds, env=environment(), cwd="/")
        os.close(write_fd)
        assert json.loads(os.read(read_fd, 1 << 16)) == {}
    mounted = MountedLab(volume.root, view)
    try:
        shown = [os.readlink(f"/proc/{served.pid}/fd/{fd}") for fd in STREAMS]
        assert {shown[fd] for fd in closed} == NULL
    finally:
        mounted.unmount()
    assert served.wait() == 0


@pytest.mark.parametrize("closed", SLOWER, ids=str)
def test_a_service_and_its_jobs_have_standard_streams(
    machine: ServiceLab, closed: tuple[int, ...]
) -> None:
    volume = machine.add_volume()
    command = command_without(closed, "dedupd.cli.main", "serve", "--config", machine.config)
    with subprocess.Popen(command, env=environment(), cwd="/", stderr=subprocess.PIPE) as program:
        machine.wait_until_it_listens()
        machine.mount_pid(volume)
        (volume.root / "f").write_bytes(CONTENT)
        assert machine.ended(machine.submit("optimize", volume))["outcome"] == "done"
        assert {os.readlink(f"/proc/{program.pid}/fd/{fd}") for fd in closed} == NULL
        program.terminate()
        _, said = program.communicate()
    assert program.returncode == 0, said
    assert b"Traceback" not in said
    assert volume.stub("f") is not None


@pytest.mark.parametrize(
    ("closed", "command", "name"),
    [(1, ["send"], "output"), (0, ["send", "--negotiate"], "input"), (0, ["receive"], "input")],
    ids=str,
)
def test_a_closed_stream_that_carries_data_is_refused(
    tmp_path: Path, closed: int, command: list[str], name: str
) -> None:
    """Else a backup is done, and nothing is there."""
    place = tmp_path / "volume"
    if command == ["send"]:
        new_lab(place)
    done = run_without((closed,), "dedupd.cli.main", *command, place)
    assert done.returncode == 2
    assert f"standard {name}: is closed" in done.stderr


# --- limits, priority, environment ------------------------------------------------------------

FILE_BYTES = 3 * MIB


def call_with_limit(lab: Lab, view: Path, number: int, limits: tuple[int, int]) -> None:
    """Mount as a shell with a limit does, at low priority and with variables of its own."""
    resource.setrlimit(number, limits)
    os.nice(15)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.environ["SECRET_OF_THE_SHELL"] = "1"
    os.umask(0o077)
    mount_in_background(str(lab.root), str(view))


def test_a_caller_s_state_does_not_reach_users(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    view = tmp_path / "view"
    view.mkdir()
    let_others_pass(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limits = (MIB, hard)
    as_user(0, partial(call_with_limit, lab, view, resource.RLIMIT_FSIZE, limits))
    mounted = MountedLab(lab.root, view)
    try:
        pid = mounted.status()["pid"]
        assert isinstance(pid, int)
        os.chmod(view, 0o777)
        as_user(ALICE, partial((view / "f").write_bytes, bytes(FILE_BYTES)))
        assert (view / "f").stat().st_size == FILE_BYTES
        assert (view / "f").stat().st_mode & 0o777 == 0o666 & ~umask()
        assert b"SECRET_OF_THE_SHELL" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getpriority(os.PRIO_PROCESS, pid) == 0
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        blocked = f"SigBlk:\t{0:016x}"
        assert blocked in Path(f"/proc/{pid}/status").read_text()
    finally:
        mounted.unmount()


def umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before


def test_a_limit_that_users_would_hit_is_refused(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    view = tmp_path / "view"
    view.mkdir()

    def mount() -> None:
        native.system.give_up_capability("CAP_SYS_RESOURCE")
        with pytest.raises(UsageError, match="the size of files: the calling shell limits it"):
            call_with_limit(lab, view, resource.RLIMIT_FSIZE, (MIB, MIB))

    as_user(0, mount)
    assert not os.path.ismount(view)


def test_a_job_s_containers_may_be_larger_than_the_caller_s_files(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    content = noise(FILE_BYTES)
    lab.put("f", content)
    run = command_without((), "dedupd.cli.main", "run", "optimize", lab.root)
    run[2] = f"ulimit -S -f 1024; {run[2]}"
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert lab.stub("f") is not None
    assert lab.read("f") == content
