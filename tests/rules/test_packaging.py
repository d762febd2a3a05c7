"""What a machine is given to run the service: units that systemd takes, rights that suffice."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

from dedupd.service.config import SERVICE_KEYS, ServiceConfig, parse_config
from dedupd.service.systemd.slice import SLICE
from dedupd_core.system.file_system import file_system_of
from dedupd_core.system.files import opened
from fuse_stub.kernel.confinement import kept_capabilities
from fuse_stub.kernel.ring_offer import way_of
from tests.support.lab import REPOSITORY, let_others_pass, noise
from tests.support.mounts import ALICE, as_user
from tests.support.service import service_lab
from tests.support.ways import DEVICE, RING, has_ring, ring_is_offered

PACKAGING = REPOSITORY / "packaging"
UNIT = PACKAGING / "systemd/dedupd.service"
MOUNT_UNIT = PACKAGING / "systemd/dedupd-mount@.service"
SLICE_UNIT = PACKAGING / "systemd" / SLICE
MOUNTS_SLICE_UNIT = PACKAGING / "systemd/system-dedupd.slice"
UNITS = [UNIT, MOUNT_UNIT, SLICE_UNIT, MOUNTS_SLICE_UNIT]


def settings(name: str, unit: Path = UNIT) -> list[str]:
    """The words of all lines of a unit that set something."""
    return " ".join(re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)).split()


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)


def unit_to_check(directory: Path, unit: Path) -> Path:
    """A unit, for a machine on which the program is not installed."""
    copy = directory / unit.name
    copy.write_text(unit.read_text().replace("/usr/bin/dedupd", "/bin/true"))
    return copy


@needs_systemd
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    units = [unit_to_check(tmp_path, unit) for unit in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        check=False,
    )
    # It gives a template an instance, and its name says so.
    names = [unit.name.partition("@")[0] for unit in units]
    assert [line for line in done.stderr.splitlines() if any(n in line for n in names)] == []


@needs_systemd
@pytest.mark.parametrize(
    ("unit", "exposure_max", "heading"),
    [(UNIT, 5.3, "### Exposure of the service"), (MOUNT_UNIT, 3.0, "### The unit of a mount")],
    ids=["service", "mount"],
)
def test_the_exposure_that_systemd_finds_is_documented(
    tmp_path: Path, unit: Path, exposure_max: float, heading: str
) -> None:
    """Each setting that the unit leaves out has its reason in docs/guide/service.md, and none that
    it has is listed there."""
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    threshold = f"--threshold={exposure_max * 10:.0f}"
    checked = unit_to_check(tmp_path, unit)
    # Without default dependencies, systemd takes a unit for one of the boot, and counts less.
    checked.write_text(checked.read_text().replace("DefaultDependencies=no", ""))
    subprocess.run([*command, threshold, checked], check=True, stdout=subprocess.DEVNULL)
    found = subprocess.run([*command, "--json=short", checked], check=True, stdout=subprocess.PIPE)
    rows = json.loads(found.stdout)
    document = (REPOSITORY / "docs/guide/service.md").read_text()
    parts = re.split(r"^##", document, flags=re.MULTILINE)
    (text,) = (part for part in parts if part.startswith(heading.removeprefix("##")))
    listed = re.findall(r"^\| (.*`.*) \| \d\.\d \| .+ \|$", text, re.MULTILINE)
    documented = set(re.findall(r"`([^`]+)`", " ".join(listed)))
    left_out = {row["name"] for row in rows if row["exposure"]}
    assert {name for name in left_out if not words_of(name) & documented} == set()
    stated = {word for name in left_out for word in words_of(name)}
    assert documented - stated - {_RIGHTS, "SystemCallFilter", "RestrictAddressFamilies"} == set()


def words_of(setting: str) -> set[str]:
    """The words by which the documentation names a setting, such as
    ``CapabilityBoundingSet=~CAP_SYS_(NICE|RESOURCE)`` or ``User=/DynamicUser=``."""
    name, _, value = setting.partition("=~")
    if not value:
        return set(name.replace("=", "").split("/"))
    start, found, ends = value.partition("(")
    return {start + end for end in ends.rstrip(")").split("|")} if found else {value}


def test_a_service_that_ends_takes_no_mount_with_it() -> None:
    assert settings("KillMode") == ["process"]


def test_mounts_are_made_where_users_see_them() -> None:
    """Each of these would give the service a file system namespace of its own."""
    for name in ("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ReadOnlyPaths"):
        assert settings(name) == []


def switch_on(parameters: Path) -> subprocess.CompletedProcess[str]:
    """What the unit does before the service starts, with the parameters of the module there."""
    (line,) = re.findall(r"^ExecStartPre=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert line.startswith("-"), "without it the service starts all the same"
    command = shlex.split(line.removeprefix("-").replace(PARAMETERS, str(parameters)))
    return subprocess.run(command, capture_output=True, text=True, check=False)


PARAMETERS = "/sys/module/fuse/parameters"


@pytest.mark.root
def test_the_kernel_is_to_offer_rings_where_it_has_them(tmp_path: Path) -> None:
    done = switch_on(tmp_path)
    assert (done.returncode, done.stderr, os.listdir(tmp_path)) == (0, "", [])
    switch = tmp_path / "enable_uring"
    switch.write_text("N\n")
    assert switch_on(tmp_path).returncode == 0
    assert switch.read_text() == "Y\n"


@pytest.mark.root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("way", [DEVICE, RING])
def test_the_rights_of_the_unit_suffice(tmp_path: Path, way: str) -> None:
    if way == RING and not has_ring():
        pytest.skip("no FUSE over io_uring here")
    rights = ",".join("+" + word.removeprefix("CAP_").lower() for word in settings(_RIGHTS))
    offered = ring_is_offered() if way == RING else nullcontext()
    with offered, service_lab(tmp_path) as machine:
        lab = machine.add_volume()
        content = noise(200_000)
        lab.put("f", content)
        command = ["setpriv", "--no-new-privs", f"--bounding-set=-all,{rights}"]
        command += [sys.executable, "-c", _WITHOUT_NEW_CODE, "-m", "dedupd.cli.main", "serve"]
        environment = {**os.environ, **machine.environment, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen(command, env=environment, cwd="/") as program:
            try:
                machine.wait_until_it_listens()
                pid = machine.mount_pid(lab)
                with lab.opened() as volume:
                    assert way == DEVICE or way_of(volume) == ", by io_uring"
                for job in ("optimize", "gc", "compact", "scrub"):
                    ended = machine.ended(machine.submit(job, lab))
                    assert ended["exit_status"] == 0, ended
                assert lab.stub("f") is not None
                assert (lab.root / "f").read_bytes() == content
                _do_what_root_and_users_do(lab.root)
                # Of the device the thread is root's again by now.
                assert way == DEVICE or not has_reserved_blocks(lab.root) or writes_as_another(pid)
            finally:
                program.terminate()
        machine.verify()


_RIGHTS = "CapabilityBoundingSet"

_WITHOUT_NEW_CODE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""``PR_SET_MDWE``, which is what ``MemoryDenyWriteExecute=`` does (Linux 6.3)."""


@pytest.mark.parametrize("unit", [UNIT, MOUNT_UNIT], ids=["service", "mount"])
def test_a_unit_grants_what_mounts_keep(unit: Path) -> None:
    assert set(kept_capabilities(is_read_only=False)) <= set(settings(_RIGHTS, unit))


def test_nothing_but_an_unmount_ends_a_mount() -> None:
    """Neither the shutdown of the machine, which would do so before programs have written, nor
    another runlevel, nor a start too many."""
    assert settings("DefaultDependencies", MOUNT_UNIT) == ["no"]
    assert settings("IgnoreOnIsolate", MOUNT_UNIT) == settings("RefuseManualStop", MOUNT_UNIT)
    assert settings("StartLimitIntervalSec", MOUNT_UNIT) == ["0"]
    for name in ("Requires", "BindsTo", "PartOf", "Conflicts", "RuntimeMaxSec", "WatchdogSec"):
        assert settings(name, MOUNT_UNIT) == []


def has_reserved_blocks(root: Path) -> bool:
    with opened(os.open(root.parent, os.O_PATH)) as fd:
        return file_system_of(fd).kind == "ext4"


def writes_as_another(pid: int) -> bool:
    """Whether threads of a mount have no right to what the file system reserves for root."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    users = {re.findall(r"^Uid:.*\t(\d+)$", (at / "status").read_text(), re.M)[0] for at in tasks}
    return users == {"0", "65533"}


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


# --- the slice of the jobs --------------------------------------------------------------------


def test_jobs_get_the_idle_time() -> None:
    text = SLICE_UNIT.read_text()
    assert "\nCPUWeight=idle\n" in text and "\nIOWeight=1\n" in text
    # Weights count among neighbours, and a slice with a dash in its name has none but its like.
    assert "-" not in SLICE


@pytest.mark.root
@pytest.mark.parametrize("systemd_works", [True, False])
def test_a_service_of_systemd_runs_its_jobs_in_the_slice(
    tmp_path: Path, systemd_works: bool
) -> None:
    """Where systemd does not do it, they run all the same, and the log says why not."""
    programs = tmp_path / "bin"
    programs.mkdir()
    calls = tmp_path / "calls"
    stand_in = programs / "systemd-run"
    # As the real one does, it becomes the command.
    become = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    refuse = "echo no bus here >&2; exit 1"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n{become if systemd_works else refuse}\n')
    stand_in.chmod(0o755)
    with service_lab(tmp_path) as machine:
        lab = machine.add_volume()
        lab.put("f", noise(100_000))
        machine.start(INVOCATION_ID="1", PATH=f"{programs}:{os.environ['PATH']}")
        ended = machine.ended(machine.submit("optimize", lab))
        assert ended["exit_status"] == 0 and lab.stub("f") is not None
        machine.stop()
        machine.verify()
    asked = calls.read_text()
    assert f"--scope --slice={SLICE} -- " in asked
    assert ("dedupd.cli.main run" in asked) == systemd_works
    assert (f"outside {SLICE}: no bus here" in machine.log.read_text()) != systemd_works


# --- what else comes with the package ---------------------------------------------------------


def test_the_example_names_every_key_with_its_default() -> None:
    text = (PACKAGING / "dedupd.toml").read_text()
    assert parse_config(text.replace('"dedupd"', '"root"'), "example").group == "root"
    keys = re.findall(r"^# (\w+ = .*)$", text, re.MULTILINE)
    config = parse_config("\n".join(key for key in keys if not key.startswith("listen")), "keys")
    assert config == ServiceConfig()
    named = {key.partition(" ")[0] for key in keys} | {"group", "socket", "state"}
    assert named == set(SERVICE_KEYS)


def test_the_package_has_the_version_of_the_program() -> None:
    newest = (REPOSITORY / "debian/changelog").read_text().partition("\n")[0]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert newest.startswith(f"dedupd ({project['version']}) ")


def test_nothing_of_the_package_goes_near_a_volume() -> None:
    """What its scripts delete lies in the program's own directory."""
    for script in (REPOSITORY / "debian").glob("dedupd.p*"):
        for line in script.read_text().splitlines():
            if re.search(r"\b(rm|rmdir|unlink|mv)\b", line.partition("#")[0]):
                assert "/usr/lib/dedupd" in line, line
