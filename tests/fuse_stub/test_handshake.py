"""What the mount promises to the kernel, beyond what libfuse can, and what that saves."""

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import or_
from pathlib import Path

import pytest

from dedupd_core.native.testing import BACKGROUND_MAX, CONGESTED_FROM
from fuse_stub.kernel.request_pump import TASKS
from tests.support.lab import noise
from tests.support.mounts import (
    ALICE,
    BOB,
    TEAM,
    MountedLab,
    Nursery,
    as_user,
    connection,
    mounted_lab,
    serve_without,
)
from tests.support.ways import DEVICE, RING


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("handshake")) as lab:
        yield lab


@pytest.mark.root
def test_the_kernel_sends_more_in_the_background_than_one_user_fills(lab: MountedLab) -> None:
    """And fewer than are served at a time, which it says in the file system for control."""
    assert CONGESTED_FROM < BACKGROUND_MAX < TASKS
    control = connection(lab.view)
    assert int((control / "max_background").read_text()) == BACKGROUND_MAX
    assert int((control / "congestion_threshold").read_text()) == CONGESTED_FROM


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


OFFERS = {
    "umasks": 1 << 6,
    "cached links": 1 << 23,
    "explicit invalidation": 1 << 25,
    "set-user-id": 1 << 28,
    "longer setxattr": 1 << 29,
    "flags beyond 32": 1 << 30 | 0xFFFF_FFFF << 32,
    "idmapped mounts": 1 << 40,
    "io_uring": 1 << 41,
}
"""What a kernel may offer to a mount (``FUSE_INIT``), and older ones do not."""


@pytest.mark.root
@pytest.mark.parametrize("way", [DEVICE, RING], indirect=True)
@pytest.mark.parametrize("name", [*OFFERS, "all"])
def test_a_mount_works_without_what_an_older_kernel_lacks(
    way: str, name: str, tmp_path: Path
) -> None:
    content = noise(300_000)
    absent = OFFERS.get(name) or reduce(or_, OFFERS.values())
    with mounted_lab(tmp_path, nursery=Nursery(partial(serve_without, absent))) as lab:
        by_ring = way == RING and name not in ("io_uring", "flags beyond 32", "all")
        assert lab.status()["by_ring"] == by_ring
        stub = lab.make_stub("stub", content)
        os.chmod(lab.view, 0o777)
        os.chmod(stub, 0o666)

        def acts() -> None:
            os.umask(0o027)
            new = lab.view / "new"
            new.write_bytes(content)
            assert new.stat().st_mode & 0o777 == 0o640
            os.chown(new, -1, TEAM)
            os.chmod(new, 0o6775)
            # As long as the bit of the group stays the caller is in it.
            subprocess.run(["setfacl", "-m", f"u:{BOB}:rw", new], check=True)
            with open(new, "r+b") as file:
                file.write(b"new")
            assert new.stat().st_mode & 0o7000 == 0
            (lab.view / "link").symlink_to("new")
            with open(stub, "r+b") as file:
                file.seek(1000)
                file.write(b"new")
            os.setxattr(new, "user.name", b"value", os.XATTR_CREATE)

        as_user(ALICE, acts, groups=[TEAM])
        assert stub.read_bytes() == content[:1000] + b"new" + content[1003:]
        assert (lab.view / "link").read_bytes() == b"new" + content[3:]
        assert os.getxattr(lab.data / "new", "user.name") == b"value"
        (lab.view / "new").unlink()
        assert sorted(os.listdir(lab.view)) == ["link", "stub"]
        lab.unmount()
        lab.verify_clean()
