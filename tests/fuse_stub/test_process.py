"""Mounting, unmounting, and what is said where that is not possible."""

import errno
import json
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import native
from dedupd_core.errors import Busy, NotAVolume, ServiceUnreachable, UsageError
from dedupd_core.format.container import Kind
from dedupd_core.replica.replica import REPLICA_FILE
from dedupd_core.system import control_socket, mount_table
from dedupd_core.system.control_socket import ControlClient, runtime_dir
from dedupd_core.system.files import opened
from dedupd_core.volume.restore import restore_file
from dedupd_core.volume.volume import Volume
from fuse_stub.kernel.request_pump import REQUESTS_PER_TURN
from fuse_stub.mounts import mount_process
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.optimize_job import Optimize
from tests.conftest import MakeFileSystem
from tests.support.copies import belong_here
from tests.support.lab import noise, run_cli
from tests.support.mounts import (
    ALICE,
    DEATH_WAIT_MS,
    MountedLab,
    Started,
    as_user,
    is_serving,
    mounted_lab,
    opened_pid,
)
from tests.support.service import eventually

pytestmark = pytest.mark.root

CONTENT = noise(200_000)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path, nursery=Started()) as lab:
        yield lab


def mounted_at(path: Path) -> bool:
    return any(found.point == str(path) for found in mount_table.volumes())


def test_mounting_over_the_volume_itself_shows_its_files(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    (root / "f").write_bytes(CONTENT)
    for command in (
        ("enable", root, "--min-age", "0s", "--force"),
        ("policy", root, "min_file_saving", "0"),
        ("mount", root),
        ("run", "optimize", root),
    ):
        result = run_cli(*command)
        assert result.returncode == 0, result.stderr
    try:
        assert os.listdir(root) == ["f"]
        assert (root / "f").read_bytes() == CONTENT
        assert (root / "f").stat().st_blocks <= 8
    finally:
        assert run_cli("umount", root).returncode == 0
    assert os.listdir(root) == [".dedupd"]
    assert stat.S_IMODE((root / ".dedupd").stat().st_mode) == 0o700


def test_a_job_goes_on_when_a_mount_begins_over_its_volume_and_when_it_ends(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    (root / "f").write_bytes(CONTENT)
    assert run_cli("enable", root, "--min-age", "0s", "--force").returncode == 0
    assert run_cli("umount", root).returncode == 0
    with Volume.open(str(root)) as volume:
        assert not volume.is_mounted
        for command in ("mount", "umount"):
            assert run_cli(command, root).returncode == 0
            for kind in Kind:
                volume.containers(kind).close()
            with volume.job_lock():
                Optimize(volume, JobRun("optimize")).run()


def test_unmounted_users_see_no_stub(lab: MountedLab) -> None:
    lab.make_stub("f", CONTENT)
    lab.unmount()
    assert os.listdir(lab.view) == []
    os.chmod(lab.root, 0o755)

    def look() -> None:
        with pytest.raises(PermissionError):
            os.listdir(lab.base)

    as_user(ALICE, look)


def test_a_mount_is_served_by_a_process_of_its_own(lab: MountedLab) -> None:
    assert lab.status()["pid"] == lab.pid != os.getpid()
    assert os.getsid(lab.pid) == lab.pid, "it does not die with a terminal"


def test_a_mount_is_shown_by_its_name_and_place(lab: MountedLab) -> None:
    proc = Path(f"/proc/{lab.pid}")
    assert (proc / "comm").read_text() == "dedupd-mount\n"
    shown = (proc / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [b"dedupd-mount", os.fsencode(lab.view)]


def test_other_users_reach_the_mount_and_not_its_socket(lab: MountedLab) -> None:
    (lab.view / "f").write_bytes(CONTENT)
    with Volume.open(str(lab.root)) as volume:
        uuid = volume.parameters.uuid

    def look() -> None:
        assert (lab.view / "f").read_bytes() == CONTENT
        with pytest.raises(ServiceUnreachable):
            ControlClient(f"/run/dedupd/{uuid}.sock")

    as_user(ALICE, look)
    assert stat.S_IMODE(os.stat(runtime_dir()).st_mode) == 0o700


def test_a_volume_cannot_be_mounted_twice(lab: MountedLab, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with pytest.raises(Busy, match="is active"):
        mount_process.mount_in_background(str(lab.root), str(tmp_path / "second"))
    assert not mounted_at(tmp_path / "second")
    result = run_cli("mount", lab.root, tmp_path / "second")
    assert result.returncode == 3
    assert "is active" in result.stderr
    again = run_cli("mount", lab.root, lab.view, "--json")
    assert again.returncode == 0, again
    assert json.loads(again.stdout)["pid"] == lab.pid


def test_a_copy_is_not_mounted_beside_its_volume(lab: MountedLab, tmp_path: Path) -> None:
    """A snapshot has the same files, to the inode: jobs would commit in one of them what only the
    other one's store has."""
    (lab.view / "f").write_bytes(CONTENT)
    copy = MountedLab(tmp_path / "copy", tmp_path / "copy-view")
    subprocess.run(["cp", "-a", lab.root, copy.root], check=True)
    belong_here(copy.root)
    copy.view.mkdir()
    with pytest.raises(Busy, match=f"a copy of this volume is mounted at {lab.view}"):
        copy.mount()
    assert not mounted_at(copy.view)
    lab.optimize()
    assert lab.stub("f") is not None and copy.stub("f") is None
    assert (lab.view / "f").read_bytes() == CONTENT
    lab.unmount()
    copy.mount()
    assert (copy.view / "f").read_bytes() == CONTENT
    copy.unmount()


def test_what_keeps_a_volume_from_being_mounted_is_shown(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume, match="not a volume"):
        mount_process.mount_in_background(str(tmp_path), str(tmp_path))
    result = run_cli("mount", tmp_path)
    assert result.returncode == 2
    assert "not a volume" in result.stderr


def test_a_mount_in_use_stays(lab: MountedLab) -> None:
    (lab.view / "f").write_bytes(CONTENT)
    with open(lab.view / "f", "rb") as file:
        with pytest.raises(Busy, match="in use"):
            mount_process.unmount(str(lab.view))
        assert file.read() == CONTENT
    assert mounted_at(lab.view)


def test_what_is_not_mounted_cannot_be_unmounted(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        mount_process.unmount(str(tmp_path))


def test_unmounting_waits_until_the_volume_is_free(lab: MountedLab) -> None:
    (lab.view / "f").write_bytes(CONTENT)
    lab.unmount()
    with Volume.open(str(lab.root)) as volume, volume.mount_lock():
        assert (lab.data / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_mount_in_good_order(lab: MountedLab, number: int) -> None:
    path = lab.make_stub("f", CONTENT)
    with open(path, "r+b", buffering=0) as file:
        file.write(b"written")
    with opened_pid(lab.pid) as pid_fd:
        os.kill(lab.pid, number)
        assert mount_process.exits(os.dup(pid_fd), DEATH_WAIT_MS)
    assert not mounted_at(lab.view)
    assert lab.read("f") == b"written" + CONTENT[7:]


def test_the_command_line_clears_a_dead_mount_away(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    lab.kill()
    assert run_cli("mount", lab.root, lab.view).returncode == 0
    assert path.read_bytes() == CONTENT
    lab.pid = int(str(lab.status()["pid"]))
    lab.kill()
    assert run_cli("umount", lab.view).returncode == 0
    assert not mounted_at(lab.view)


def test_a_dead_mount_is_named_with_what_to_do_and_hides_no_other(
    lab: MountedLab, tmp_path: Path
) -> None:
    lab.kill()
    other = tmp_path / "other"
    other.mkdir()
    assert run_cli("enable", "--force", other).returncode == 0
    try:
        one, all_of_them = run_cli("status", lab.view), run_cli("status")
        # Volumes of other tests, which are mounted too, may be worse off.
        assert one.returncode == 3 <= all_of_them.returncode
        for said in (one, all_of_them):
            assert f"dedupd: {lab.view}: " in said.stderr
            assert f"`dedupd umount {lab.view}`" in said.stderr
        assert str(other) in all_of_them.stdout
        rows = json.loads(run_cli("status", "--json").stdout)["volumes"]
        assert {str(lab.view), str(other)} <= {row["path"] for row in rows}
        doctor = run_cli("doctor", lab.view)
        assert doctor.returncode == 1 and "`dedupd mount`" in doctor.stdout
    finally:
        assert run_cli("umount", other).returncode == 0


def test_what_was_written_below_a_mount_is_not_hidden_without_a_word(tmp_path: Path) -> None:
    root = tmp_path / "share"
    root.mkdir()
    assert run_cli("enable", "--force", "--no-mount", root).returncode == 0
    (root / "stray").write_bytes(b"written while it was not mounted")
    assert "stray" in run_cli("doctor", root).stdout
    mounted = run_cli("mount", root)
    assert mounted.returncode == 0 and ": stray; unmount the volume" in mounted.stderr
    assert run_cli("umount", root).returncode == 0
    (root / "stray").unlink()
    assert run_cli("mount", root).stderr == ""
    assert run_cli("umount", root).returncode == 0


def test_jobs_find_the_volume_below_its_mount(lab: MountedLab) -> None:
    (lab.view / "f").write_bytes(CONTENT)
    for place in (lab.root, lab.view):
        result = run_cli("status", place)
        assert result.returncode == 0, result.stderr
    result = run_cli("run", "optimize", lab.view)
    assert result.returncode == 0, result.stderr
    result = run_cli("expand", lab.view / "f")
    assert result.returncode == 0, result.stderr
    assert lab.stub("f") is None
    assert (lab.view / "f").read_bytes() == CONTENT


def test_a_restore_may_take_longer_than_any_other_request(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.make_stub("f", CONTENT)
    monkeypatch.setattr(control_socket, "TIMEOUT_S", 0.01)
    monkeypatch.setattr(control_socket, "POLL_S", 0.02)
    waits = 0

    def check() -> None:
        nonlocal waits
        waits += 1
        if waits == 5:
            os.kill(lab.pid, signal.SIGCONT)

    with lab.opened() as volume:
        os.kill(lab.pid, signal.SIGSTOP)
        try:
            assert restore_file(volume, b"f", check).was_stub
        finally:
            os.kill(lab.pid, signal.SIGCONT)
    assert waits >= 5
    assert lab.stub("f") is None and (lab.view / "f").read_bytes() == CONTENT


def test_a_restore_ends_when_its_client_stops_waiting(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.make_stub("f", CONTENT)
    run = JobRun("unoptimize")
    ask = ControlClient.call_patiently

    def stop_and_ask(
        client: ControlClient, operation: str, *arguments: Any, **more: Any
    ) -> dict[str, Any]:
        if operation == "fill":
            os.kill(lab.pid, signal.SIGSTOP)
            run.cancel()
        return ask(client, operation, *arguments, **more)

    monkeypatch.setattr(ControlClient, "call_patiently", stop_and_ask)
    with lab.opened() as volume:
        try:
            with pytest.raises(Cancelled):
                restore_file(volume, b"f", run.safe_point)
        finally:
            os.kill(lab.pid, signal.SIGCONT)
    assert lab.status()["pid"] == lab.pid
    eventually(lambda: (lab.data / "f").stat().st_blocks == 0, "what was filled is taken back")
    assert (lab.view / "f").read_bytes() == CONTENT


def test_the_kernel_forgets_and_memory_is_given_back(lab: MountedLab) -> None:
    def known() -> int:
        return int(str(lab.status()["inodes_known"]))

    for number in range(500):
        (lab.view / f"d{number}").mkdir()
        (lab.view / f"d{number}" / "f").touch()
    assert known() >= 1000
    subprocess.run(["rm", "-r", *(lab.view / f"d{n}" for n in range(500))], check=True)
    # The kernel tells of it behind the program's back.
    eventually(lambda: known() < 10, "the kernel forgets")


def test_what_is_gone_holds_no_descriptor(lab: MountedLab) -> None:
    """Files come, become stubs, are read, written to, renamed and removed, while every job runs."""

    def churn(step: int) -> None:
        for number in range(12):
            lab.put(f"{step}-{number}", noise(100_000, number))
        lab.optimize()
        for number in range(12):
            path = lab.view / f"{step}-{number}"
            assert path.read_bytes() == noise(100_000, number)
            with open(path, "r+b") as file:
                file.write(b"changed")
            path.rename(lab.view / f"{step}-{number}-renamed")
            if number % 3:
                (lab.view / f"{step}-{number}-renamed").unlink()
        lab.optimize()
        lab.collect()
        lab.compact()
        for path in lab.view.iterdir():
            path.unlink()

    def held() -> int:
        return len(os.listdir(f"/proc/{lab.pid}/fd"))

    churn(0)
    eventually(lambda: lab.status()["inodes_known"] == 0, "the kernel forgets")
    before = held()
    for step in range(1, 5):
        churn(step)
    # A compaction may have put a table beside a container that had none open.
    eventually(lambda: held() <= before + 2, f"no more than {before} descriptors and 2")


def test_a_listing_of_thousands_holds_few_descriptors(lab: MountedLab) -> None:
    for number in range(6000):
        (lab.data / f"f{number}").touch()
    assert len(os.listdir(lab.view)) == 6000
    assert all((lab.view / f"f{number}").exists() for number in range(6000))
    assert len(os.listdir(f"/proc/{lab.pid}/fd")) < 4200
    assert (lab.view / "f0").read_bytes() == b""


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_nfs_handles_outlive_what_the_kernel_knows(loop_fs: MakeFileSystem, kind: str) -> None:
    """The kernel's NFS server opens by handle, as done here, whatever was forgotten meanwhile."""
    with mounted_lab(loop_fs(kind)) as lab:
        (lab.view / "d").mkdir()
        path = lab.make_stub("d/f", CONTENT)
        (lab.view / "gone").touch()
        handles = {}
        for name in ("d/f", "d", "gone"):
            with opened(os.open(lab.view / name, os.O_RDONLY)) as fd:
                handles[name] = native.system.name_to_handle(fd)
        (lab.view / "gone").unlink()
        lab.unmount()
        lab.mount()
        with opened(os.open(lab.view, os.O_RDONLY)) as view:
            with opened(native.system.open_by_handle(view, handles["d/f"], os.O_RDWR)) as fd:
                assert os.pread(fd, len(CONTENT), 0) == CONTENT
                os.pwrite(fd, b"by handle", 5)
            with opened(native.system.open_by_handle(view, handles["d"], os.O_RDONLY)) as fd:
                assert os.listdir(fd) == ["f"]
            with pytest.raises(OSError) as caught:
                native.system.open_by_handle(view, handles["gone"], os.O_RDONLY)
            assert caught.value.errno == errno.ESTALE
        assert path.read_bytes() == CONTENT[:5] + b"by handle" + CONTENT[14:]


def test_a_mount_without_a_descriptor_left_stays(tmp_path: Path) -> None:
    """Each file that is open takes one; who asks for the mount's state then must not end it."""
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(CONTENT)
        with open(lab.view / "f", "rb") as file:
            limits = resource.prlimit(lab.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(lab.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                client = lab.client()
                assert file.read() == CONTENT
                for _ in range(2 * REQUESTS_PER_TURN):
                    os.statvfs(lab.view)  # so that who connects gets his turn
            finally:
                resource.prlimit(lab.pid, resource.RLIMIT_NOFILE, limits)
            with client:
                assert client.call("status")["pid"] == lab.pid
        assert is_serving(lab)


def test_a_mount_of_another_version_is_unmounted(lab: MountedLab) -> None:
    """Its process ends by itself: the volume's format need not be known."""
    path = lab.base / "volume.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "format": 2}))
    status = run_cli("status", lab.root)
    assert status.returncode == 2 and "volume format 2; this program reads 3" in status.stderr
    unmounted = run_cli("umount", lab.root)
    assert (unmounted.returncode, unmounted.stderr) == (0, "")
    assert not mounted_at(lab.view)
    path.write_text(json.dumps(fields))
    again = run_cli("umount", lab.root)
    assert again.returncode == 2 and "not mounted" in again.stderr


def test_a_volume_is_unmounted_whose_file_system_has_failed(loop_fs: MakeFileSystem) -> None:
    """XFS fails each request after an error in its log."""
    point = loop_fs("xfs")
    with mounted_lab(point) as lab, lab.client() as client:
        replica = lab.base / os.fsdecode(REPLICA_FILE)
        replica.touch()
        replica.rename(lab.base / "moved")  # the kernel does not remember that the name is free
        subprocess.run(["xfs_io", "-x", "-c", "shutdown", point], check=True)
        with pytest.raises(OSError):
            (lab.view / "g").touch()
        assert client.call("status")["pid"] == lab.pid
        lab.unmount()
        assert not mounted_at(lab.view)
