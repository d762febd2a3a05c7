"""SELinux with Debian's policy, enforcing. It stays loaded: these scenarios are the last ones."""

import errno
import os
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeFileSystem
from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab
from tests.vm.guest.disks import drop_caches, run
from tests.vm.guest.kernel_features import lacks

LABEL = "security.selinux"
CONTENTS = {"a": prose(400_000, 1), "b": noise(300_000, 2), "c": prose(200_000, 3)}
TYPES = {"a": "user_home_t", "b": "httpd_sys_content_t", "c": "samba_share_t"}
INIT = b"system_u:system_r:init_t:s0"
"""This domain starts the others. The tests run as ``kernel_t``, which may become it."""
UNCONFINED, WEB_SERVER = "unconfined", "httpd"
"""Domains ``NAME_t``, which begin with a program of the type ``NAME_exec_t``."""
BUSYBOX = Path("/bin/busybox")
LAST_WORD = b"the end"
FOUND, NOT_READ, NOT_STARTED = 0, 2, 99
"""Statuses of ``grep``, and that of a child that could not become ``grep``."""


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


def has_last_word(domain: str, path: Path, directory: Path) -> bool:
    """Return whether a domain can read all of a file. ``directory`` is for the reading program."""
    program = Path(shutil.copy(BUSYBOX, directory / domain))
    run("chcon", f"system_u:object_r:{domain}_exec_t:s0", program)
    child = os.fork()
    if child == 0:
        try:
            fd = os.open(program, os.O_RDONLY)
            os.chdir(path.parent)
            become = f"system_u:system_r:{domain}_t:s0".encode()
            Path("/proc/self/attr/exec").write_bytes(become)
            Path("/proc/self/attr/current").write_bytes(INIT)
            os.execve(fd, ["grep", "-q", LAST_WORD.decode(), path.name], {})
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(NOT_STARTED)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (FOUND, NOT_READ), status
    return status == FOUND


def test_a_confined_domain_needs_the_boolean_of_the_policy(lab: MountedLab, tmp_path: Path) -> None:
    path = lab.make_stub("a", CONTENTS["a"] + LAST_WORD)
    path.chmod(0o644)
    for value, can_read in (("off", False), ("on", True), ("off", False)):
        run("setsebool", f"httpd_use_fusefs={value}")
        drop_caches()
        assert has_last_word(UNCONFINED, path, tmp_path)
        assert has_last_word(WEB_SERVER, path, tmp_path) is can_read
