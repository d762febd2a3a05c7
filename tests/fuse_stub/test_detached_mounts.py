"""Mounts that were unmounted while in use: who uses them is said at once, by each command."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import Busy
from dedupd_core.volume.detached_mount import detached_mount
from tests.support.lab import noise, run_cli
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.service import eventually

pytestmark = pytest.mark.root

CONTENT = noise(100_000)
HOLD = "import mmap, os, sys; {}; print(flush=True); sys.stdin.read()"
USES = {
    "descriptor": "file = open(sys.argv[1])",
    "directory": "os.chdir(os.path.dirname(sys.argv[1]))",
    "mapping": (
        "fd = os.open(sys.argv[1], os.O_RDONLY);"
        "kept = mmap.mmap(fd, 4096, prot=mmap.PROT_READ); os.close(fd)"
    ),
}


@contextmanager
def in_use(path: Path, how: str) -> Iterator[int]:
    """Another process uses a file; its number."""
    command = [sys.executable, "-c", HOLD.format(USES[how]), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdin is not None and user.stdout is not None
        user.stdout.readline()
        try:
            yield user.pid
        finally:
            user.stdin.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(CONTENT)
        yield lab


def detach(lab: MountedLab) -> None:
    subprocess.run(["umount", "--lazy", lab.view], check=True)


def is_released(lab: MountedLab) -> bool:
    """Whether nothing serves the volume any more."""
    try:
        with lab.opened() as volume, volume.mount_lock():
            return True
    except Busy:
        return False


@pytest.mark.parametrize("how", sorted(USES))
def test_the_users_of_a_detached_mount_are_named_by_each_command(lab: MountedLab, how: str) -> None:
    with in_use(lab.view / "f", how) as user:
        server = lab.pid
        detach(lab)
        began_s = time.monotonic()
        with pytest.raises(Busy) as refusal:
            lab.mount()
        assert time.monotonic() - began_s < 50, "it waited without a word"
        said = f"process {server} still serves it for process {user} (python"
        assert said in str(refusal.value) and "`umount -l`" in str(refusal.value)
        status = run_cli("status", str(lab.root))
        assert status.returncode == 0
        assert "not mounted" in status.stdout and said in status.stderr
        unmounting = run_cli("umount", str(lab.root))
        assert unmounting.returncode == 3 and said in unmounting.stderr
    eventually(lambda: is_released(lab), "it is released")
    with lab.opened() as volume:
        assert detached_mount(volume) is None
    lab.mount()
    assert (lab.view / "f").read_bytes() == CONTENT


def test_a_mount_in_another_mount_namespace_is_named(lab: MountedLab) -> None:
    hold = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdin is not None and user.stdout is not None
        user.stdout.readline()
        subprocess.run(["umount", lab.view], check=True)
        with pytest.raises(Busy, match=rf"a mount at {lab.view} that process {user.pid} \(\w+\)"):
            lab.mount()
        user.stdin.close()
    eventually(lambda: is_released(lab), "it is released")
    lab.mount()


def test_a_mounted_volume_has_no_detached_mount(lab: MountedLab) -> None:
    with in_use(lab.view / "f", "descriptor"), lab.opened() as volume:
        assert detached_mount(volume) is None
