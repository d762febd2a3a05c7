"""Options of a mount: each does what mount(8) says of it, at the beginning and while it runs."""

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.units import MIB
from fuse_stub.mounts.mount_options import AccessTimes, MountOptions, parse_options
from tests.support.lab import REPOSITORY, noise, run_cli
from tests.support.mounts import ALICE, MountedLab, as_user, mounted_lab

BUSY, USAGE = 3, 2
CONTENT = noise(100_000)
GENERATOR = "/usr/lib/systemd/system-generators/systemd-fstab-generator"
HOUR_NS = 3600 * 10**9


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


# --- reading them -----------------------------------------------------------------------------


def test_of_options_that_contradict_each_other_the_last_one_counts() -> None:
    assert parse_options("ro,noexec,rw,exec") == MountOptions(read_only=False, exec=True)
    assert parse_options("noatime,strictatime").access_times is AccessTimes.ALWAYS


def test_options_for_other_programs_are_passed_over() -> None:
    words = "defaults,noauto,nofail,_netdev,user,users,owner,group,comment=mine,x-systemd.automount"
    assert parse_options(f"{words},X-mount.mkdir,user=alice,,nodev") == MountOptions(dev=False)


@pytest.mark.parametrize("option", ["atimes", "cache", "ro=1", "lazytime", "dirsync", "uid=5"])
def test_an_unknown_option_is_an_error_that_names_it(option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option}: "):
        parse_options(f"nodev,{option}")
    if option not in ("cache", "ro=1"):
        assert parse_options(f"nodev,{option}", is_sloppy=True) == MountOptions(dev=False)


@pytest.mark.parametrize(
    "text", ["", "ro,nosuid,nodev,noexec,sync,nosymfollow,noatime,nodiratime,cache=1048576"]
)
def test_options_are_handed_on_as_they_were_given(text: str) -> None:
    assert parse_options(parse_options(text).text) == parse_options(text)
    assert parse_options(text).text == text


# --- what they do -----------------------------------------------------------------------------


def remount(lab: MountedLab, options: str) -> None:
    done = run_cli("mount", "-o", f"remount,{options}", lab.view)
    assert done.returncode == 0, done


@pytest.mark.root
def test_nosuid_nodev_and_noexec_hold(lab: MountedLab) -> None:
    program, device = lab.view / "id", lab.view / "null"
    shutil.copy("/usr/bin/id", program)
    os.chmod(program, 0o4755)
    os.mknod(device, stat.S_IFCHR, os.makedev(1, 3))
    os.chmod(device, 0o666)

    def user_of_the_program() -> int:
        done = subprocess.run([program, "-u"], capture_output=True, check=True)
        return int(done.stdout)

    def all_is_allowed() -> None:
        assert user_of_the_program() == 0
        device.write_bytes(b"x")

    def nothing_special_is_allowed() -> None:
        assert user_of_the_program() == ALICE
        with pytest.raises(PermissionError):
            device.write_bytes(b"x")

    def nothing_runs() -> None:
        with pytest.raises(PermissionError):
            subprocess.run([program], check=False)

    as_user(ALICE, all_is_allowed)
    remount(lab, "nosuid,nodev")
    as_user(ALICE, nothing_special_is_allowed)
    remount(lab, "noexec")
    as_user(ALICE, nothing_runs)
    remount(lab, "suid,dev,exec")
    as_user(ALICE, all_is_allowed)
    lab.unmount()
    assert run_cli("mount", "-o", "nosuid,nodev,noexec", lab.root, lab.view).returncode == 0
    as_user(ALICE, nothing_runs)
    done = run_cli("mount", "-o", "remount,exec", lab.view)
    assert done.returncode == 0, done
    as_user(ALICE, nothing_special_is_allowed)


@pytest.mark.root
def test_access_times_are_moved_as_it_was_asked_for(lab: MountedLab) -> None:
    """Of plain files and of stubs; the times are those of the file system below."""
    now_ns = time.time_ns()
    old_ns, before_ns, later_ns = (now_ns + hours * HOUR_NS for hours in (-3, -2, 1))

    def moved(atime_ns: int) -> set[bool]:
        """Whether a first read moves an access time, of files that were written two hours ago."""
        found = set()
        for name in ("plain", "stub"):
            path = lab.view / f"{name}{len(list(lab.data.iterdir()))}"
            if name == "stub":
                lab.make_stub(path.name, CONTENT)
            else:
                path.write_bytes(CONTENT)
            os.utime(path, ns=(atime_ns, before_ns))
            subprocess.run(["cmp", path, "-"], input=CONTENT, check=True)
            below_ns = os.stat(lab.data / path.name).st_atime_ns
            assert os.stat(path).st_atime_ns == below_ns
            found.add(below_ns != atime_ns)
        return found

    remount(lab, "noatime")
    assert moved(old_ns) == {False}
    remount(lab, "relatime")
    assert moved(old_ns) == {True}
    assert moved(later_ns) == {False}
    remount(lab, "strictatime")
    assert moved(later_ns) == {True}
    lab.unmount()
    assert run_cli("mount", "-o", "noatime", lab.root, lab.view).returncode == 0
    assert moved(old_ns) == {False}


def times_below(lab: MountedLab) -> dict[str, tuple[int, int]]:
    found = {}
    for directory, _, names in os.walk(lab.base):
        for name in (".", *names):
            status = os.stat(os.path.join(directory, name), follow_symlinks=False)
            found[os.path.join(directory, name)] = (status.st_mtime_ns, status.st_ctime_ns)
    return found


@pytest.mark.root
def test_a_mount_that_was_asked_to_be_read_only_writes_nothing(lab: MountedLab) -> None:
    lab.make_stub("stub", CONTENT)
    (lab.view / "plain").write_bytes(CONTENT)
    lab.unmount()
    before = times_below(lab)
    done = run_cli("mount", lab.root, lab.view, "-o", "ro")
    assert done.returncode == 0 and "read-only." in done.stdout, done
    assert {(lab.view / name).read_bytes() for name in ("stub", "plain")} == {CONTENT}
    with pytest.raises(OSError, match="Read-only file system"):
        (lab.view / "new").touch()
    assert run_cli("run", "optimize", lab.view).returncode == BUSY
    refused = run_cli("mount", "-o", "remount,rw", lab.view)
    assert refused.returncode == USAGE and "unmount it, then mount it again" in refused.stderr
    lab.unmount()
    assert times_below(lab) == before
    lab.mount()
    (lab.view / "new").touch()


@pytest.mark.root
def test_a_mount_becomes_read_only_once_nothing_is_open_for_writing(lab: MountedLab) -> None:
    with open(lab.view / "f", "wb"):
        refused = run_cli("mount", "-o", "remount,ro", lab.view)
        assert refused.returncode == BUSY and "files are open for writing" in refused.stderr
    remount(lab, "ro")
    with pytest.raises(OSError, match="Read-only file system"):
        (lab.view / "f").write_bytes(CONTENT)
    remount(lab, "rw,nosymfollow")
    (lab.view / "f").write_bytes(CONTENT)
    (lab.view / "link").symlink_to("f")
    with pytest.raises(OSError, match="symbolic links"):
        (lab.view / "link").read_bytes()


@pytest.mark.root
def test_what_cannot_change_while_it_is_mounted_is_an_error(lab: MountedLab) -> None:
    for option in ("cache=128m", "snapshot", "force"):
        refused = run_cli("mount", "-o", f"remount,{option}", lab.view)
        assert refused.returncode == USAGE and "cannot be changed" in refused.stderr
    other = run_cli("mount", "-o", "noatime", lab.root, lab.view)
    assert other.returncode == BUSY and "-o remount,noatime" in other.stderr


@pytest.mark.root
def test_umount_may_be_followed_by_a_mount_at_once(lab: MountedLab) -> None:
    for seed in range(3):
        content = noise(4 * MIB, seed)
        (lab.view / "f").write_bytes(content)
        subprocess.run(["umount", lab.view], check=True)
        assert run_cli("mount", lab.root, lab.view).returncode == 0
        assert (lab.view / "f").read_bytes() == content


# --- mount(8) ---------------------------------------------------------------------------------


def beside_mount_8(lab: MountedLab, directory: Path, script: str) -> str:
    """Run a shell script on a machine on which the package is installed, with an ``fstab``."""
    programs, machines = directory / "sbin", directory / "machine"
    programs.mkdir()
    machines.mkdir()
    for program in Path("/usr/sbin").iterdir():
        (programs / program.name).symlink_to(machines / program.name)
    helper = programs / "mount.dedupd"
    python = f"PYTHONPATH={REPOSITORY} exec {sys.executable}"
    helper.write_text(f'#!/bin/sh\n{python} -m dedupd.cli.mount_helper "$@"\n')
    helper.chmod(0o755)
    (programs / "mount.fuse.dedupd").symlink_to("mount.dedupd")
    fstab = directory / "fstab"
    fstab.write_text(
        f"{lab.root} {lab.view} dedupd"
        " noauto,nodev,nofail,x-systemd.requires=dedupd.service,_netdev 0 0\n"
    )
    prepare = "mount --bind /usr/sbin $MACHINES; mount --bind $PROGRAMS /usr/sbin; "
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-exc", prepare + script],
        env={
            **os.environ,
            "LIBMOUNT_FSTAB": str(fstab),
            "PROGRAMS": str(programs),
            "MACHINES": str(machines),
            "ROOT": str(lab.root),
            "VIEW": str(lab.view),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.root
def test_mount_8_knows_the_type(lab: MountedLab, tmp_path: Path) -> None:
    (lab.view / "f").write_bytes(b"content")
    lab.unmount()
    shown = beside_mount_8(
        lab,
        tmp_path,
        """
        mount -t dedupd -o noexec,noatime "$ROOT" "$VIEW"
        findmnt -no FSTYPE,OPTIONS "$VIEW"
        mount -o remount,ro,exec "$VIEW"
        ! touch "$VIEW/new"
        mount -o remount,rw "$VIEW"
        touch "$VIEW/new"
        findmnt -no OPTIONS "$VIEW"
        ! mount -t dedupd -o remount,cache=1g "$ROOT" "$VIEW"
        umount "$VIEW"
        mount "$VIEW"
        mount "$VIEW"
        findmnt -no OPTIONS "$VIEW"
        cat "$VIEW/f"
        umount "$VIEW"
        ! mount -t dedupd -o unheard-of "$ROOT" "$VIEW"
        mount -s -t dedupd -o unheard-of "$ROOT" "$VIEW"
        umount "$VIEW"
        ! mount -f -t dedupd "$VIEW/none" "$VIEW"
        mount -f -t dedupd "$ROOT" "$VIEW"
        ! findmnt "$VIEW"
        """,
    )
    first, second, third, content = shown.splitlines()
    assert first.split()[0] == "fuse.dedupd"
    assert {"noexec", "noatime"} <= set(first.split()[1].split(","))
    assert {"rw", "noatime"} <= set(second.split(",")) and "noexec" not in second
    assert "nodev" in third.split(",")
    assert content == "content"


AUTOMOUNT = """
import ctypes, fcntl, os, struct, subprocess, sys

point, command = sys.argv[1], sys.argv[2:]
asked_fd, kernels_fd = os.pipe()
options = f"fd={kernels_fd},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
mount = ctypes.CDLL(None, use_errno=True).mount
if mount(b"test", os.fsencode(point), b"autofs", 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
own_fd = os.open(point, os.O_RDONLY)
print("there", flush=True)
(token,) = struct.unpack_from("=8xI", os.read(asked_fd, 304))
subprocess.run(command, check=True, pass_fds=())
fcntl.ioctl(own_fd, 0x9360, token)
"""
"""What systemd does for ``x-systemd.automount``: it mounts what is to be there at the first look,
by a program of its own process group, to which the kernel shows the empty directory."""


@pytest.mark.root
@pytest.mark.parametrize("is_over_itself", [True, False])
def test_a_first_look_mounts_it(lab: MountedLab, is_over_itself: bool) -> None:
    (lab.view / "f").write_bytes(CONTENT)
    lab.unmount()
    point = lab.root if is_over_itself else lab.view
    helper = (sys.executable, "-m", "dedupd.cli.mount_helper", lab.root, point, "-o", "rw")
    waiting = subprocess.Popen(
        [sys.executable, "-c", AUTOMOUNT, point, *helper],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert waiting.stdout is not None
        with waiting.stdout as lines:
            assert lines.readline() == b"there\n"
        looked = subprocess.run(["cat", point / "f"], capture_output=True, timeout=60, check=False)
        assert looked.stdout == CONTENT
        assert waiting.wait(60) == 0
        assert run_cli("umount", point).returncode == 0
    finally:
        waiting.kill()
        subprocess.run(["umount", "-l", point], check=True)
        waiting.wait()


@pytest.mark.root
def test_sync_syncs_each_write(lab: MountedLab) -> None:
    def requests_of_a_write() -> object:
        with open(lab.view / "f", "r+b", buffering=0) as file:
            file.write(b"y")
            before = lab.status()["requests"]
            file.write(b"x")
            return int(str(lab.status()["requests"])) - int(str(before))

    (lab.view / "f").write_bytes(CONTENT)
    assert requests_of_a_write() == 1
    remount(lab, "sync")
    assert requests_of_a_write() == 2


@pytest.mark.skipif(not os.path.exists(GENERATOR), reason="systemd is not installed")
def test_systemd_makes_units_of_the_lines_in_the_document(tmp_path: Path) -> None:
    lines = re.findall(
        r"^    (/.* dedupd .*)$", (REPOSITORY / "docs/guide/mount.md").read_text(), re.M
    )
    assert len(lines) == 2
    fstab = tmp_path / "fstab"
    fstab.write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "SYSTEMD_FSTAB": str(fstab)}
    subprocess.run([GENERATOR, tmp_path, tmp_path, tmp_path], env=environment, check=True)
    unit = (tmp_path / "srv-share.mount").read_text()
    assert {"What=/srv/share", "Where=/srv/share", "Type=dedupd"} <= set(unit.splitlines())
    assert "Options=noatime,nofail" in unit
    assert "Where=/mnt/share" in (tmp_path / "mnt-share.automount").read_text()
    units = [tmp_path / name for name in ("srv-share.mount", "mnt-share.automount")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "share" in line]
    assert told == []
