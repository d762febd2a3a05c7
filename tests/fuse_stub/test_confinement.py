"""The process of a mount has the rights that it needs, in all of its threads, and no others."""

import ctypes
import errno
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from fuse_stub import process
from fuse_stub.kernel.confinement import kept_capabilities
from fuse_stub.kernel.page_worker import ask_for_pages
from fuse_stub.mounts import mount_process
from tests.support.lab import REPOSITORY, let_others_pass, noise
from tests.support.mounts import (
    MountedLab,
    Nursery,
    Started,
    as_user,
    mounted_lab,
    serve_for_test,
)
from tests.support.rights import (
    READING,
    WRITING,
    assert_bounded,
    rights_of,
    rights_with,
    threads_of,
)

pytestmark = pytest.mark.root

USER = pwd.getpwnam("nobody").pw_uid
"""``fusermount3`` asks for the user's name."""

PROGRAM = (sys.executable, "-m", "dedupd.cli.main")


def children_of(pid: int) -> Iterator[int]:
    for thread in threads_of(pid):
        yield from map(int, (thread / "children").read_text().split())


def use(lab: MountedLab) -> None:
    """Do what threads of the mount are started for."""
    stub = lab.make_stub("stub", noise(3_000_000, 1))
    assert len(stub.read_bytes()) == 3_000_000
    with open(lab.view / "sparse", "w+b") as file:
        file.truncate(1 << 20)
        file.write(b"x")
        os.fsync(file.fileno())
        # Before it reports a hole, the mount asks its worker for newer pages.
        os.lseek(file.fileno(), 0, os.SEEK_HOLE)
    os.unlink(lab.view / "sparse")


def serve_with_log(
    log_socket: str, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """Serve a mount on a machine with a log, to which a thread sends messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "LOG_SOCKET", log_socket)
        serve_for_test(path, mountpoint, cache_bytes, answer)


@pytest.mark.parametrize("is_started", [True, False], ids=["program", "with-log"])
def test_no_thread_of_a_mount_has_more_rights_than_it_needs(
    tmp_path: Path, is_started: bool
) -> None:
    """Neither has the process that it starts."""
    log_socket = str(tmp_path / "log")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
        ExitStack() as stack,
    ):
        listener.bind(log_socket)
        nursery = Started() if is_started else Nursery(serve_with_log, (log_socket,))
        lab = stack.enter_context(mounted_lab(tmp_path, nursery=nursery))
        use(lab)
        assert len(threads_of(lab.pid)) > 3
        assert_bounded(lab.pid, WRITING)
        children = [pid for pid in children_of(lab.pid) if pid != lab.pid]
        assert children, "no worker for pages"
        for pid in children:
            assert_bounded(pid, WRITING)


def test_a_mount_that_writes_nothing_has_fewer_rights(tmp_path: Path) -> None:
    with mounted_lab(tmp_path, nursery=Started()) as lab:
        stub = lab.make_stub("stub", noise(300_000, 1))
        content = stub.read_bytes()
        lab.unmount()
        subprocess.run(
            [*PROGRAM, "mount", lab.root, lab.view, "-o", "ro"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        assert stub.read_bytes() == content
        lab.pid = int(str(lab.status()["pid"]))
        assert_bounded(lab.pid, READING)


def test_the_table_of_capabilities_is_that_of_the_program() -> None:
    text = (REPOSITORY / "docs/design/privileges.md").read_text()
    rows = re.findall(r"^\| `(CAP_\w+)` \| .* \| (yes|no) \|$", text, re.MULTILINE)
    assert [name for name, _ in rows] == kept_capabilities(is_read_only=False)
    reading = kept_capabilities(is_read_only=True)
    assert [name for name, reads in rows if reads == "yes"] == reading
    assert (set(WRITING), set(READING)) == ({name for name, _ in rows}, set(reading))


# --- system calls -----------------------------------------------------------------------------

DENIED = {
    "mount": 165,
    "pivot_root": 155,
    "setns": 308,
    "unshare": 272,
    "ptrace": 101,
    "process_vm_readv": 310,
    "kexec_load": 246,
    "init_module": 175,
    "bpf": 321,
    "reboot": 169,
    "swapon": 167,
    "keyctl": 250,
    "setresuid": 117,
    "execveat": 322,
    "clone with CLONE_NEWUSER": 56,
}
"""By their numbers on x86-64. With arguments that the kernel would refuse otherwise."""
CLONE_NEWNS, CLONE_NEWUSER = 0x2_0000, 0x1000_0000
CLONE3, OF_A_LATER_KERNEL, OF_ANOTHER_ABI = 435, 1000, 0x4000_0000 + 39

_LIBC = ctypes.CDLL(None, use_errno=True)


def failure_of(number: int) -> int:
    argument = CLONE_NEWUSER if number == DENIED["clone with CLONE_NEWUSER"] else -1
    ctypes.set_errno(0)
    result = _LIBC.syscall(*(ctypes.c_long(one) for one in (number, argument, *[-1] * 5)))
    return ctypes.get_errno() if result == -1 else 0


def serve_and_try(
    report: str, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """Serve a mount in which a thread tries system calls, leaves the idle class again, and starts a
    thread and a program."""

    def tries(inodes: native.mount.Inodes, mountpoint: str, view: str) -> None:
        numbers = [*DENIED.values(), CLONE3, OF_A_LATER_KERNEL, OF_ANOTHER_ABI]
        found: dict[str, object] = {str(number): failure_of(number) for number in numbers}
        for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
            os.sched_setscheduler(0, policy, os.sched_param(0))
        found["policy"] = os.sched_getscheduler(0)
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        found["program"] = subprocess.run(["true"], check=False).returncode
        Path(report).write_text(json.dumps(found))
        ask_for_pages(inodes, mountpoint, view)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "ask_for_pages", tries)
        serve_for_test(path, mountpoint, cache_bytes, answer)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")
def test_a_thread_of_a_mount_cannot_make_calls_that_the_mount_does_not_need(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report"
    with mounted_lab(tmp_path, nursery=Nursery(serve_and_try, (str(report),))) as lab:
        (lab.view / "f").write_bytes(b"x")
    found = json.loads(report.read_text())
    for name, number in DENIED.items():
        assert found[str(number)] == errno.EPERM, name
    # These make the C library do without.
    for number in (CLONE3, OF_A_LATER_KERNEL, OF_ANOTHER_ABI):
        assert found[str(number)] == errno.ENOSYS
    assert (found["program"], found["policy"]) == (0, os.SCHED_OTHER)


# --- mounts of users --------------------------------------------------------------------------


def serve_as_user(root: Path, view: Path) -> None:
    """In a process of a user: mount, compare, and end the mount process, which unmounts itself."""
    enable(str(root), policy_values={}, force=True, disk=Disk())
    read_fd, write_fd = os.pipe()
    with mount_process.open_volume(str(root)) as volume:
        base_fd = os.dup(volume.base_fd)
    pid = os.fork()
    if pid == 0:
        with suppress(SystemExit):
            process.serve_for_parent(str(root), base_fd, str(view), 1 << 20, write_fd)
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as answer:
        assert json.load(answer) == {}
    (view / "f").write_bytes(b"x")
    assert (view / "f").stat().st_uid == USER
    none = rights_with({})
    for thread in threads_of(pid):
        rights = rights_of(thread / "status")
        assert (rights["CapPrm"], rights["CapEff"]) == (none["CapPrm"], none["CapEff"])
    os.kill(pid, signal.SIGTERM)
    assert os.waitpid(pid, 0)[1] == 0
    assert not os.path.ismount(view)


def with_device_for_all(node: Path, action: Callable[[], None]) -> None:
    """Run ``action`` as a user where ``/dev/fuse`` is open to all users, as distributions have it.

    The other processes of this machine do not see that.
    """
    assert _LIBC.unshare(CLONE_NEWNS) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    os.mknod(node, stat.S_IFCHR | 0o600, os.stat("/dev/fuse").st_rdev)
    os.chmod(node, 0o666)
    subprocess.run(["mount", "--bind", node, "/dev/fuse"], check=True)
    as_user(USER, action)


@pytest.mark.skipif(shutil.which("fusermount3") is None, reason="fusermount3 is not installed")
def test_the_mount_of_a_user_has_no_capability_and_ends(tmp_path: Path) -> None:
    """Its last act is a program that is set-user-ID."""
    let_others_pass(tmp_path)
    root, view = tmp_path / "volume", tmp_path / "view"
    for path in (root, view):
        path.mkdir()
        os.chown(path, USER, USER)
    serve = partial(serve_as_user, root, view)
    as_user(0, partial(with_device_for_all, tmp_path / "fuse", serve))
