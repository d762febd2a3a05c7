"""The service and its mounts under systemd, which is process 1 of namespaces of its own.

It knows the units of a directory of the test alone, and changes no setting of the kernel.
"""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.lab import REPOSITORY, noise, prose
from tests.vm.guest.disks import made, run

UNITS = REPOSITORY / "packaging/systemd"
SYSTEMD = "/lib/systemd/systemd"
WAIT_S = 300

_TARGETS = ("sysinit", "basic", "local-fs", "remote-fs", "shutdown", "umount", "final", "rescue")

_BOOT = """
set -e
mount --make-rprivate /
# Mounts of others end when these end them, and not here.
cut -d' ' -f5 /proc/self/mountinfo | tac | while read -r place; do
    case "$place" in / | /proc* | /sys* | /dev*) continue ;; esac
    case {disk}/ in "$place"/*) continue ;; esac
    umount -l "$place" 2>/dev/null || true
done
mkdir {base}/dev && mount -t tmpfs -o mode=755 dev {base}/dev
for name in null zero full random urandom tty fuse; do cp -a /dev/$name {base}/dev; done
mkdir {base}/dev/shm {base}/dev/pts {base}/dev/mqueue {base}/dev/hugepages
ln -s /proc/self/fd {base}/dev/fd
mount --bind {base}/dev /dev
for place in /run /var/log /var/lib/systemd; do
    mkdir -p $place
    mount -t tmpfs own $place
done
mkdir /run/lock /run/log
mountpoint -q /sys/fs/cgroup && umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys
mount --make-rshared /
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH={base}/units \\
    SYSTEMD_GENERATOR_PATH={base}/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH={base}/none \\
    {systemd} --system --unit=default.target --show-status=no
"""


@dataclass
class Machine:
    """A systemd with a service, and a volume on a disk that it has."""

    base: Path
    root: Path
    process: int
    """Of systemd."""

    def inside(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        where = ["nsenter", "-t", str(self.process), "-m", "-p", "-C", "-u", "-i", "--wd=/"]
        settings = [f"PYTHONPATH={REPOSITORY}", f"DEDUPD_CONFIG={self.base}/etc/dedupd.toml"]
        return subprocess.run(
            [*where, "env", *settings, *command], capture_output=True, text=True, check=False
        )

    def must(self, *command: str | Path) -> str:
        done = self.inside(*command)
        assert done.returncode == 0, f"{[*map(str, command)]}: {done.stdout}{done.stderr}"
        return done.stdout

    def dedupd(self, *arguments: str | Path) -> str:
        return self.must(sys.executable, "-P", "-m", "dedupd.cli.main", *arguments)

    @property
    def mount(self) -> dict[str, object]:
        """What the service says of the mount."""
        (volume,) = json.loads(self.dedupd("status", "--json"))["volumes"]
        found: dict[str, object] = volume["mount"]
        return found

    @property
    def unit(self) -> str:
        """The unit of the mount; empty where there is none."""
        listed = self.must("systemctl", "list-units", "--plain", "--no-legend", "--state=active")
        names = [line.split()[0] for line in listed.splitlines()]
        return next((name for name in names if name.startswith("dedupd-mount@")), "")

    def property(self, name: str, unit: str) -> str:
        return self.must("systemctl", "show", "-p", name, "--value", unit).strip()

    def read(self, name: str) -> bytes | None:
        """A file of the volume; None where users get an error."""
        code = "import sys; sys.stdout.write(open(sys.argv[1], 'rb').read().hex())"
        done = self.inside(sys.executable, "-c", code, self.root / name)
        return bytes.fromhex(done.stdout) if done.returncode == 0 else None

    @contextmanager
    def open_file(self, name: str) -> Iterator[None]:
        """A program that has a file open."""
        program = ["sh", "-c", f"exec 5<{shlex.quote(str(self.root / name))}; echo open; read end"]
        where = ["nsenter", "-t", str(self.process), "-m", "-p", "-C", "--wd=/"]
        pipe = subprocess.PIPE
        with subprocess.Popen([*where, *program], stdin=pipe, stdout=pipe) as user:
            assert user.stdout is not None and user.stdin is not None
            assert user.stdout.readline() == b"open\n"
            yield
            user.stdin.close()


def eventually(probe: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not probe():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.2)


def _write_units(base: Path) -> None:
    units = base / "units"
    units.mkdir()
    (base / "none").mkdir()
    for name in _TARGETS:
        (units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (units / "default.target").write_text(
        "[Unit]\nDefaultDependencies=no\nRequires=basic.target\nAllowIsolate=yes\n"
    )
    program = f"/usr/bin/env PYTHONPATH={REPOSITORY} {sys.executable} -P -m dedupd.cli.main"
    for unit in UNITS.iterdir():
        text = unit.read_text()
        serve = f"serve --config {base}/etc/dedupd.toml"
        text = text.replace("/usr/bin/dedupd serve\n", f"{program} {serve}\n")
        (units / unit.name).write_text(text.replace("/usr/bin/dedupd", program))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    base = tmp_path / "m"
    (base / "etc/volumes.d").mkdir(parents=True)
    _write_units(base)
    with made(tmp_path, ["mkfs.ext4", "-q"]) as disk:
        root = disk / "volume"
        root.mkdir()
        for number in range(4):
            (root / f"f{number}").write_bytes(prose(300_000) + noise(1000, number))
        (base / "etc/dedupd.toml").write_text('socket = "/run/dedupd.sock"\nguard_below = true\n')
        boot = _BOOT.format(base=base, disk=disk, systemd=SYSTEMD)
        flags = ["--mount", "--pid", "--fork", "--mount-proc", "--cgroup", "--uts", "--ipc"]
        flags += ["--propagation", "private", "--kill-child"]
        outer = subprocess.Popen(["unshare", *flags, "sh", "-c", boot], stdin=subprocess.DEVNULL)
        try:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            eventually(lambda: children.read_text().strip(), "unshare forks")
            machine = Machine(base, root, int(children.read_text().split()[0]))
            ready = ["systemctl", "is-active", "basic.target"]
            eventually(lambda: machine.inside(*ready).returncode == 0, "systemd is ready")
            machine.dedupd("enable", root)
            machine.dedupd("umount", root)
            machine.must("systemctl", "start", "dedupd")
            yield machine
        finally:
            outer.kill()
            outer.wait()
            run("sync")


def test_a_mount_runs_in_a_unit_that_is_confined(machine: Machine) -> None:
    content = prose(300_000) + noise(1000, 0)
    unit = machine.unit
    pid = machine.property("MainPID", unit)
    assert int(pid) == machine.mount["pid"]
    assert machine.read("f0") == content
    same = "for n in mnt net; do test /proc/{}/ns/$n -ef /proc/1/ns/$n && echo same; done; true"
    assert machine.must("sh", "-c", same.format(pid)) == ""
    # What users do, the process may do.
    machine.must("mknod", machine.root / "null", "c", "1", "3")
    machine.must("cp", "/bin/true", machine.root / "program")
    machine.must("chmod", "6755", machine.root / "program")
    machine.must("chattr", "+i", machine.root / "program")
    machine.must("chattr", "-i", machine.root / "program")
    machine.dedupd("mount", "-o", "remount,noatime", machine.root)
    assert machine.inside("systemctl", "stop", unit).returncode != 0
    guarded = "from dedupd.service.client import ServiceClient as Client; import sys;"
    guarded += " guard = Client('/run/dedupd.sock').get('/v1/service')['guard'];"
    guarded += " sys.exit(not guard['guarded'])"
    is_guarded = [sys.executable, "-c", guarded]
    eventually(lambda: machine.inside(*is_guarded).returncode == 0, "the guard recognizes it")


def test_a_mount_is_there_again_after_its_process_died(machine: Machine) -> None:
    content, unit = machine.read("f1"), machine.unit
    assert content is not None

    def served_by_another(pid: str) -> bool:
        now = machine.property("MainPID", unit)
        return now not in ("0", pid) and machine.read("f1") == content

    for number in (signal.SIGKILL, signal.SIGTERM):
        pid = machine.property("MainPID", unit)
        machine.must("kill", f"-{int(number)}", pid)
        eventually(partial(served_by_another, pid), "it is mounted again")
    pid = machine.property("MainPID", unit)
    machine.must("umount", machine.root)
    eventually(partial(served_by_another, pid), "it is mounted again")


def test_a_mount_in_use_stays(machine: Machine) -> None:
    """Whether the service starts again, is killed, or is stopped, and while the machine shuts
    down."""
    unit = machine.unit
    pid = machine.property("MainPID", unit)
    with machine.open_file("f2"):
        machine.must("systemctl", "restart", "dedupd")
        machine.must("kill", "-9", machine.property("MainPID", "dedupd.service"))
        eventually(lambda: machine.inside(*_STATUS).returncode == 0, "the service is back")
        assert machine.inside("umount", machine.root).returncode != 0
        assert machine.inside("umount", machine.root.parent).returncode != 0
        machine.must("systemctl", "start", "shutdown.target")
        state = ["systemctl", "is-active", "dedupd.service"]
        eventually(lambda: machine.inside(*state).stdout == "inactive\n", "the service stops")
        assert machine.property("MainPID", unit) == pid
        assert machine.read("f2") is not None
    machine.must("systemctl", "stop", "shutdown.target")
    machine.must("systemctl", "start", "dedupd")
    assert machine.mount["pid"] == int(pid)
    machine.must("systemctl", "stop", "dedupd")
    assert "fuse.dedupd" not in Path(f"/proc/{machine.process}/mountinfo").read_text()
    eventually(lambda: not machine.unit, "the unit of the mount ends")


_STATUS = [sys.executable, "-P", "-m", "dedupd.cli.main", "status"]
