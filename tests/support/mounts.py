"""Volumes that are mounted, seen from both sides: as users see them, and from below."""

import ctypes
import errno
import json
import logging
import os
import signal
import struct
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import pytest

from dedupd_core import failpoint
from dedupd_core.errors import ServiceUnreachable, error_named
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import ControlClient, socket_path
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from fuse_stub import process
from fuse_stub.busy.part_lane import PartLane
from fuse_stub.kernel import request_pump
from fuse_stub.mounts import mount_process
from fuse_stub.mounts.mount_points import is_dead
from jobs.optimize.optimize_job import OptimizeReport
from tests.support.forks import CONTEXT, take_over
from tests.support.lab import Lab, let_others_pass
from tests.support.mount_logs import expect_log, log_of
from tests.support.ways import RING, ring_is_offered, way

_LIBC = ctypes.CDLL(None, use_errno=True)
DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED}
"""What users are told by a mount whose process has ended; the last two by io_uring."""

DEATH_WAIT_MS = 120_000
"""A death takes milliseconds, on a machine that has time for it."""

ALICE, BOB = 40001, 40002
TEAM = 50001


class MountedLab(Lab):
    """A volume mounted at ``view``, beside its root, so that both sides can be looked at."""

    def __init__(self, root: Path, view: Path, nursery: "Serves | None" = None) -> None:
        """``nursery``: starts the process of the mount, in place of a :class:`Nursery`."""
        super().__init__(root)
        self.view = view
        self.pid = 0
        self._serve = (nursery or Nursery()).serve

    def mount(self, cache_bytes: int = mount_process.CACHE_BYTES) -> None:
        self.pid = self._serve(str(self.root), str(self.view), cache_bytes=cache_bytes)

    def unmount(self) -> None:
        mount_process.unmount(str(self.view))
        self.pid = 0

    def kill(self) -> None:
        """End the process that serves the mount as a crash would, and wait until it is gone."""
        end(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.pid = 0

    def wait_until_dead(self) -> None:
        """Wait for a death that is under way."""
        try:
            with opened_pid(self.pid) as pid_fd:
                assert mount_process.exits(os.dup(pid_fd), DEATH_WAIT_MS)
        except ProcessLookupError:
            pass  # it is over

    def optimize(self) -> OptimizeReport:
        # The kernel tells of a close behind the closing program's back; this request comes after.
        with suppress(OSError):
            os.statvfs(self.view)
        return super().optimize()

    def make_stub(self, name: str | bytes, content: bytes | bytearray) -> Path:
        """A file that is a stub, as users see it."""
        path = self.view / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.optimize()
        assert self.stub(name) is not None, "it was not optimized"
        return path

    def client(self) -> ControlClient:
        with Volume.open(str(self.root)) as volume:
            return ControlClient(socket_path(volume.parameters.uuid))

    def status(self) -> dict[str, object]:
        with self.client() as client:
            return client.call("status")

    def identity(self, name: str) -> FileIdentity:
        return FileIdentity.of(os.stat(self.data / name))


class Serves(Protocol):
    """Has a process serve a mount, and returns its pid once it answers."""

    def serve(self, path: str, mountpoint: str, *, cache_bytes: int) -> int: ...


class Started:
    """Starts processes that serve mounts as the program does."""

    @staticmethod
    def serve(path: str, mountpoint: str, *, cache_bytes: int) -> int:
        return mount_process.mount_in_background(path, mountpoint, cache_bytes=cache_bytes)


class Nursery:
    """Forks processes that serve mounts (:mod:`tests.support.forks`)."""

    def __init__(
        self, target: Callable[..., None] | None = None, first: tuple[str, ...] = ()
    ) -> None:
        """``target``: runs in the process in place of :func:`serve_for_test`, with ``first``."""
        self._target = target or serve_for_test
        self._first = first

    def serve(self, path: str, mountpoint: str, *, cache_bytes: int) -> int:
        """Stands in for :func:`mount_process.mount_in_background`, and raises as that."""
        with mount_process.open_volume(path) as volume:
            root = volume.root
        if way() == RING:
            with ring_is_offered():
                return self._start(root, mountpoint, cache_bytes)
        return self._start(root, mountpoint, cache_bytes)

    def _start(self, root: str, mountpoint: str, cache_bytes: int) -> int:
        expect_log(mountpoint)
        receiver, sender = CONTEXT.Pipe(duplex=False)
        served = CONTEXT.Process(
            target=_serve,
            args=(
                dict(os.environ),
                self._target,
                *self._first,
                root,
                mountpoint,
                cache_bytes,
                sender,
            ),
            daemon=True,
        )
        served.start()
        sender.close()
        with receiver, os.fdopen(os.dup(receiver.fileno()), "rb") as answer:
            text = answer.read()
        if not text:
            raise ServiceUnreachable(f"{mountpoint}: the mount process died")
        reply = json.loads(text)
        if "error" in reply:
            raise error_named(reply["kind"], reply["error"])
        assert served.pid is not None
        return served.pid


def _serve(environment: dict[str, str], target: Callable[..., None], *arguments: object) -> None:
    """What the process of a mount does, forked."""
    take_over(environment, "/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    target(*arguments)


def serve_for_test(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    """Serve a mount in a process of a :class:`Nursery`."""
    answer_fd = os.dup(answer.fileno())
    answer.close()
    with suppress(OSError):  # beside a mount on a file system that takes no changes
        logging.basicConfig(
            filename=log_of(mountpoint), format="%(asctime)s %(process)d %(message)s"
        )
    with mount_process.open_volume(path) as volume:
        root, base_fd = volume.root, os.dup(volume.base_fd)
    request_pump.BY_RING = way() == RING
    process.serve_for_parent(root, base_fd, mountpoint, cache_bytes, answer_fd)


def serve_ageless(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    """Serve a mount to which what users have just written to is quiet."""
    offer = PartLane.offer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PartLane,
            "offer",
            lambda lane, path, _, *rest, **named: offer(lane, path, 0.0, *rest, **named),
        )
        serve_for_test(path, mountpoint, cache_bytes, answer)


def serve_beside(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    """Serve a mount whose overflow readers take requests all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_pump, "ALWAYS_BESIDE", True)
        serve_for_test(path, mountpoint, cache_bytes, answer)


def serve_alone(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    """Serve a mount by the loop's thread only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_pump, "STAND_INS_MAX", 0)
        serve_for_test(path, mountpoint, cache_bytes, answer)


def serve_without(
    absent: int, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """Serve a mount as a kernel has it that does not offer some things (flags of ``FUSE_INIT``)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_pump, "ABSENT", absent)
        serve_for_test(path, mountpoint, cache_bytes, answer)


def serve_until(
    point: str, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """As :func:`serve_ageless`, by a process that dies at a fail point."""

    def die(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoint.hook = die
    serve_ageless(path, mountpoint, cache_bytes, answer)


def end(pid: int, number: int) -> None:
    """Send the process that serves a mount a signal, and wait until it is gone."""
    with opened_pid(pid) as pid_fd:
        os.kill(pid, number)
        assert mount_process.exits(os.dup(pid_fd), DEATH_WAIT_MS)


def connection(mountpoint: Path) -> Path:
    """Where the kernel says how it deals with a mount. Skips the test where it does not."""
    control = Path("/sys/fs/fuse/connections")
    subprocess.run(["mount", "-t", "fusectl", "none", control], capture_output=True, check=False)
    found = control / str(os.minor(os.stat(mountpoint).st_dev))
    if not found.exists():
        pytest.skip("there is no fusectl")
    return found


@contextmanager
def opened_pid(pid: int) -> Iterator[int]:
    pid_fd = os.pidfd_open(pid)
    try:
        yield pid_fd
    finally:
        os.close(pid_fd)


@contextmanager
def mounted_lab(
    directory: Path, policy: dict[str, str] | None = None, nursery: "Serves | None" = None
) -> Iterator[MountedLab]:
    """A new volume below ``directory`` that takes every file at once, mounted for all users."""
    let_others_pass(directory)
    root, view = directory / "volume", directory / "view"
    root.mkdir()
    view.mkdir()
    lab = MountedLab(root, view, nursery)
    takes_all: dict[str, str | int] = {
        "min_age": "0s",
        "min_size": "1",
        "min_file_saving": 0,
        "keep_deleted": "0s",
    }
    values = {**takes_all, **(policy or {})}
    enable(str(root), policy_values=values, force=True, disk=lab.disk)
    lab.mount()
    try:
        yield lab
    finally:
        if any(found.point == str(view) for found in mount_table.volumes()):
            mount_process.unmount(str(view))


def as_user(
    uid: int, action: Callable[[], object], gid: int | None = None, groups: Sequence[int] = ()
) -> None:
    """Run ``action`` in a child with other credentials; what it raises fails the test."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_fd)
            os.setgroups(list(groups))
            own = uid if gid is None else gid
            os.setresgid(own, own, own)
            os.setresuid(uid, uid, uid)
            action()
            status = 0
        except BaseException:
            os.write(write_fd, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(status)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as output:
        report = output.read().decode()
    _, wait_status = os.waitpid(child, 0)
    assert wait_status == 0, f"as user {uid}: {report}"


@contextmanager
def looping(uid: int, action: Callable[[], object]) -> Iterator[None]:
    """Another user does one thing as fast as it goes."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            while True:
                action()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    try:
        yield
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the loop has ended"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def rename_with(old: Path, new: Path, flags: int) -> None:
    """``renameat2``, which Python does not have."""
    result = _LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags)
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX ACL as the kernel keeps it: (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, permissions, number & 0xFFFF_FFFF)
        for tag, permissions, number in entries
    )


USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NOBODY = -1


def is_serving(lab: MountedLab) -> bool:
    return not is_dead(str(lab.view))
