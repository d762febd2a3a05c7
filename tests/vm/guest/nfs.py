"""An export of a mounted volume by the NFS server of the kernel, used by its client."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.system.nfs_exports import exports, faults
from dedupd_core.volume.volume import Volume
from tests.conftest import MakeFileSystem
from tests.support.lab import noise, prose
from tests.support.mounts import ALICE, MountedLab, as_user, mounted_lab
from tests.support.service import eventually
from tests.vm.guest.disks import run
from tests.vm.guest.kernel_features import lacks, need_modules

VERSIONS = ["3", "4.2"]
GRACE_S = 10
STATE = Path("/var/lib/nfs")
PIPES = STATE / "rpc_pipefs"
"""By these the kernel reaches ``nfsdcld``, which remembers the clients of NFS 4 over a restart."""
SERVER = Path("/proc/fs/nfsd")
TOP = Path("/scratch")
"""The root of all exports to clients by NFS 4. That of the guest cannot be exported: an overlay."""


def answers(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class NfsServer:
    """The NFS server of the kernel, and the programs that belong to it."""

    def __init__(self) -> None:
        self._programs: list[subprocess.Popen[bytes]] = []

    def prepare(self) -> None:
        with open("/etc/passwd", "a", encoding="ascii") as users:
            for number, name in enumerate(("_rpc", "statd"), 901):
                users.write(f"{name}:x:{number}:65534::/run/rpcbind:/usr/sbin/nologin\n")
        for directory in (STATE / "sm", Path("/run/rpcbind")):
            directory.mkdir(parents=True, exist_ok=True)
            shutil.chown(directory, "_rpc")
        for directory in (STATE / "nfsdcld", PIPES):
            directory.mkdir(exist_ok=True)
        Path("/etc/nfs.conf").write_text(f"[exports]\nrootdir={TOP}\n")
        for path in (STATE / "etab", STATE / "rmtab", Path("/etc/exports")):
            path.touch()
        run("mount", "-t", "rpc_pipefs", "sunrpc", PIPES)
        run("mount", "-t", "nfsd", "nfsd", SERVER)
        for name in ("nfsv4leasetime", "nfsv4gracetime"):
            (SERVER / name).write_text(str(GRACE_S))
        self._programs = [subprocess.Popen(["rpcbind", "-f"])]
        eventually(lambda: answers(["rpcinfo"]), "rpcbind answers")
        self._programs.append(subprocess.Popen(["nfsdcld", "--foreground"]))
        self._programs.append(subprocess.Popen(["rpc.mountd", "--foreground"]))
        eventually(lambda: "mountd" in run("rpcinfo"), "rpc.mountd is registered")
        self.start()

    def start(self) -> None:
        run("rpc.nfsd", "4")
        assert int((SERVER / "threads").read_text()) == 4

    def stop(self) -> None:
        run("rpc.nfsd", "0")

    def end(self) -> None:
        self.stop()
        for program in self._programs:
            program.kill()
            program.wait()
        run("umount", SERVER)
        run("umount", PIPES)


@pytest.fixture(scope="module")
def server() -> Iterator[NfsServer]:
    need_modules("nfsd", "nfs", "nfsv3", "nfsv4")
    server = NfsServer()
    server.prepare()
    yield server
    server.end()


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, server: NfsServer) -> str:
    offered = (SERVER / "versions").read_text().split()
    if f"+{request.param}" not in offered:
        lacks(f"NFS {request.param} of the server ({' '.join(offered)})")
    return str(request.param)


@pytest.fixture
def lab(server: NfsServer, loop_fs: MakeFileSystem) -> Iterator[MountedLab]:
    """A volume that is exported as docs/guide/nfs.md says, except for root, who keeps his
    rights."""
    with mounted_lab(loop_fs("ext4", "512M")) as lab:
        with lab.opened() as volume:
            uuid = volume.parameters.uuid
        export = f"*:/{lab.view.relative_to(TOP)}"
        options = f"rw,sync,no_subtree_check,mp,fsid={uuid},no_root_squash,insecure"
        run("exportfs", "-o", options, export)
        yield lab
        run("exportfs", "-u", export)
        run("exportfs", "-f")
        lab.unmount()
        lab.verify_clean()


@contextmanager
def client(lab: MountedLab, version: str) -> Iterator[Path]:
    """The volume, mounted by NFS."""
    point = lab.root.parent / "client"
    point.mkdir(exist_ok=True)
    lock = ",nolock" if version == "3" else ""
    run(
        *("mount", "-t", "nfs", "-o", f"vers={version},hard,timeo=20{lock}"),
        *(f"127.0.0.1:/{lab.view.relative_to(TOP)}", point),
    )
    try:
        yield point
    finally:
        run("umount", point)


def contents_of(tree: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }


def fill(lab: MountedLab) -> dict[str, bytes]:
    """Stubs in a tree, as users of the volume see them."""
    contents = {"directory/small": noise(5_000, 1), "large": prose(1_500_000) + noise(700_000, 2)}
    for name, content in contents.items():
        lab.make_stub(name, content)
    return contents


def test_stubs_are_read_byte_for_byte(lab: MountedLab, version: str) -> None:
    contents = fill(lab)
    with client(lab, version) as seen:
        assert contents_of(seen) == contents
        assert (seen / "large").stat().st_size == len(contents["large"])
    with Volume.open(str(lab.root)) as volume:
        exported = [replace(one, path=f"{TOP}{one.path}") for one in exports()]
        found = faults(str(lab.view), str(lab.base), volume.parameters.uuid, exported)
    assert [fault for fault in found if fault.is_bad] == [], "doctor approves of the export"


def test_all_that_a_client_changes_arrives(lab: MountedLab, version: str) -> None:
    contents = fill(lab)
    with client(lab, version) as seen:
        large = bytearray(contents["large"])
        with open(seen / "large", "r+b") as file:
            for at in (0, 4_000, 65_000, 1_000_000, 2_199_990):
                os.pwrite(file.fileno(), b"changed by NFS", at)
                large[at : at + 14] = b"changed by NFS"
            os.fsync(file.fileno())
            os.truncate(seen / "large", 2_000_000)
        contents["large"] = bytes(large[:2_000_000])
        os.rename(seen / "large", seen / "directory/renamed")
        contents["directory/renamed"] = contents.pop("large")
        os.link(seen / "directory/small", seen / "linked")
        contents["linked"] = contents["directory/small"]
        for number in range(60):
            (seen / f"new {number}").write_bytes(b"%d" % number)
            contents[f"new {number}"] = b"%d" % number
        for number in range(0, 60, 3):
            (seen / f"new {number}").unlink()
            del contents[f"new {number}"]
        assert contents_of(seen) == contents
        assert contents_of(lab.view) == contents
        lab.optimize()
        lab.collect()
        assert contents_of(seen) == contents
    with client(lab, version) as seen:
        assert contents_of(seen) == contents, "nothing was in the memory of the client"


def test_a_user_of_a_client_has_the_rights_of_that_user(lab: MountedLab, version: str) -> None:
    path = lab.make_stub("private", noise(50_000))
    path.chmod(0o600)
    (lab.view / "own").mkdir()
    os.chown(lab.view / "own", ALICE, ALICE)
    with client(lab, version) as seen:

        def act() -> None:
            with pytest.raises(PermissionError):
                (seen / "private").read_bytes()
            with pytest.raises(PermissionError):
                (seen / "other").write_bytes(b"")
            (seen / "own/file").write_bytes(b"written by alice")

        as_user(ALICE, act)
        assert (lab.view / "own/file").stat().st_uid == ALICE


def test_an_open_file_outlives_a_restart_of_server_and_mount(
    lab: MountedLab, version: str, server: NfsServer
) -> None:
    contents = fill(lab)
    large = bytearray(contents["large"])
    with client(lab, version) as seen, open(seen / "large", "r+b", buffering=0) as file:
        assert file.read(10_000) == large[:10_000]
        for at, restarts_mount in ((100_000, False), (200_000, True)):
            server.stop()
            if restarts_mount:
                run("exportfs", "-f")
                lab.unmount()
                lab.mount()
            server.start()
            os.pwrite(file.fileno(), b"after the restart", at)
            large[at : at + 17] = b"after the restart"
            os.fsync(file.fileno())
            assert os.pread(file.fileno(), 50_000, at - 100) == large[at - 100 : at + 49_900]
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file.fileno(), len(large), 0) == large
    assert (lab.view / "large").read_bytes() == large


def test_an_open_file_outlives_the_process_of_the_mount(lab: MountedLab, version: str) -> None:
    """The server keeps the dead mount in memory until ``exportfs -f``."""
    contents = fill(lab)
    with client(lab, version) as seen, open(seen / "large", "rb", buffering=0) as file:
        assert file.read(10_000) == contents["large"][:10_000]
        lab.kill()
        lab.mount()
        run("exportfs", "-f")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        rest = os.pread(file.fileno(), len(contents["large"]), 0)
        assert rest == contents["large"]
        assert contents_of(seen) == contents
