"""Commands that concern all of a volume: its root and its mount point alone are taken for it."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd.service.doctor import check_path
from dedupd_core.system import mount_table
from dedupd_core.volume.base_directory import BASE_NAME
from tests.support.lab import Lab, new_lab, run_cli
from tests.support.mounts import ALICE, MountedLab, as_user, mounted_lab

pytestmark = pytest.mark.root

USAGE = 2


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "sub").mkdir()
        (lab.view / "sub/f").write_bytes(b"content")
        (tmp_path / "link").symlink_to(lab.view)
        yield lab


def is_mounted(point: Path) -> bool:
    return any(mount.point == str(point) for mount in mount_table.volumes())


PARTS = ("view/sub", "view/sub/f", "view/nosuch", "view/sub/no/such", "link/sub", "link/nosuch")


@pytest.mark.parametrize("command", [("umount",), ("disable",), ("disable", "--unoptimize")])
def test_a_path_below_a_volume_takes_nothing_from_its_users(
    lab: MountedLab, command: tuple[str, ...]
) -> None:
    for path in [lab.view.parent / part for part in PARTS]:
        refused = run_cli(*command, path)
        assert refused.returncode == USAGE, refused
        if path.exists():
            to = "unmount" if command == ("umount",) else "disable"
            assert (
                f"is inside the volume {lab.view}; use that path to {to} the entire volume"
                in refused.stderr
            )
        else:
            assert f"{path}: no such directory" in refused.stderr
        assert is_mounted(lab.view)
        assert (lab.view / "sub/f").read_bytes() == b"content"


def test_each_name_of_the_whole_unmounts_it(lab: MountedLab) -> None:
    for name in ("view", "volume", "link", "view/", "view/sub/.."):
        if not is_mounted(lab.view):
            lab.mount()
        assert run_cli("umount", f"{lab.root.parent}/{name}").returncode == 0
        assert not is_mounted(lab.view), name


@pytest.mark.parametrize("part", ["sub", "nosuch"])
def test_a_policy_is_that_of_a_whole_volume(lab: MountedLab, part: str) -> None:
    before = (lab.base / "policy.toml").read_bytes()
    for change in (("min_age", "5d"), ("--reset", "min_age"), ("--edit",), ()):
        refused = run_cli("policy", lab.view / part, *change)
        assert refused.returncode == USAGE, refused
        assert "is inside the volume" in refused.stderr or "no such directory" in refused.stderr
    assert (lab.base / "policy.toml").read_bytes() == before


def test_a_policy_says_what_it_was_and_whose(lab: MountedLab) -> None:
    said = run_cli("policy", lab.view, "min_age", "5d")
    assert said.stdout.splitlines() == [
        'min_age: "0s" -> "5d"',
        f"This is the policy of the entire volume {lab.view}; jobs that start from now on use it.",
    ]


# --- a policy that is wrong -------------------------------------------------------------------


@pytest.fixture
def plain_lab(tmp_path: Path) -> Lab:
    return new_lab(tmp_path / "volume")


def remedy(root: Path) -> str:
    return next(check.remedy for check in check_path(str(root)) if check.what == "policy")


WRONG = '# mine\nmin_size = "nonsense"\ncores = "many"\nno_such_key = 1\nexclude = ["*.tmp"]\n'


def test_a_key_is_put_right_however_wrong_it_is(plain_lab: Lab) -> None:
    root = plain_lab.root
    plain_lab.write_policy(WRONG)
    assert run_cli("policy", root).returncode == USAGE
    assert f"`dedupd policy {root} --reset min_size`" in remedy(root)
    done = run_cli("policy", root, "min_size", "32k")
    assert done.returncode == 0, done
    assert 'min_size: "nonsense" -> "32 KiB"' in done.stdout or '-> "32k"' in done.stdout
    assert "Still invalid: cores; to reset it, use `--reset cores`." in done.stdout
    assert run_cli("policy", root, "--reset", "cores").returncode == 0
    assert run_cli("policy", root, "--reset", "no_such_key").returncode == 0
    with plain_lab.opened() as volume:
        assert volume.policy().min_size_bytes == 32 << 10
        assert volume.policy().exclude == ("*.tmp",)
        assert volume.policy_text().startswith("# mine\n")


def edit(root: Path, tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    """``--edit`` with an editor that writes ``text``."""
    (tmp_path / "text").write_text(text)
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncat {tmp_path}/text > "$1"\n')
    editor.chmod(0o755)
    return run_cli("policy", root, "--edit", environment={"VISUAL": str(editor)})


def test_a_file_that_is_no_toml_is_mended_by_an_editor(plain_lab: Lab, tmp_path: Path) -> None:
    root = plain_lab.root
    plain_lab.write_policy("min_size = = 3\n")
    refused = run_cli("policy", root, "min_size", "32k")
    assert refused.returncode == USAGE and "`dedupd policy --edit`" in refused.stderr
    assert f"`dedupd policy --edit {root}`" in remedy(root)
    wrong = edit(root, tmp_path, "min_size = 'no size'\n")
    assert wrong.returncode == USAGE and "'no size'" in wrong.stderr
    assert plain_lab.base.joinpath("policy.toml").read_text() == "min_size = = 3\n"
    assert edit(root, tmp_path, 'min_size = "48k"\n').returncode == 0
    with plain_lab.opened() as volume:
        assert volume.policy().min_size_bytes == 48 << 10


# --- enabling ---------------------------------------------------------------------------------


def test_enabling_leaves_users_their_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    root = tmp_path / "share"
    root.mkdir(mode=0o755)
    (root / "f").write_bytes(b"content")
    done = run_cli("enable", "--force", root)
    try:
        assert done.returncode == 0, done
        assert "Users can access their files as before" in done.stdout
        assert "rsync -x" in done.stdout
        as_user(ALICE, (root / "f").read_bytes)
        assert stat.S_IMODE(root.stat().st_mode) == 0o755
        assert "rsync -x" in " ".join(run_cli("doctor", root).stdout.split())
        assert run_cli("mount", root).returncode == 0, "it is mounted already"
    finally:
        assert run_cli("umount", root).returncode == 0
    assert run_cli("disable", root).returncode == 0
    assert os.listdir(root) == ["f"]


def test_enabling_without_a_mount_says_what_users_meet(tmp_path: Path) -> None:
    root = tmp_path / "share"
    root.mkdir()
    done = run_cli("enable", "--force", "--no-mount", root)
    assert done.returncode == 0
    assert f"Users have no access until `dedupd mount {root}`" in done.stdout
    assert os.listdir(root) == [BASE_NAME]


def test_a_program_that_stays_on_one_file_system_passes_over_a_volume(tmp_path: Path) -> None:
    """Just this is why it is told."""
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(b"content")
        found = subprocess.run(
            ["find", tmp_path, "-xdev", "-name", "f", "-not", "-path", "*/.dedupd/*"],
            capture_output=True,
            check=True,
        )
        assert found.stdout == b""
        mounted = ["findmnt", "--mountpoint", str(lab.view), "--types", "fuse.dedupd"]
        assert subprocess.run(mounted, capture_output=True, check=False).returncode == 0
        lab.unmount()
        assert subprocess.run(mounted, capture_output=True, check=False).returncode == 1
