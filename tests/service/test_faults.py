"""What goes wrong with one volume, one job or one address is no end of the service."""

import asyncio
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd.service.config import VolumeConfig
from dedupd.service.job_process import JobProcess
from dedupd.service.mount_keeper import MountState
from dedupd.service.scheduler import Urgency
from dedupd.service.served_volume import ServedVolume
from dedupd.service.systemd.notify import Notifier
from dedupd_core.errors import EXIT_BUSY
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, new_lab
from tests.support.service import QUIET_POLICY, ServiceLab, is_mounted, reserved_port, service_lab

XFS_IOC_GOINGDOWN = 0x8004587D
"""What xfs_io -x -c shutdown does: the disk is gone, as far as XFS knows."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ServiceLab]:
    with service_lab(tmp_path) as machine:
        yield machine


def add_volume_at(machine: ServiceLab, root: Path) -> Lab:
    lab = new_lab(root)
    lab.set_policy(QUIET_POLICY)
    machine.volumes.append(lab)
    (machine.volumes_directory / f"{root.parent.name}.toml").write_text(f'path = "{root}"\n')
    return lab


@pytest.mark.root
def test_a_disk_that_is_gone_is_no_matter_of_other_volumes(
    loop_fs: MakeFileSystem, machine: ServiceLab
) -> None:
    disk = loop_fs("xfs", "300M")
    lost, other = add_volume_at(machine, disk / "volume"), machine.add_volume("other")
    machine.start()
    pid = machine.client.get("/v1/service")["pid"]
    machine.mount_pid(lost)
    fd = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(fd, XFS_IOC_GOINGDOWN, struct.pack("I", 2))
    os.close(fd)
    assert machine.ended(machine.submit("gc", lost))["exit_status"] != 0
    machine.client.act(str(lost.root), "pause")
    assert machine.ended(machine.submit("gc", other))["outcome"] == "done"
    assert machine.client.get("/v1/service")["pid"] == pid, "it is the same service"


@pytest.mark.root
def test_a_disk_that_takes_no_changes_is_read_and_no_job_is_begun(
    loop_fs: MakeFileSystem, machine: ServiceLab
) -> None:
    disk = loop_fs("ext4", options="errors=remount-ro")
    lab = add_volume_at(machine, disk / "volume")
    lab.put("f", b"content")
    machine.start()
    machine.mount_pid(lab)
    device = os.stat(disk).st_dev
    link = os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    Path("/sys/fs/ext4", os.path.basename(link), "trigger_fs_error").write_text("1")
    assert (lab.root / "f").read_bytes() == b"content"
    (problem,) = machine.client.get("/v1/service")["problems"]
    assert f"{lab.root}: the file system is read-only" in problem
    refused = machine.run("run", "optimize", lab.root)
    assert refused.returncode == EXIT_BUSY and "file system is read-only" in refused.stderr
    assert not any(machine.client.get("/v1/jobs").values())


@pytest.mark.root
def test_a_mount_that_hangs_keeps_others_from_nothing(machine: ServiceLab) -> None:
    hung, other = machine.add_volume("hung"), machine.add_volume("other")
    machine.start()
    pid = machine.mount_pid(hung)
    machine.mount_pid(other)
    os.kill(pid, signal.SIGSTOP)
    # Each is answered after a second, one after the other.
    readers = [ask_for_metrics(machine) for _ in range(100)]
    try:
        machine.client.act(str(other.root), "pause")
        answered, _, _ = select.select(readers, (), (), 0)
        assert len(answered) < len(readers), "it waited for the mount that hangs"
    finally:
        os.kill(pid, signal.SIGCONT)
        for reader in readers:
            with reader:
                while reader.recv(1 << 16):
                    pass


def ask_for_metrics(machine: ServiceLab) -> socket.socket:
    """A connection on which nothing has been answered yet."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(machine.socket))
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: dedupd\r\nConnection: close\r\n\r\n")
    return connection


@pytest.mark.root
def test_a_taken_address_keeps_no_volume_from_its_users(
    machine: ServiceLab,
) -> None:
    lab = machine.add_volume()
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        machine.configure(f'listen = "127.0.0.1:{squatter.getsockname()[1]}"\n')
        machine.start()
    assert is_mounted(lab)
    (problem,) = machine.client.get("/v1/service")["problems"]
    assert (
        "the page and the metrics are not available" in problem
        and "address already in use" in problem
    )


@pytest.mark.root
def test_a_request_without_a_host_asks_no_name_server(machine: ServiceLab) -> None:
    with reserved_port() as port:
        machine.configure(f'listen = "127.0.0.1:{port}"\n')
        machine.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/service") as response:
            assert response.status == 200
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /v1/service HTTP/1.0\r\n\r\n")
            with connection.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.0 403")


def run_job(monkeypatch: pytest.MonkeyPatch, program: str) -> JobProcess:
    """A job whose process is this program; ``channel`` is its end of the line."""
    program = (
        "import os, signal, socket\n"
        "channel = socket.socket(fileno=int(os.environ['DEDUPD_JOB_CHANNEL']))\n" + program
    )
    monkeypatch.setattr(JobProcess, "_command", lambda _: [sys.executable, "-c", program])

    async def run() -> JobProcess:
        job = JobProcess("gc-1", "uuid", "gc", "/", (), Urgency.BY_HAND, 0.0)
        async with asyncio.timeout(60):
            await job.run()
        return job

    return asyncio.run(run())


def test_a_job_that_is_killed_in_the_midst_of_a_line_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report of a hundred long names is more than the kernel takes at once."""
    job = run_job(
        monkeypatch,
        'channel.sendall(b\'{"report": {"messages": [\')\nos.kill(os.getpid(), signal.SIGKILL)',
    )
    assert job.failed and job.outcome == "killed by signal 9"


def test_a_line_without_end_does_not_keep_a_job_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    job = run_job(monkeypatch, "channel.sendall(bytes(40 << 20))")
    assert job.failed and "Broken pipe" in job.outcome


def test_only_a_name_that_begins_with_it_is_abstract(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "user@1000"))
        listener.settimeout(60)
        Notifier({"NOTIFY_SOCKET": str(tmp_path / "user@1000")}).stopping()
        assert listener.recv(100) == b"STOPPING=1"


def test_a_clock_set_back_does_not_change_how_long_a_volume_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else held it when the clock was a year ahead, and when a job ran."""
    volume = ServedVolume(VolumeConfig("/srv/share", "/srv/share"))
    volume.keeper.state, volume.keeper.uuid, volume.is_known = MountState.MOUNTED, "uuid", True
    volume.keeper._base_fd = os.open("/", os.O_PATH)
    clock_s, monotonic_s = time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: clock_s + 365 * 86400)
    job = JobProcess("gc-1", "uuid", "gc", "/srv/share", (), Urgency.WINDOW, 0.0, task="gc")
    job._began_s = time.monotonic()
    job.started_s = job.finished_s = time.time()
    job.exit_status, job.report = EXIT_BUSY, {}
    assert job.was_busy
    asyncio.run(volume.note_end(job))
    before = asyncio.run(volume.view())
    monkeypatch.setattr(time, "time", lambda: clock_s + 61)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic_s + 61)
    after = asyncio.run(volume.view())
    assert before is not None and not before.usable
    assert after is not None and after.usable
    assert 60 < job.running_s < 62
    volume.keeper._let_go()
