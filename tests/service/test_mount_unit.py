"""Mount processes in units of systemd. A stand-in of ``systemctl`` gives each process what the unit
gives it: a file system namespace of its own, and fewer rights."""

import mmap
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.system import mount_table
from fuse_stub.mounts.handover import ServiceConnection, meeting_place
from fuse_stub.mounts.mount_points import is_dead
from tests.support.lab import REPOSITORY, Lab, noise
from tests.support.rights import WRITING, assert_bounded
from tests.support.service import (
    ServiceLab,
    eventually,
    has_ended,
    is_mounted,
    service_lab,
)

pytestmark = pytest.mark.root

UNIT = REPOSITORY / "packaging/systemd/dedupd-mount@.service"

_SYSTEMCTL = """#!/bin/sh
echo "$@" >>{calls}
test ! -e {refusal} || {{ cat {refusal} >&2; exit 1; }}
for unit; do :; done
case " $* " in *" is-active "*) pgrep -f -- "--mount ${{unit#dedupd-mount@}}" >>{log}; exit ;; esac
volume=${{unit#dedupd-mount@}}
export PYTHONPATH={sources}
setsid unshare --mount --propagation slave \\
    setpriv --no-new-privs --bounding-set=-all,{rights} \\
    {python} -P -m dedupd.cli.main serve --mount "${{volume%.service}}" </dev/null >>{log} 2>&1 &
"""


class UnitLab:
    """A machine whose service has units for its mounts."""

    def __init__(self, base: Path, machine: ServiceLab) -> None:
        self.machine = machine
        self.calls, self.log, self.refusal = (base / name for name in ("calls", "log", "refusal"))
        programs = base / "bin"
        programs.mkdir()
        words = " ".join(re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.M))
        self._systemctl = stand_in = programs / "systemctl"
        stand_in.write_text(
            _SYSTEMCTL.format(
                calls=self.calls,
                refusal=self.refusal,
                sources=REPOSITORY,
                rights=",".join("+" + one.removeprefix("CAP_").lower() for one in words.split()),
                python=sys.executable,
                log=self.log,
            )
        )
        stand_in.chmod(0o755)
        # No job waits for a systemd that is not there.
        (programs / "systemd-run").symlink_to("/bin/false")
        self._path = f"{programs}:{os.environ['PATH']}"

    def run_instead(self, program: str) -> None:
        """Have units run something else than the process of a mount."""
        text = self._systemctl.read_text()
        self._systemctl.write_text(
            text[: text.index("setsid")] + f"({program}) >>{self.log} 2>&1 &\n"
        )

    def start(self) -> None:
        self.machine.start(INVOCATION_ID="1", PATH=self._path)


@contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Have the namespaces of units see what is mounted in a directory, as on a machine with systemd
    all mounts are."""
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    try:
        subprocess.run(["mount", "--make-shared", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[UnitLab]:
    with shared(tmp_path), service_lab(tmp_path) as machine:
        yield UnitLab(tmp_path, machine)


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def assert_serves(volume: Lab, content: bytes) -> None:
    """It does what needs the mount's own process, the service's help, or the worker for pages."""
    assert (volume.root / "f").read_bytes() == content
    os.mknod(volume.root / "null", 0o666 | 0o020000, os.makedev(1, 3))
    os.unlink(volume.root / "null")
    with open(volume.root / "sparse", "w+b", buffering=0) as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as pages:
            pages[1 << 19] = 1
            # Of a page that a program changes in its memory, the worker tells the mount.
            assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 1 << 19
    os.unlink(volume.root / "sparse")
    device = os.stat(volume.root).st_dev
    read_ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    assert read_ahead.read_text() == "1024\n"


def test_a_mount_process_has_a_namespace_and_rights_of_its_own(lab: UnitLab) -> None:
    machine = lab.machine
    volume = machine.add_volume()
    content = noise(200_000)
    volume.put("f", content)
    volume.optimize()
    assert volume.stub("f") is not None
    lab.start()
    pid = machine.mount_pid(volume)
    assert namespace(pid) != namespace(os.getpid())
    assert_bounded(pid, WRITING)
    assert_serves(volume, content)
    assert machine.run("umount", volume.root).returncode == 0
    assert not is_mounted(volume) and has_ended(pid)
    assert machine.run("mount", volume.root).returncode == 0
    assert_serves(volume, content)
    assert machine.stop() == 0
    assert not is_mounted(volume)
    machine.verify()
    assert lab.calls.read_text().count("start -- dedupd-mount@") == 2


def test_access_times_of_a_mount_in_a_unit_change(lab: UnitLab) -> None:
    machine = lab.machine
    volume = machine.add_volume()
    (machine.volumes_directory / "volume.toml").write_text(
        f'path = "{volume.root}"\noptions = "noatime"\n'
    )
    lab.start()
    machine.mount_pid(volume)

    def is_moved(name: str) -> bool:
        """Whether the first read of a file moves its access time."""
        path = volume.root / name
        path.write_bytes(bytes(100_000))
        os.utime(path, ns=(1, 2))
        path.read_bytes()
        return os.stat(path).st_atime_ns != 1

    assert not is_moved("first")
    done = machine.run("mount", "-o", "remount,strictatime", volume.root)
    assert done.returncode == 0, done.stderr
    assert is_moved("second")
    assert os.statvfs(volume.root).f_flag & os.ST_NOATIME == 0


def test_a_dead_mount_is_replaced_from_outside(lab: UnitLab) -> None:
    machine = lab.machine
    volume = machine.add_volume()
    content = noise(100_000)
    volume.put("f", content)
    lab.start()
    pid = machine.mount_pid(volume)
    os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        mount = machine.view(volume)["mount"]
        return bool(mount["state"] == "mounted" and mount["pid"] != pid)

    eventually(again, "it is mounted again")
    assert_serves(volume, content)
    points = [mount.point for mount in mount_table.volumes()]
    assert points.count(str(volume.root)) == 1


def test_a_mount_in_a_unit_outlives_the_service(lab: UnitLab) -> None:
    machine = lab.machine
    volume = machine.add_volume()
    volume.put("f", b"content")
    lab.start()
    pid = machine.mount_pid(volume)
    with open(volume.root / "f", "rb") as file:
        machine.kill()
        lab.start()
        assert machine.mount_pid(volume) == pid
        assert file.read() == b"content"


def test_without_a_unit_the_process_runs_beside_the_service(lab: UnitLab) -> None:
    machine = lab.machine
    volume = machine.add_volume()
    volume.put("f", b"content")
    lab.refusal.write_text("Failed to start: no such unit\n")
    lab.start()
    assert namespace(machine.mount_pid(volume)) == namespace(os.getpid())
    assert (volume.root / "f").read_bytes() == b"content"
    machine.stop()
    assert "no unit of its own: Failed to start: no such unit" in machine.log.read_text()


@pytest.mark.parametrize("dies", ["before it calls", "before it answers"])
def test_a_process_that_cannot_run_in_a_unit_runs_beside_the_service(
    lab: UnitLab, dies: str
) -> None:
    """Whatever the unit takes away: users have their files."""
    volume = lab.machine.add_volume()
    volume.put("f", b"content")
    program = "exit 1"
    if dies == "before it answers":
        program = f"exec {sys.executable} -P -c '{_CALLS_AND_ENDS}' \"$volume\""
    lab.run_instead(program)
    lab.start()
    assert namespace(lab.machine.mount_pid(volume)) == namespace(os.getpid())
    assert (volume.root / "f").read_bytes() == b"content"
    lab.machine.stop()
    assert "no unit of its own" in lab.machine.log.read_text()


_CALLS_AND_ENDS = (
    "import sys; from fuse_stub.mounts.handover import Line;"
    ' Line.to_service(sys.argv[1].removesuffix(".service")).receive()'
)


def test_a_failure_of_the_process_is_that_of_the_mount(lab: UnitLab) -> None:
    """Also one of the service, once the process has the mount: both know that there is none."""
    machine = lab.machine
    volume = machine.add_volume()
    config = machine.volumes_directory / "volume.toml"
    config.write_text(f'path = "{volume.root}"\nmountpoint = "{machine.base}/missing"\n')
    lab.start()
    problem = machine.view(volume)["mount"]["problem"]
    assert "missing" in problem, problem
    # The process has ended, so that the volume is free.
    config.write_text(f'path = "{volume.root}"\n')
    machine.client.post("/v1/reload", {})
    machine.mount_pid(volume)


def test_what_a_process_left_that_ended_in_order_is_unmounted(lab: UnitLab) -> None:
    """The unit does that: without the service nobody else would."""
    machine = lab.machine
    volume = machine.add_volume()
    lab.start()
    pid = machine.mount_pid(volume)
    machine.kill()
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: has_ended(pid), "the process ends")
    assert is_dead(str(volume.root))
    (uuid,) = {mount.volume for mount in mount_table.volumes() if mount.point == str(volume.root)}
    done = machine.run("serve", "--after", uuid)
    assert done.returncode == 0, done.stderr
    assert not is_mounted(volume)
    (stop,) = re.findall(r"^ExecStopPost=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert stop.startswith("+") and "dedupd serve --after %i" in stop


def test_a_process_for_which_no_service_waits_ends(tmp_path: Path) -> None:
    with service_lab(tmp_path) as machine:
        done = machine.run("serve", "--mount", "0" * 8)
        assert done.returncode == 3 and "no service waits" in done.stderr, done.stderr


def test_a_line_says_what_went_wrong() -> None:
    ours, theirs = (
        ServiceConnection(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    )
    with open(os.devnull) as null:
        ours.send({"path": "/\udcff"}, [null.fileno()])
    message, fds = theirs.receive()
    assert message == {"path": "/\udcff"} and len(fds) == 1 and not os.get_inheritable(fds[0])
    os.close(fds[0])
    theirs.send({"error": "gone", "kind": "Busy"})
    with pytest.raises(Exception, match="gone") as caught:
        ours.receive()
    assert type(caught.value).__name__ == "Busy"
    theirs.close()
    with pytest.raises(ServiceUnreachable):
        ours.receive()
    ours.close()
    assert meeting_place("uuid").startswith("/run/dedupd/")
