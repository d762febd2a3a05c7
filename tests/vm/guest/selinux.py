"""SELinux with Debian's policy, enforcing. It stays loaded: these scenarios are the last ones."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeFileSystem
from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab
from tests.vm.guest.disks import run
from tests.vm.guest.kernel_features import lacks

LABEL = "security.selinux"
CONTENTS = {"a": prose(400_000, 1), "b": noise(300_000, 2), "c": prose(200_000, 3)}
TYPES = {"a": "user_home_t", "b": "httpd_sys_content_t", "c": "samba_share_t"}
STRANGER = "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023"
WEB_SERVER = "system_u:system_r:httpd_t:s0"


@pytest.fixture(scope="module", autouse=True)
def enforcing() -> None:
    """Load the policy, and enforce it."""
    if "selinuxfs" not in Path("/proc/filesystems").read_text():
        lacks("SELinux")
    run("load_policy", "-i")
    Path("/sys/fs/selinux/enforce").write_text("1")
    assert run("getenforce").strip() == "Enforcing"


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def lab(request: pytest.FixtureRequest, loop_fs: MakeFileSystem) -> Iterator[MountedLab]:
    point = loop_fs(request.param)
    run("chcon", "system_u:object_r:user_home_t:s0", point)
    with mounted_lab(point) as lab:
        yield lab
        lab.unmount()
        lab.verify_clean()


def label(name: str) -> bytes:
    return f"system_u:object_r:{TYPES[name]}:s0".encode()


def labels_below(lab: MountedLab) -> dict[str, bytes]:
    return {name: os.getxattr(lab.data / name, LABEL).rstrip(b"\0") for name in CONTENTS}


def test_labels_below_survive_all_jobs(lab: MountedLab) -> None:
    expected = {name: label(name) for name in CONTENTS}
    for name, content in CONTENTS.items():
        lab.put(name, content)
        os.setxattr(lab.data / name, LABEL, label(name))
    lab.optimize()
    assert all(lab.stub(name) is not None for name in CONTENTS)
    assert labels_below(lab) == expected
    with open(lab.view / "a", "r+b") as file:
        file.write(b"an edit")
    lab.optimize()
    lab.collect()
    assert labels_below(lab) == expected
    assert (lab.view / "a").read_bytes() == b"an edit" + CONTENTS["a"][7:]
    assert lab.unoptimize().errors == 0
    assert lab.stub("a") is None and labels_below(lab) == expected
    assert (lab.view / "b").read_bytes() == CONTENTS["b"]


def test_all_files_of_the_mount_have_the_label_of_the_mount(lab: MountedLab) -> None:
    path = lab.make_stub("a", CONTENTS["a"])
    assert b":fusefs_t:" in os.getxattr(path, LABEL)
    with pytest.raises(OSError) as caught:
        os.setxattr(path, LABEL, label("a"))
    assert caught.value.errno == errno.EOPNOTSUPP
    below = os.getxattr(lab.data / "a", LABEL)
    assert b":user_home_t:" in below, "the label of the directory"


def test_a_confined_domain_needs_the_boolean_of_the_policy(lab: MountedLab) -> None:
    path = lab.make_stub("a", CONTENTS["a"])
    for directory in (path.parent, *path.parent.parents):
        if directory.stat().st_dev == path.stat().st_dev:
            directory.chmod(0o755)
    digest = run("sha256sum", path).split()[0]

    def read_as(context: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["runcon", context, "sha256sum", path], capture_output=True, text=True, check=False
        )

    done = read_as(STRANGER)
    assert done.returncode == 0 and done.stdout.split()[0] == digest, done.stderr
    assert read_as(WEB_SERVER).returncode != 0
