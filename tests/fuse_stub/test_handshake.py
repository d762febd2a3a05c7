"""What the mount promises to the kernel, beyond what libfuse can, and what that saves."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd.native.mount import BACKGROUND_MAX, CONGESTED_FROM
from fuse_stub.kernel.request_pump import TASKS
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, mounted_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("handshake")) as lab:
        yield lab


@pytest.mark.root
def test_the_kernel_sends_more_in_the_background_than_one_user_fills(lab: MountedLab) -> None:
    """And fewer than are served at a time, which it says in the file system for control."""
    assert CONGESTED_FROM < BACKGROUND_MAX < TASKS
    control = Path("/sys/fs/fuse/connections")
    subprocess.run(["mount", "-t", "fusectl", "none", control], capture_output=True, check=False)
    connection = control / str(os.minor(os.stat(lab.view).st_dev))
    if not connection.exists():
        pytest.skip("there is no fusectl")
    assert int((connection / "max_background").read_text()) == BACKGROUND_MAX
    assert int((connection / "congestion_threshold").read_text()) == CONGESTED_FROM


@pytest.mark.root
def test_many_writes_cost_little_more_than_a_request_each(lab: MountedLab) -> None:
    with open(lab.view / "f", "wb", buffering=0) as file:
        file.write(b"first")
        before = int(str(lab.status()["requests"]))
        for _ in range(200):
            file.write(b"more")
        assert 200 <= int(str(lab.status()["requests"])) - before < 220


def requests_of(lab: MountedLab, action: Callable[[], object]) -> int:
    before = int(str(lab.status()["requests"]))
    action()
    return int(str(lab.status()["requests"])) - before


@pytest.mark.root
@pytest.mark.parametrize("is_stub", [False, True])
def test_the_kernel_keeps_what_was_written_and_read(lab: MountedLab, is_stub: bool) -> None:
    """Over writes, new attributes and openings: 4 MiB are at least 4 requests."""
    content = os.urandom(4 << 20)
    name = f"kept-{is_stub}"
    path = lab.make_stub(name, content) if is_stub else lab.view / name
    if not is_stub:
        path.write_bytes(content)
    path.read_bytes()
    with open(path, "r+b") as file:
        file.write(b"new" * 2000)
    path.stat()
    os.chmod(path, 0o600)
    os.utime(path, ns=(1, 1))
    changed = b"new" * 2000 + content[6000:]
    assert requests_of(lab, lambda: path.read_bytes() == changed or pytest.fail("other")) < 4
    os.truncate(path, 5000)
    os.truncate(path, 9000)
    assert path.read_bytes() == changed[:5000] + bytes(4000)


@pytest.mark.root
def test_the_kernel_keeps_where_a_symbolic_link_leads(lab: MountedLab) -> None:
    link = lab.view / "link"
    link.symlink_to("there")
    assert os.readlink(link) == "there"
    assert requests_of(lab, lambda: [os.readlink(link) for _ in range(50)]) < 10
    link.unlink()
    link.symlink_to("elsewhere")
    assert os.readlink(link) == "elsewhere"


@pytest.mark.root
@pytest.mark.parametrize("is_stub", [False, True])
def test_a_program_that_a_user_wrote_to_runs_without_its_owners_rights(
    lab: MountedLab, is_stub: bool
) -> None:
    content = Path("/usr/bin/id").read_bytes()
    program = lab.view / f"id-{is_stub}"
    if is_stub:
        lab.make_stub(program.name, content)
    else:
        program.write_bytes(content)
    os.chown(program, BOB, BOB)
    os.chmod(program, 0o6777)
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        pytest.skip("the file system below has no programs with their owners' rights")

    def acts() -> None:
        assert runs_as(program) == BOB
        with open(program, "ab") as file:
            file.write(b"\0")
        assert runs_as(program) == ALICE

    as_user(ALICE, acts)


def runs_as(program: Path) -> int:
    return int(subprocess.run([program, "-u"], capture_output=True, check=True).stdout)


@pytest.mark.root
def test_what_root_opened_keeps_set_user_id_as_long_as_root_writes(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(b"content")
    os.chmod(path, 0o4755)
    with open(path, "ab") as file:
        file.write(b"more")
    assert path.stat().st_mode & 0o7777 == 0o4755
