"""What a machine is given to run the service: units that systemd takes, rights that suffice."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY, let_others_pass, noise
from tests.mount_helpers import ALICE, as_user
from tests.service_helpers import eventually, service_lab

UNIT = REPOSITORY / "packaging/systemd/dedupd.service"


def settings(name: str) -> list[str]:
    """The words of all lines of the unit that set something."""
    return " ".join(re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)).split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # The program is not installed on a machine that runs tests.
    unit.write_text(UNIT.read_text().replace("/usr/bin/dedupd", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert complaints == []


def test_a_service_that_ends_takes_no_mount_with_it() -> None:
    assert settings("KillMode") == ["process"]


def test_mounts_are_made_where_users_see_them() -> None:
    """Each of these would give the service a file system namespace of its own."""
    for name in ("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ReadOnlyPaths"):
        assert settings(name) == []


@pytest.mark.root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_the_rights_of_the_unit_suffice(tmp_path: Path) -> None:
    rights = ",".join("+" + word.removeprefix("CAP_").lower() for word in settings(_RIGHTS))
    with service_lab(tmp_path) as machine:
        lab = machine.add_volume()
        content = noise(200_000)
        lab.put("f", content)
        command = ["setpriv", "--no-new-privs", f"--bounding-set=-all,{rights}"]
        command += [sys.executable, "-m", "dedupd.cli.main", "serve"]
        environment = {**os.environ, **machine.environment, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(command, env=environment, cwd="/") as program:
            try:
                eventually(machine.socket.exists, "it answers")
                machine.mount_pid(lab)
                for job in ("optimize", "gc", "compact", "scrub"):
                    ended = machine.ended(machine.submit(job, lab))
                    assert ended["exit_status"] == 0, ended
                assert lab.stub("f") is not None
                assert (lab.root / "f").read_bytes() == content
                _do_what_root_and_users_do(lab.root)
            finally:
                program.terminate()
        machine.verify()


_RIGHTS = "CapabilityBoundingSet"


def _do_what_root_and_users_do(root: Path) -> None:
    home = root / "home"
    home.mkdir()
    os.chown(home, ALICE, ALICE)
    let_others_pass(root)

    def act() -> None:
        (home / "mine").write_bytes(b"x" * 10_000)
        os.chmod(home / "mine", 0o4700)
        os.setxattr(home / "mine", "user.note", b"mine")
        os.rename(home / "mine", home / "renamed")
        with open(home / "renamed", "r+b") as file:
            file.write(b"y")
        assert os.stat(home / "renamed").st_uid == ALICE

    as_user(ALICE, act)
    os.mknod(home / "null", 0o666 | 0o020000, os.makedev(1, 3))
    os.setxattr(home / "renamed", "security.capability", b"\1\0\0\2" + bytes(16))
    os.chown(home / "renamed", 0, 0)
