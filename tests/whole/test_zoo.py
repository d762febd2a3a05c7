"""No name, no file and no request makes a command, a job or the mount fail unexpectedly.

Every command runs over a volume of the kinds of :mod:`tests.support.zoo`. A traceback, a status
that is not documented, a mount whose process is gone or a hang is a failure.
"""

import errno
import mmap
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from dedupd.cli.main import main
from dedupd_core import native
from dedupd_core.system.files import opened
from tests.conftest import MakeFileSystem
from tests.support import zoo
from tests.support.lab import run_cli
from tests.support.mounts import ALICE, BOB, MountedLab, is_serving, mounted_lab

EACH_MAX = 2
"""Paths of each kind that are named to commands in the default test."""

DONE, FINDINGS, USAGE, BUSY, DAMAGED = range(5)


def is_outside(path: bytes) -> bool:
    """Whether a path is a link out of the volume, which commands refuse to follow."""
    return os.path.islink(path) or b"/swapped/" in path


class Visitors(NamedTuple):
    """Where the zoo is; what a command may be called with."""

    lab: MountedLab
    place: Path
    """A directory on the same file system, for all else."""
    each_max: int
    """How many paths of each kind are named to commands."""

    @property
    def view(self) -> str:
        return str(self.lab.view)

    @property
    def root(self) -> str:
        return str(self.lab.root)

    def paths(self) -> list[str]:
        """Files and directories of all kinds, as far as a path can name them."""
        found = []
        top = os.fsencode(self.view)
        for name in zoo.ANIMALS:
            own = []
            for directory, directories, files in os.walk(os.path.join(top, os.fsencode(name))):
                own += [os.path.join(directory, one) for one in sorted((*directories, *files))]
            own = [path for path in own if len(path) < 4000 and not is_outside(path)]
            found += own[:: len(own) // self.each_max + 1]
        return [os.fsdecode(path) for path in found]

    def beside(self, name: str) -> str:
        return str(self.place / name)

    def folders(self) -> list[str]:
        """Those of the kinds; one with files of terabytes only where there is time for them."""
        fast = [name for name in zoo.ANIMALS if name != "sparse" or self.each_max > EACH_MAX]
        return [os.path.join(self.view, name) for name in fast]


class Call(NamedTuple):
    """A command over the zoo: how it is called, and how it may end."""

    arguments: Callable[[Visitors], list[str]]
    statuses: frozenset[int] = frozenset({DONE})
    environment: dict[str, str] = {}  # noqa: RUF012


class Elsewhere(NamedTuple):
    """Why a command does not run here."""

    why: str


def on(*words: str, at: str = "view") -> Callable[[Visitors], list[str]]:
    """A command on the volume: as users see it, or below."""
    return lambda one: [*words, getattr(one, at)]


def each(*words: str) -> Callable[[Visitors], list[str]]:
    """A command on everything that a path can name."""
    return lambda one: [*words, "--", *one.paths()]


FOUND = frozenset({DONE, FINDINGS})
ODD = frozenset({DONE, FINDINGS, USAGE})
NO_SERVICE = frozenset({BUSY})
NO_CLUSTER = frozenset({USAGE})
CLUSTER = Elsewhere("needs a Ceph cluster: tests/jobs/cluster")
STORE = Elsewhere("moves a store, and sees no file: tests/shared")

FAST = "--chunking", "64k", "--no-compression"
RECEIVE = f"{shlex.quote(sys.executable)} -m dedupd.cli.main receive --negotiate"

PLAIN: dict[str, list[Call] | Elsewhere] = {
    "doctor": [Call(on("doctor"), FOUND), Call(on("doctor", "--json"), FOUND)],
    "policy": [
        Call(on("policy")),
        *(
            Call(lambda one, at=at: ["policy", one.view, "--why", one.paths()[at]], ODD)  # type: ignore[misc]
            for at in (0, 9, -9)
        ),
    ],
    "run optimize": [
        Call(on("run", "optimize", "--dry-run"), FOUND),
        Call(on("run", "optimize"), FOUND),
        Call(on("run", "optimize", "--json"), FOUND),
    ],
    "analyze": [
        Call(lambda one: ["analyze", "--out", one.beside("analysis"), *FAST, *one.folders()], FOUND)
    ],
}
"""In this order, over files of which most are plain at first."""

MOUNTED: dict[str, list[Call] | Elsewhere] = {
    "status": [Call(on("status", "--here"), FOUND), Call(on("status", "--json"), FOUND)],
    "du": [Call(on("du")), Call(each("du"), ODD), Call(on("du", "--by", "type"))],
    "file": [Call(each("file"), ODD), Call(each("file", "--json"), ODD)],
    "jobs": [Call(on("jobs")), Call(on("jobs", "--left")), Call(on("jobs", "--json"))],
    "run reconcile": [Call(on("run", "reconcile"))],
    "run refine": [Call(on("run", "refine", "--mode", "full"))],
    "run gc": [Call(on("run", "gc", "--dry-run")), Call(on("run", "gc", "--full"))],
    "run compact": [Call(on("run", "compact"))],
    "run scrub": [Call(on("run", "scrub")), Call(on("run", "scrub", "--full"))],
    "deleted": [Call(on("deleted")), Call(on("deleted", "--json"))],
    "undelete": [Call(on("undelete", "--since", "1h"), FOUND)],
    "expand": [Call(each("expand", "--once"), FOUND)],
    "send": [Call(lambda one: ["send", one.view, "--json"], FOUND)],
    "receive": [
        Call(lambda one: ["enable", made(one.beside("replica")), "--force", "--no-mount"]),
        Call(
            lambda one: ["send", one.view, "--through", f"{RECEIVE} {one.beside('replica')}"], FOUND
        ),
        Call(lambda one: ["receive", "--token", one.beside("replica")], FOUND),
        Call(lambda one: ["run", "verify", one.beside("replica")]),
        Call(lambda one: ["receive", "--end", one.beside("replica")]),
    ],
    "import": [Call(lambda one: ["import", one.beside("plain"), one.view, "imported"], FOUND)],
    "cancel": [Call(lambda _: ["cancel", "gc-1-1"], NO_SERVICE)],
    "pause": [Call(on("pause"), NO_SERVICE)],
    "resume": [Call(on("resume"), NO_SERVICE)],
    "notify": [Call(lambda _: ["notify", "--test"], NO_SERVICE)],
    "run audit": [Call(on("run", "audit"), NO_CLUSTER)],
    "run recover": [Call(on("run", "recover"), NO_CLUSTER)],
}
"""In this order, over stubs of which some were written to, cut and removed since."""

UNMOUNTED: dict[str, list[Call] | Elsewhere] = {
    "umount": [Call(on("umount"))],
    "run verify": [Call(on("run", "verify", at="root"))],
    "run rebuild": [Call(on("run", "rebuild", at="root"))],
    "restore": [
        Call(
            lambda one: ["restore", "--from", one.root, "--to", made(one.beside("restored")), "."],
            FOUND,
        ),
    ],
    "adopt": [Call(on("adopt", at="root"))],
    "drill": [Call(on("drill", at="root"), FOUND)],
    "store create": [Call(lambda one: ["store", "create", one.beside("store"), "--force"])],
    "store status": [Call(lambda one: ["store", "status", one.beside("store")])],
    "mount": [Call(lambda one: ["mount", one.root, one.view]), Call(on("umount"))],
    "run unoptimize": [Call(on("run", "unoptimize", at="root"), FOUND)],
    "disable": [Call(on("disable", "--unoptimize", at="root"), FOUND)],
    "enable": [
        Call(lambda one: ["enable", no_volume(one.beside("plain")), "--force", "--min-age", "0s"]),
        Call(lambda one: ["run", "optimize", one.beside("plain")], FOUND),
        Call(lambda one: ["umount", one.beside("plain")]),
        Call(lambda one: ["disable", "--unoptimize", one.beside("plain")], FOUND),
    ],
    "setup": [
        Call(lambda one: ["setup", one.beside("plain"), "--yes", "--now", "--force"], FOUND),
        Call(lambda one: ["umount", one.beside("plain")]),
    ],
    "store forget": STORE,
    "store move": STORE,
    "store rejoin": STORE,
    "cluster audit": CLUSTER,
    "cluster create": CLUSTER,
    "cluster metrics": CLUSTER,
    "cluster recover": CLUSTER,
    "cluster status": CLUSTER,
    "serve": Elsewhere("runs commands of this table: tests/service"),
    "demo": Elsewhere("makes a volume with files of its own"),
}
"""In this order, without a mount but for those that they make."""


def made(path: str) -> str:
    """A new, empty directory."""
    os.mkdir(path)
    return path


def no_volume(path: str) -> str:
    """A plain zoo without what a volume must not have in it."""
    os.unlink(os.path.join(path, "of_a_volume/.dedupd/volume.json"))
    return path


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """All commands of the program that do something."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def test_every_command_has_its_place_in_the_zoo() -> None:
    """A new command comes with an entry in one of the tables."""
    places = [*PLAIN, *MOUNTED, *UNMOUNTED]
    assert sorted(commands(main)) == sorted(places)


def failures_of(one: Visitors, table: dict[str, list[Call] | Elsewhere]) -> list[str]:
    """What is wrong with the commands of a table, each of which runs."""
    found = list[str]()
    for calls in table.values():
        for call in calls if isinstance(calls, list) else []:
            arguments = call.arguments(one)
            shown = " ".join(arguments[:4])
            began_s = time.monotonic()
            result = run_cli(*arguments)
            took_s = time.monotonic() - began_s
            print(f"{took_s:.1f} s: {shown[:200]} -> {result.returncode}", result.stderr[-600:])
            if "Traceback" in result.stderr + result.stdout:
                found.append(f"{shown}: {result.stderr[-3000:]}")
            elif result.returncode not in call.statuses:
                found.append(f"{shown}: status {result.returncode}: {result.stderr[-500:]}")
    return found


def visit(place: Path, scale: zoo.Scale, each_max: int) -> None:
    """Run all commands over a zoo, and hold the mount to the same rules."""
    zoo.made(made_path(place / "plain"), scale)
    with mounted_lab(place, {"keep_deleted": "7d", "reserve": "0"}) as lab:
        one, view = Visitors(lab, place, each_max), os.fsencode(lab.view)
        zoo.made(lab.view, scale)
        failures = list[str]()
        with zoo.living(lab.view):
            failures += failures_of(one, PLAIN)
            zoo.used(lab.view)
            failures += failures_of(one, MOUNTED)
        assert is_serving(lab), "the mount has ended"
        assert lab.status()["failures"] == {}
        zoo.protect(view, is_on=True)
        failures += failures_of(one, {"": PLAIN["run optimize"]})
        zoo.protect(view, is_on=False)
        failures += failures_of(one, UNMOUNTED)
        log = Path(f"{lab.view}.log").read_text()
        assert "Traceback" not in log, log
    assert failures == []


def made_path(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.root
def test_no_command_fails_over_the_zoo(loop_fs: MakeFileSystem) -> None:
    visit(loop_fs("ext4", "1G", in_memory=True), zoo.SMALL, EACH_MAX)


@pytest.mark.root
@pytest.mark.slow
def test_no_command_fails_over_the_whole_zoo(loop_fs: MakeFileSystem) -> None:
    visit(loop_fs("ext4", "4G", in_memory=True), zoo.FULL, 1000)


def operations(path: bytes) -> Iterator[Callable[[], object]]:
    """All that a user can ask for of a path that leaves it there."""

    def opened_for(flags: int, action: Callable[[int], object]) -> Callable[[], object]:
        def act() -> None:
            with opened(os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)) as fd:
                action(fd)

        return act

    beside = path + b"~" if len(os.path.basename(path)) < 255 else path[:-1] + b"~"
    for name in (None, "user.x", "user.dedupd.deleted", "user.dedupd.blake3", "trusted.x"):
        get = partial(os.getxattr, path, name or "security.capability", follow_symlinks=False)
        yield get
    yield partial(os.lstat, path)
    yield partial(os.readlink, path)
    yield partial(os.listxattr, path, follow_symlinks=False)
    yield partial(os.listdir, path)
    yield partial(os.setxattr, path, "user.x", b"1", follow_symlinks=False)
    yield partial(os.removexattr, path, "user.x", follow_symlinks=False)
    yield partial(os.setxattr, path, "user.dedupd.undelete", b"1-64", follow_symlinks=False)
    yield partial(os.chmod, path, stat.S_IMODE(os.lstat(path).st_mode))
    yield partial(os.chown, path, ALICE, BOB, follow_symlinks=False)
    for seconds in (0, -(2**31), 2**33, 530 * 31_557_600, 2**62):
        yield partial(os.utime, path, (seconds, seconds), follow_symlinks=False)
    yield partial(os.link, path, beside, follow_symlinks=False)
    yield partial(os.unlink, beside)
    yield partial(os.rename, path, beside)
    yield partial(os.rename, beside, path)
    yield partial(os.statvfs, path)
    if stat.S_ISBLK(os.lstat(path).st_mode) or stat.S_ISCHR(os.lstat(path).st_mode):
        return  # of this machine
    for flag in (zoo.IMMUTABLE, zoo.APPEND_ONLY, 0):
        yield partial(zoo.set_flag, path, flag)
    yield opened_for(os.O_RDONLY, lambda fd: os.pread(fd, 100_000, 0))
    yield opened_for(os.O_RDONLY, lambda fd: os.pread(fd, 4096, 1 << 62))
    yield opened_for(os.O_RDONLY, lambda fd: os.lseek(fd, 0, os.SEEK_DATA))
    yield opened_for(os.O_RDONLY, lambda fd: os.lseek(fd, 0, os.SEEK_HOLE))
    yield opened_for(os.O_RDONLY, os.fsync)
    yield opened_for(os.O_RDONLY, lambda fd: mmap.mmap(fd, 4096, access=mmap.ACCESS_READ)[:9])
    yield opened_for(os.O_RDWR, lambda fd: os.pwrite(fd, b"new", 5))
    yield opened_for(os.O_RDWR, lambda fd: os.pwrite(fd, b"n" * 5000, 8190))
    yield opened_for(os.O_RDWR, lambda fd: os.posix_fallocate(fd, 0, 10_000))
    yield opened_for(os.O_RDWR, lambda fd: native.system.punch_hole(fd, 4096, 4096))
    yield opened_for(os.O_RDWR, lambda fd: os.ftruncate(fd, os.fstat(fd).st_size + 5))
    yield opened_for(os.O_RDWR, lambda fd: os.ftruncate(fd, max(0, os.fstat(fd).st_size - 99)))
    yield opened_for(os.O_RDWR | os.O_APPEND, lambda fd: os.write(fd, b"more"))
    yield opened_for(os.O_RDWR, os.fdatasync)
    yield partial(shutil.copyfile, path, beside, follow_symlinks=False)
    yield partial(os.unlink, beside)


@pytest.mark.root
def test_no_operation_of_a_user_fails_the_mount(loop_fs: MakeFileSystem) -> None:
    """Each answers, or says that it cannot be done: no ``EIO``, and nothing in the log."""
    place = loop_fs("ext4", "1G", in_memory=True)
    with mounted_lab(place, {"keep_deleted": "7d", "reserve": "0"}) as lab:
        zoo.made(lab.view)
        lab.optimize()
        one = Visitors(lab, place, 6)
        for path in map(os.fsencode, one.paths()):
            for operation in operations(path):
                try:
                    operation()
                except (OSError, ValueError, OverflowError) as error:
                    number = error.errno if isinstance(error, OSError) else None
                    assert number not in (errno.EIO, errno.ENOTCONN, errno.ENOSYS), (path, error)
            assert is_serving(lab), path
        zoo.used(lab.view)
        for name in reversed(one.paths()):
            with suppress(OSError):
                (os.rmdir if os.path.isdir(name) else os.unlink)(name)
        assert lab.status()["failures"] == {}
        lab.unmount()
        assert "Traceback" not in Path(f"{lab.view}.log").read_text()
        lab.verify_clean()
