"""What users delete, cut and overwrite can be had back: by the mount, beside all that goes on."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from tests.conftest import MakeFileSystem
from tests.support.lab import OLD_NS, noise, prose, run_cli
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, mounted_lab

pytestmark = pytest.mark.root

PLENTY = {"space_low": "0", "space_critical": "0", "reserve": "0"}
"""However full the disk of the tests is."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path, {"keep_deleted": "7d", **PLENTY}) as one:
        yield one
        one.unmount()
        one.verify_clean()


def deleted(path: Path, *options: str) -> list[dict[str, Any]]:
    result = run_cli("deleted", path, "--json", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def undelete(*arguments: str | Path) -> list[str]:
    """The paths under which files are back."""
    result = run_cli("undelete", *arguments, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    return [row["back"] for row in json.loads(result.stdout)]


def collected(lab: MountedLab) -> int:
    """How many chunks a collection makes garbage."""
    report = lab.collect()
    assert report.errors == 0, report.messages
    return report.orphaned_chunks


def test_what_nfs_opened_by_its_number_alone_has_a_number_for_a_name(lab: MountedLab) -> None:
    """The kernel has forgotten its name, as behind other processes of mount and NFS server."""
    content = noise(300 * KIB)
    path = lab.make_stub("d/f", content)
    with opened(os.open(path, os.O_RDONLY)) as fd:
        handle, ino = native.system.name_to_handle(fd), os.fstat(fd).st_ino
    lab.unmount()
    Path("/proc/sys/vm/drop_caches").write_text("2")
    lab.mount()
    with (
        opened(os.open(lab.view, os.O_RDONLY)) as view,
        opened(native.system.open_by_handle(view, handle, os.O_RDWR)) as fd,
    ):
        os.pwrite(fd, b"by handle", 5)
    lab.unmount()  # which seals the stub, as a mount does a minute after the last close
    assert collected(lab) == 0
    lab.mount()
    assert path.read_bytes() == content[:5] + b"by handle" + content[14:]
    (row,) = deleted(lab.view)
    assert row["path"] == f"#{ino}"
    assert undelete(lab.view / f"#{ino}") == [f"#{ino}"]
    assert (lab.view / f"#{ino}").read_bytes() == content


def test_a_removed_file_comes_back_with_all_that_belonged_to_it(lab: MountedLab) -> None:
    content = noise(300 * KIB)
    path = lab.make_stub("a/b/kept", content)
    os.setxattr(path, "user.colour", b"blue")
    os.chown(path, ALICE, BOB)
    path.chmod(0o640)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    path.unlink()
    (lab.view / "a/b").rmdir()
    assert collected(lab) == 0
    (row,) = deleted(lab.view)
    assert (row["path"], row["cause"], row["uid"]) == ("a/b/kept", "removed", ALICE)
    assert undelete(path) == ["a/b/kept"]
    status = path.stat()
    assert path.read_bytes() == content
    assert (status.st_uid, status.st_gid) == (ALICE, BOB)
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert status.st_mtime_ns == OLD_NS
    assert os.getxattr(path, "user.colour") == b"blue"
    assert lab.stub("a/b/kept") is not None
    assert deleted(lab.view) == []


@pytest.mark.parametrize("year", [1902, 2300, 2446])
def test_a_file_of_any_time_is_noted(lab: MountedLab, year: int) -> None:
    """Its time is one that a note has room for: from 1677 to 2262."""
    path = lab.make_stub("dated", noise(100 * KIB))
    seconds = (year - 1970) * 31_557_600
    os.utime(path, (seconds, seconds))
    path.unlink()
    (row,) = deleted(lab.view)
    assert row["mtime_ns"] == min(seconds * 10**9, (1 << 63) - 1)
    assert undelete(path) == ["dated"]


def test_an_earlier_version_comes_back_beside_the_file(lab: MountedLab) -> None:
    """Overwritten in place, cut to nothing, cut shorter, and replaced by another file."""
    contents = {name: noise(100 * KIB, seed) for seed, name in enumerate(("w", "t", "c", "r"))}
    for name, content in contents.items():
        lab.make_stub(name, content)
    with open(lab.view / "w", "r+b") as file:
        file.seek(5000)
        file.write(b"new")
        file.write(b"newer")
    (lab.view / "t").write_bytes(b"short")
    os.truncate(lab.view / "c", 10_000)
    (lab.view / "new").write_bytes(b"other")
    os.rename(lab.view / "new", lab.view / "r")
    rows = deleted(lab.view)
    assert {row["path"]: row["cause"] for row in rows} == {
        "w": "overwritten",
        "t": "cut",
        "c": "cut",
        "r": "replaced",
    }
    assert collected(lab) == 0
    for name, content in contents.items():
        now = (lab.view / name).read_bytes()
        (back,) = undelete(lab.view / name)
        assert back.startswith(f"{name}.deleted-")
        assert (lab.view / back).read_bytes() == content
        assert (lab.view / name).read_bytes() == now


def test_a_name_of_several_and_a_plain_file_take_nothing_from_the_store(lab: MountedLab) -> None:
    path = lab.make_stub("one", prose(100 * KIB))
    os.link(path, lab.view / "two")
    path.unlink()
    (lab.view / "plain").write_bytes(b"plain")
    (lab.view / "plain").unlink()
    assert deleted(lab.view) == []


def test_what_was_written_since_is_gone_and_never_comes_back_as_zeros(lab: MountedLab) -> None:
    content = noise(100 * KIB)
    path = lab.make_stub("grown", content)
    with open(path, "ab") as file:
        file.write(b"x" * 50_000)
    path.unlink()
    (row,) = deleted(lab.view)[:1]
    assert row["lost_own_blocks"]
    assert row["length_bytes"] == len(content)
    undelete(path)
    assert path.read_bytes() == content


def test_everybody_has_back_what_was_theirs_and_sees_nothing_else(lab: MountedLab) -> None:
    (lab.view / "shared").mkdir()
    (lab.view / "shared").chmod(0o777)
    for name, uid in (("alice", ALICE), ("bob", BOB)):
        path = lab.make_stub(f"shared/{name}", noise(50 * KIB, uid))
        os.chown(path, uid, uid)
        path.chmod(0o4600)
        path.unlink()
    theirs = {row["path"]: row["id"] for row in deleted(lab.view)}
    folder = lab.view / "shared"

    def alice() -> None:
        rows = os.getxattr(folder, "user.dedupd.deleted").splitlines()
        assert [json.loads(row)["path"] for row in rows] == ["shared/alice"]
        fd = os.open(folder / "back", os.O_CREAT | os.O_RDWR, 0o600)
        with pytest.raises(FileNotFoundError):
            os.setxattr(fd, "user.dedupd.undelete", theirs["shared/bob"].encode())
        os.setxattr(fd, "user.dedupd.undelete", theirs["shared/alice"].encode())
        assert (folder / "back").read_bytes() == noise(50 * KIB, ALICE)
        status = (folder / "back").stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (ALICE, 0o600)
        with pytest.raises(PermissionError):
            os.setxattr(fd, "user.dedupd.undelete", theirs["shared/alice"].encode())

    as_user(ALICE, alice)


def test_it_is_gone_after_its_time(lab: MountedLab) -> None:
    path = lab.make_stub("old", noise(300 * KIB))
    path.unlink()
    assert collected(lab) == 0
    assert run_cli("policy", lab.view, "keep_deleted", "0s").returncode == 0
    assert deleted(lab.view) == []
    assert collected(lab) > 0
    assert run_cli("policy", lab.view, "keep_deleted", "7d").returncode == 0
    assert deleted(lab.view) == [], "its log has gone"


def test_the_space_comes_first(lab: MountedLab) -> None:
    path = lab.make_stub("old", noise(300 * KIB))
    path.unlink()
    space = os.statvfs(lab.root)
    lab.set_policy(f'keep_deleted = "7d"\nspace_critical = {space.f_blocks * space.f_frsize}\n')
    report = lab.collect()
    assert report.deletions_early == 1
    assert report.orphaned_chunks > 0
    assert deleted(lab.view) == []


def test_a_folder_comes_back_as_a_whole_also_without_the_mount(lab: MountedLab) -> None:
    contents = {f"f/{n // 4}/{n}": noise(20 * KIB, n) for n in range(12)}
    for name, content in contents.items():
        (lab.view / name).parent.mkdir(parents=True, exist_ok=True)
        (lab.view / name).write_bytes(content)
    lab.optimize()
    for name in contents:
        (lab.view / name).unlink()
    lab.unmount()
    assert sorted(undelete(lab.root / "f")) == sorted(contents)
    lab.mount()
    for name, content in contents.items():
        assert (lab.view / name).read_bytes() == content
    assert deleted(lab.view) == []


def test_a_file_that_came_back_under_its_old_number_is_not_lost(loop_fs: MakeFileSystem) -> None:
    """On a file system of its own: nobody else is given the number first."""
    place = loop_fs("ext4", "64M", in_memory=True)
    with mounted_lab(place, {"keep_deleted": "7d", **PLENTY}) as lab:
        path = lab.make_stub("f", noise(20 * KIB))
        number = lab.identity("f").inode
        path.unlink()
        lab.unmount()
        assert undelete(lab.root / "f") == ["f"]
        assert lab.identity("f").inode == number
        lab.mount()
        assert deleted(lab.view) == []


def test_a_rule_says_what_is_kept(lab: MountedLab) -> None:
    lab.set_policy(
        'min_age = "0s"\nkeep_deleted = "0s"\n[[rule]]\npath = "kept/"\nkeep_deleted = "1d"\n'
    )
    for name in ("kept/a", "b"):
        lab.make_stub(name, noise(20 * KIB, len(name))).unlink()
    assert [row["path"] for row in deleted(lab.view)] == ["kept/a"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_deletions_and_overwrites_come_back_and_are_gone_after_their_time(
    lab: MountedLab,
) -> None:
    def content(number: int) -> bytes:
        return prose(3 * KIB, number) + noise(2 * KIB, number)

    count = 10_000
    for number in range(count):
        path = lab.view / f"{number % 100}" / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(number))
    lab.optimize()
    for number in range(count):
        path = lab.view / f"{number % 100}" / str(number)
        if number % 2:
            path.unlink()
        else:
            with open(path, "r+b") as file:
                file.write(b"new")
    assert collected(lab) == 0
    assert len(deleted(lab.view)) == count
    folders = [lab.view / f"{number}" for number in range(100)]
    back = [name for at in range(0, 100, 10) for name in undelete(*folders[at : at + 10])]
    assert len(back) == count
    for name in back:
        number = int(name.rpartition("/")[2].partition(".")[0])
        assert (lab.view / name).read_bytes() == content(number)
        (lab.view / name).unlink()
    assert run_cli("policy", lab.view, "keep_deleted", "0s").returncode == 0
    assert deleted(lab.view) == []
    assert collected(lab) > 0
