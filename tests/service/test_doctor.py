"""The doctor: what it finds, on real file systems, and that it leaves no trace."""

import os
import subprocess
from pathlib import Path

import pytest

from dedupd.service.doctor import Check, Verdict, check_machine, check_path
from fuse_stub.kernel import ring_offer as kernel
from tests.conftest import MakeFileSystem
from tests.support.lab import new_lab, run_cli
from tests.support.mounts import mounted_lab
from tests.support.ways import DEVICE, RING, WAY, has_ring


def found(path: Path, what: str) -> Check:
    (check,) = (check for check in check_path(str(path)) if check.what == what)
    return check


def test_a_machine_without_service_is_told_so() -> None:
    checks = {check.what: check for check in check_machine()}
    assert checks["FUSE"].verdict is Verdict.FINE
    assert "`touch " in checks["configuration"].found
    assert checks["configuration"].verdict is Verdict.FINE, "one run by hand needs none"


def test_it_says_whether_requests_may_come_by_io_uring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = tmp_path / "enable_uring"
    monkeypatch.setattr(kernel, "OFFERED", str(offered))

    def said() -> str:
        (check,) = (check for check in check_machine() if check.what == "FUSE")
        assert check.verdict is Verdict.FINE, "mounts do without"
        return check.found

    assert "Linux 6.14" in said()
    offered.write_text("N\n")
    assert f"`echo Y > {offered}`" in said()
    offered.write_text("Y\n")
    assert "io_uring is on" in said()


@pytest.mark.root
def test_it_says_which_way_the_requests_of_a_mount_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WAY, DEVICE)
    with mounted_lab(tmp_path) as lab:
        assert found(lab.view, "volume").found.endswith(f"mounted at {lab.view}, by /dev/fuse")
        lab.unmount()
        if has_ring():
            monkeypatch.setenv(WAY, RING)
            lab.mount()
            assert found(lab.view, "volume").found.endswith(f"mounted at {lab.view}, by io_uring")


@pytest.mark.root
def test_a_volume_is_looked_at_below_its_own_mount(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "d/inner").mkdir(parents=True)
        assert found(lab.view, "other file systems in it").verdict is Verdict.FINE
        inner = lab.data / "d/inner"
        (inner / ".dedupd").mkdir()
        (inner / ".dedupd/volume.json").touch()
        check = found(lab.view, "other file systems in it")
        assert check.verdict is Verdict.FINE, "users reach it as any other directory"
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inner], check=True)
        try:
            check = found(lab.view, "other file systems in it")
        finally:
            subprocess.run(["umount", inner], check=True)
        assert check.verdict is Verdict.BAD and f"{inner} is a mount" in check.found


def test_the_worst_comes_first_and_the_end_counts(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('reserve = "99%"\nmin_age = "soon"\n')
    said = run_cli("doctor", lab.root)
    assert said.returncode == 1
    lines = said.stdout.splitlines()
    at = lines.index(str(lab.root)) + 1
    verdicts = [line.split()[0] for line in lines[at:-1] if not line.startswith(" ")]
    assert verdicts == sorted(verdicts, key=["bad", "warning", "fine"].index)
    assert verdicts.count("bad") >= 1
    assert lines[-1].startswith(f"{verdicts.count('bad')} problem")


def test_looking_at_a_directory_leaves_no_trace(tmp_path: Path) -> None:
    os.utime(tmp_path, ns=(1, 2))
    before = tmp_path.stat()
    found(tmp_path, "holes and attributes")
    after = tmp_path.stat()
    assert os.listdir(tmp_path) == []
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)


@pytest.mark.root
def test_file_systems_that_can_carry_a_volume(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4", "2G")
    assert {check.verdict for check in check_path(str(point))} == {Verdict.FINE}


@pytest.mark.root
def test_a_small_file_system_needs_a_fifth_of_it_free(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4", "64M")
    assert found(point, "free space").verdict is Verdict.FINE
    (point / "ballast").write_bytes(b"\1" * (42 << 20))
    check = found(point, "free space")
    assert check.verdict is Verdict.BAD
    assert "jobs write before" in check.remedy


def test_free_space_that_is_all_reserved_for_users(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('reserve = "99%"\n')
    check = found(lab.root, "free space")
    assert check.verdict is Verdict.BAD and "`reserve`" in check.remedy
    lab.set_policy('reserve = "0"\n')
    assert "reserve" not in found(lab.root, "free space").remedy


def test_a_volume_inside_and_a_volume_around(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    inside = found(tmp_path, "volumes and mounts in it")
    assert inside.verdict is Verdict.BAD and str(lab.root) in inside.found
    (lab.root / "new").mkdir()
    around = found(lab.root / "new", "enclosing volumes")
    assert around.verdict is Verdict.BAD and str(lab.root) in around.found


def test_a_directory_with_a_volume_inside_cannot_be_enabled(tmp_path: Path) -> None:
    (tmp_path / "outer/deep").mkdir(parents=True)
    lab = new_lab(tmp_path / "outer/deep/volume")
    done = run_cli("enable", "--force", tmp_path / "outer")
    assert done.returncode == 2
    assert f"{lab.root} is a volume (`dedupd disable {lab.root}`)" in done.stderr
    assert os.listdir(tmp_path / "outer") == ["deep"]


def test_a_volume_of_a_newer_format(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    assert found(lab.root, "volume").verdict is Verdict.WARNING, "it is not mounted"
    file = lab.base / "volume.json"
    file.write_text(file.read_text().replace('"format": 3', '"format": 99'))
    assert found(lab.root, "volume").verdict is Verdict.BAD


def test_the_exit_status_says_whether_something_is_bad(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    done = run_cli("doctor", tmp_path)
    assert done.returncode == 1
    assert "is a volume" in " ".join(done.stdout.split())
    assert run_cli("doctor", lab.root / "missing").returncode == 2
