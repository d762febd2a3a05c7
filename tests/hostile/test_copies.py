"""Copies of volumes, by every program that is usual: each file of one reads right, or not at all.

The programs work on ``.dedupd``, while the volume is not mounted. Each is tried on each file
system. What becomes of it is told to users in docs/guide/backup.md.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dedupd_core.errors import EXIT_FINDINGS, CopiedVolume, Damaged, DedupdError
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import local_ranges
from dedupd_core.system.files import opened, read_at
from dedupd_core.units import KIB
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts import mount_process
from jobs.adopt.adopt_job import Adopt, AdoptReport
from jobs.adopt.proof import VolumeCopy
from jobs.backup.restore import Restore
from jobs.backup.source import BackupSource
from jobs.frame.run import JobRun
from tests.conftest import MakeFileSystem
from tests.support import crash
from tests.support.lab import Lab, fill, new_lab, noise, run_cli, write_out

pytestmark = pytest.mark.root

Copy = Callable[[Path, Path], None]

PLAIN, WRITTEN, OPEN = "plain", "written", "open"
"""Files beside those of ``fill``: never a stub; a stub with a user's zeros in it, sealed; the same,
not sealed yet."""

STUBS = frozenset(("one-chunk", "base", "copy", "edited", "prose", "zeros"))
"""The clean ones."""


def volume_to_copy(root: Path) -> tuple[Lab, dict[str, bytes]]:
    lab = new_lab(root)
    contents = fill(lab)
    for name in (WRITTEN, OPEN):
        contents[name] = noise(400 * KIB + 77, len(name))
        lab.put(name, contents[name])
    lab.optimize()
    for name in (WRITTEN, OPEN):
        overwrite(lab, name, bytes(256 * KIB), 64 * KIB, seals=name == WRITTEN)
        content = contents[name]
        contents[name] = content[: 64 * KIB] + bytes(256 * KIB) + content[320 * KIB :]
    contents[PLAIN] = b"never in the store"
    lab.put(PLAIN, contents[PLAIN])
    return lab, contents


def overwrite(lab: Lab, name: str, data: bytes, offset: int, *, seals: bool) -> None:
    """Write to a stub as a mount does, and seal it."""
    with lab.opened() as volume, opened(os.open(lab.data / name, os.O_RDWR)) as fd:
        stub = volume.space.read(fd, name)
        assert stub is not None

        sparse = SparseStub(fd, stub, volume.stub_files, lambda one: volume.content(one, name))
        assert sparse.write(offset, data) == len(data)
        os.fsync(fd)
        if seals:
            assert sparse.seal()


def readable(volume: Volume, contents: dict[str, bytes]) -> set[str]:
    """The files that can be read; every byte of these must be right."""
    found = set()
    for name, content in contents.items():
        try:
            data = read(volume, name)
        except (DedupdError, FileNotFoundError):
            continue
        assert data == content, f"{name} has wrong bytes"
        found.add(name)
    return found


def read(volume: Volume, name: str) -> bytes:
    """A file's content, as a mount serves it."""
    with opened(os.open(os.path.join(volume.base, "data", name), os.O_RDONLY)) as fd:
        size = os.fstat(fd).st_size
        stub = checked_stub(fd, volume.stub_files, name)
        if stub is None:
            return read_at(fd, size, 0)
        content = volume.content(stub, name)
        return content.read_file(fd, local_ranges(fd, size), stub.covered, 0, size)


def adopt(root: Path, *, trust_holes: bool = False) -> AdoptReport:
    with VolumeCopy.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        return Adopt(volume, JobRun("adopt"), trust_holes=trust_holes).run()


def run(
    *command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, (command, done.stderr)


def through(*options: str) -> Copy:
    """rsync, or cp, with options."""

    def copy(source: Path, target: Path) -> None:
        if options[0] == "rsync":
            run(*options, f"{source}/", f"{target}/")
        else:
            run(*options, source, target)

    return copy


def tar(*options: str) -> Copy:
    def copy(source: Path, target: Path) -> None:
        archive = target.with_suffix(".tar")
        target.mkdir()
        run("tar", "-C", source, *options, "-cf", archive, ".")
        run("tar", "-C", target, *options, "-xpf", archive)
        archive.unlink()

    return copy


def borg(*options: str) -> Copy:
    def copy(source: Path, target: Path) -> None:
        repository, keys = target.with_suffix(".borg"), target.with_suffix(".keys")
        environment = {
            "BORG_BASE_DIR": str(keys),
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }
        target.mkdir()
        run("borg", "init", "-e", "none", repository, environment=environment)
        run("borg", "create", f"{repository}::one", ".", cwd=source, environment=environment)
        run("borg", "extract", *options, f"{repository}::one", cwd=target, environment=environment)
        shutil.rmtree(repository)
        shutil.rmtree(keys)

    return copy


def restic(*options: str) -> Copy:
    def copy(source: Path, target: Path) -> None:
        repository = target.with_suffix(".restic")
        environment = {
            "RESTIC_PASSWORD": "x",
            "RESTIC_REPOSITORY": str(repository),
            "RESTIC_CACHE_DIR": str(target.with_suffix(".cache")),
        }
        run("restic", "init", environment=environment)
        run("restic", "backup", ".", cwd=source, environment=environment)
        run("restic", "restore", "latest", *options, "--target", target, environment=environment)
        shutil.rmtree(repository)

    return copy


XATTRS = "--xattrs", "--xattrs-include=*"
TOOLS: dict[str, tuple[Copy, set[str], set[str]]] = {
    # what is read after `adopt`, and what besides after `adopt --trust-holes`
    "cp -a --reflink=never": (through("cp", "-a", "--reflink=never"), set(STUBS), set()),
    "cp -a --reflink=auto": (
        through("cp", "-a", "--reflink=auto"),
        set(STUBS),
        {WRITTEN, OPEN},
    ),
    "cp -a --sparse=always --reflink=never": (
        through("cp", "-a", "--sparse=always", "--reflink=never"),
        set(STUBS),
        set(),
    ),
    "rsync -a": (through("rsync", "-a"), set(), set()),
    "rsync -aX": (through("rsync", "-aX"), set(), set()),
    "rsync -aXS": (through("rsync", "-aXS"), set(STUBS), set()),
    "rsync -aHAX --sparse": (through("rsync", "-aHAX", "--sparse"), set(STUBS), set()),
    "tar": (tar(), set(), set()),
    "tar --xattrs": (tar(*XATTRS), set(), set()),
    "tar --sparse --xattrs": (tar("--sparse", *XATTRS), set(STUBS), {WRITTEN, OPEN}),
    "borg": (borg(), set(), set()),
    "borg --sparse": (borg("--sparse"), set(STUBS), set()),
    "restic": (restic(), set(), set()),
    "restic --sparse": (restic("--sparse"), set(STUBS), set()),
}


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_copy_reads_right_or_not_at_all(loop_fs: MakeFileSystem, kind: str) -> None:
    point = loop_fs(kind, in_memory=True)
    lab, contents = volume_to_copy(point / "volume")
    write_out(point)
    for name, (copy, faithful, with_trust) in TOOLS.items():
        if not is_known(name) or (kind == "ext4" and "--reflink=auto" in name):
            continue
        target = point / "copy"
        copy(lab.root, target)
        check_copy(target, contents, name, faithful, with_trust)
        shutil.rmtree(target)
    assert lab.verify_clean().stubs == len(STUBS) + 2
    with lab.opened() as volume:
        assert readable(volume, contents) == set(contents)


def is_known(tool: str) -> bool:
    """Whether the program is installed, and knows what it is to do."""
    program, *options = tool.split()
    if shutil.which(program) is None:
        return False
    asked = (program, "restore", "--help") if program == "restic" else (program, "--help")
    text = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return program != "restic" or all(option in text for option in options)


def check_copy(
    root: Path,
    contents: dict[str, bytes],
    tool: str,
    faithful: set[str],
    with_trust: set[str],
) -> None:
    """Read a copy, adopt it, and read it again, by a first and a second look."""
    with pytest.raises(CopiedVolume, match=r"`dedupd adopt .*docs/guide/backup.md"):
        Volume.open(str(root))
    stubs = {name: content for name, content in contents.items() if name != PLAIN}
    if any("trusted.dedupd" in os.listxattr(root / ".dedupd/data" / name) for name in stubs):
        with VolumeCopy.open(str(root)) as copy:
            assert readable(copy, stubs) == set(), tool
    check_restores(root, contents, tool, faithful, with_trust)
    if not faithful:
        with pytest.raises(Damaged, match=r"docs/guide/backup.md"):
            adopt(root)
        with pytest.raises(Damaged):
            adopt(root, trust_holes=True)
        with pytest.raises(CopiedVolume):
            Volume.open(str(root))
        return
    report = adopt(root)
    assert (report.adopted, report.untrusted + report.spoilt) == (len(faithful), 2), tool
    lab = Lab(root)
    with lab.opened() as volume:
        assert readable(volume, contents) == faithful | {PLAIN}, tool
    assert lab.verify().by_invariant == {"stub-place": 2}, tool
    assert lab.collect().errors == 0
    if with_trust:
        report = adopt(root, trust_holes=True)
        assert (report.own, report.adopted) == (len(faithful), len(with_trust)), tool
        with lab.opened() as volume:
            assert readable(volume, contents) == set(contents), tool
        lab.verify_clean()
    else:
        # Where the holes of one stub are wrong, nobody's word counts for the others.
        report = adopt(root, trust_holes=True)
        assert (report.spoilt, report.untrusted, report.adopted) == (1, 1, 0), tool
        with lab.opened() as volume:
            assert readable(volume, contents) == faithful | {PLAIN}, tool


def check_restores(
    root: Path,
    contents: dict[str, bytes],
    tool: str,
    faithful: set[str],
    with_trust: set[str],
) -> None:
    """Take files out of a copy that was not adopted: the same ones, and no other bytes."""
    for trust_holes in (False, True):
        with BackupSource.found(str(root)) as copy, TemporaryDirectory(dir=root.parent) as out:
            job = Restore(copy, JobRun("restore"), out, trust_holes=trust_holes)
            found: set[str] = set()
            try:
                report = job.run([b""])
            except Damaged:
                pass
            else:
                found = set(os.listdir(out))
                assert report.damaged == len(contents) - len(found), tool
            for name in found:
                assert Path(out, name).read_bytes() == contents[name], (tool, name)
        if trust_holes and not with_trust:
            assert found <= faithful | {PLAIN}, tool
        else:
            more = with_trust if trust_holes else set()
            assert found - {PLAIN} == faithful | more, tool


# --- copies by the file system itself ---------------------------------------------------------


def received(stream: bytes, into: Path) -> None:
    done = subprocess.run(
        ["btrfs", "receive", into], input=stream, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def snapshot(source: Path, target: Path, *options: str) -> Path:
    run("btrfs", "subvolume", "snapshot", *options, source, target)
    return target


@pytest.mark.parametrize("options", [(), ("--proto", "2")])
def test_what_btrfs_send_makes_of_a_volume(
    loop_fs: MakeFileSystem, options: tuple[str, ...]
) -> None:
    """A full copy is faithful; one that adds to an earlier one has zeros where files became stubs
    in between."""
    shown = subprocess.run(["btrfs", "send", "--help"], capture_output=True, check=False).stdout
    if options and options[0].encode() not in shown:
        pytest.skip(f"btrfs send does not know {options}")
    point = loop_fs("btrfs", in_memory=True)
    run("btrfs", "subvolume", "create", point / "live")
    lab = new_lab(point / "live/volume")
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nshared_extents = "take"\n')
    contents = fill(lab)
    before = snapshot(point / "live", point / "before", "-r")
    lab.optimize()
    overwrite(lab, "prose", bytes(64 * KIB), 16 * KIB, seals=True)
    prose = contents["prose"]
    contents["prose"] = prose[: 16 * KIB] + bytes(64 * KIB) + prose[80 * KIB :]
    lab.put(PLAIN, b"plain")
    contents[PLAIN] = b"plain"
    after = snapshot(point / "live", point / "after", "-r")

    def send(*more: str | Path) -> bytes:
        command = ["btrfs", "send", "--quiet", *options, *more]
        return subprocess.run(command, capture_output=True, check=True).stdout

    full, added = point / "full", point / "added"
    full.mkdir()
    added.mkdir()
    received(send(after), full)
    received(send(before), added)
    received(send("-p", before, after), added)
    for root in (full / "after", added / "after"):
        run("btrfs", "property", "set", "-f", root, "ro", "false")
        with pytest.raises(CopiedVolume):
            Volume.open(str(root / "volume"))
    report = adopt(full / "after/volume", trust_holes=True)
    assert report.adopted == len(STUBS)
    with Volume.open(str(full / "after/volume")) as volume:
        assert readable(volume, contents) == set(contents)
    Lab(full / "after/volume").verify_clean()
    if not options:
        with pytest.raises(Damaged):
            adopt(added / "after/volume", trust_holes=True)
        with VolumeCopy.open(str(added / "after/volume")) as copy:
            assert readable(copy, contents) == {PLAIN}
        return
    # The newer protocol makes holes again, but of the last block of a file that ends within one.
    report = adopt(added / "after/volume", trust_holes=True)
    assert report.adopted > 0 and report.spoilt > 0
    with Volume.open(str(added / "after/volume")) as volume:
        assert len(readable(volume, contents)) == report.adopted + 1


def test_what_xfsdump_makes_of_a_volume(loop_fs: MakeFileSystem) -> None:
    if shutil.which("xfsdump") is None:
        pytest.skip("xfsdump is not installed")
    point = loop_fs("xfs", in_memory=True)
    lab, contents = volume_to_copy(point / "volume")
    write_out(point)
    dump, target = point.parent / "dump", point / "restored"
    target.mkdir()
    run("xfsdump", "-J", "-l0", "-Lone", "-Mone", "-f", dump, "-s", "volume", point)
    run("xfsrestore", "-J", "-f", dump, target)
    dump.unlink()
    root = target / "volume"
    check_copy(root, contents, "xfsdump", set(STUBS), {WRITTEN, OPEN})
    lab.verify_clean()


@contextmanager
def mounted_image(image: Path, kind: str, directory: Path) -> Iterator[Path]:
    directory.mkdir(exist_ok=True)
    options = "loop,nouuid" if kind == "xfs" else "loop"
    run("mount", "-t", kind, "-o", options, image, directory)
    try:
        yield directory
    finally:
        run("umount", directory)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_copy_of_the_device_is_the_volume(loop_fs: MakeFileSystem, kind: str) -> None:
    point = loop_fs(kind, "300M", in_memory=True)
    lab, contents = volume_to_copy(point / "volume")
    write_out(point)
    image = point.parent / "image"
    copy = image.with_name("image-of-copy")
    run("dd", f"if={image}", f"of={copy}", "bs=1M", "conv=sparse")
    with mounted_image(copy, kind, image.with_name("copy")) as other:
        with Volume.open(str(other / "volume")) as volume:
            assert readable(volume, contents) == set(contents)
        assert adopt(other / "volume").outcome.startswith("nothing to adopt")
        Lab(other / "volume").verify_clean()
    copy.unlink()
    lab.verify_clean()


NEW_UUID = {
    "ext4": ("tune2fs", "-f", "-U", "random"),
    "xfs": ("xfs_admin", "-U", "generate"),
    "btrfs": ("btrfstune", "-f", "-u"),
}


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_file_system_with_a_new_uuid_is_adopted(loop_fs: MakeFileSystem, kind: str) -> None:
    """Nobody has copied anything: on ext4 and XFS the inodes prove it, also of written stubs."""
    if shutil.which(NEW_UUID[kind][0]) is None:
        pytest.skip(f"{NEW_UUID[kind][0]} is not installed")
    point = loop_fs(kind, "300M", in_memory=True)
    _, contents = volume_to_copy(point / "volume")
    write_out(point)
    image = point.parent / "image"
    copy = image.with_name("image-of-copy")
    run("umount", point)
    run("cp", "--sparse=always", image, copy)
    if kind == "ext4":  # else tune2fs refuses, unless mkfs and mount were in the same second
        run("e2fsck", "-fp", copy)
    run(*NEW_UUID[kind], copy)
    with mounted_image(copy, kind, image.with_name("copy")) as other:
        root = other / "volume"
        with pytest.raises(CopiedVolume, match="new uuid"):
            Volume.open(str(root))
        report = adopt(root)
        proved = set(contents) if kind != "btrfs" else STUBS | {PLAIN}
        with Volume.open(str(root)) as volume:
            assert readable(volume, contents) == proved
        if report.untrusted:
            adopt(root, trust_holes=True)
        with Volume.open(str(root)) as volume:
            assert readable(volume, contents) == set(contents)
        Lab(root).verify_clean()
    copy.unlink()


def test_a_snapshot_of_a_subvolume_is_the_volume(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("btrfs", in_memory=True)
    run("btrfs", "subvolume", "create", point / "live")
    lab, contents = volume_to_copy(point / "live/volume")
    copy = snapshot(point / "live", point / "snapshot") / "volume"
    for name in STUBS:
        (lab.data / name).unlink()
    with Volume.open(str(copy)) as volume:
        assert readable(volume, contents) == set(contents)
    Lab(copy).verify_clean()


# --- one stub, and the commands ---------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = new_lab(tmp_path / "volume")
    for name in ("one", "other"):
        lab.put(name, noise(300 * KIB, len(name)))
    lab.optimize()
    return lab


def copied(lab: Lab) -> None:
    run("cp", "-a", lab.data / "one", lab.data / "copy")


def dug(lab: Lab) -> None:
    overwrite(lab, "one", bytes(100 * KIB), 8 * KIB, seals=True)
    run("fallocate", "--dig-holes", lab.data / "one")


def filled(lab: Lab) -> None:
    run("dd", "if=/dev/zero", f"of={lab.data / 'one'}", "bs=4k", "count=3", "conv=notrunc")


@pytest.mark.parametrize(
    ("spoil", "name", "invariant"),
    [
        (copied, "copy", "stub-place"),
        (dug, "one", "stub-blocks"),
        (filled, "one", "stub-blocks"),
    ],
)
def test_a_stub_that_was_changed_below_the_mount_is_an_error(
    lab: Lab, tmp_path: Path, spoil: Callable[[Lab], None], name: str, invariant: str
) -> None:
    view = tmp_path / "view"
    view.mkdir()
    spoil(lab)
    before = (lab.data / name).stat()
    mount_process.mount_in_background(str(lab.root), str(view))
    try:
        with pytest.raises(OSError, match="Input/output error"):
            (view / name).read_bytes()
        with pytest.raises(OSError, match="Input/output error"), open(view / name, "ab") as file:
            file.write(b"more")
        assert (view / "other").read_bytes() == noise(300 * KIB, 5)
    finally:
        mount_process.unmount(str(view))
    done = run_cli("run", "verify", lab.root)
    assert (done.returncode, f"{invariant}: {name}: " in done.stdout) == (4, True)
    # No other job touches it, or lets go of the chunks that it names.
    lab.optimize()
    assert lab.collect().orphaned_chunks == 0
    assert run_cli("run", "unoptimize", lab.root).returncode == 1
    after = (lab.data / name).stat()
    assert (after.st_blocks, after.st_mtime_ns) == (before.st_blocks, before.st_mtime_ns)


def test_what_users_wrote_is_counted_once_the_volume_is_unmounted(lab: Lab, tmp_path: Path) -> None:
    view = tmp_path / "view"
    view.mkdir()
    mount_process.mount_in_background(str(lab.root), str(view))
    with open(view / "one", "r+b") as file:
        file.write(bytes(64 * KIB))
    mount_process.unmount(str(view))
    stub = lab.stub("one")
    assert stub is not None
    assert (stub.local_bytes, stub.is_clean) == (64 * KIB, False)
    lab.verify_clean()
    run("fallocate", "--dig-holes", lab.data / "one")
    assert lab.broken() == {"stub-blocks"}


def test_a_copied_stub_on_the_volume_itself_can_be_adopted(lab: Lab) -> None:
    copied(lab)
    assert "stub-place" in lab.broken()
    assert run_cli("adopt", lab.root).returncode == 0
    assert lab.read("copy") == lab.read("one") == noise(300 * KIB, 3)
    lab.verify_clean()
    done = run_cli("adopt", lab.root)
    assert done.returncode == 0 and "nothing to adopt" in done.stdout


def test_every_command_refuses_a_copy_and_names_the_remedy(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    run("cp", "-a", lab.root, root)
    for command in (
        *(("run", job) for job in ("optimize", "gc", "compact", "scrub", "verify", "unoptimize")),
        ("mount",),
        ("status",),
        ("disable", "--unoptimize"),
    ):
        done = run_cli(*command, root)
        assert done.returncode == 2, command
        assert f"dedupd adopt {root}" in done.stderr and "docs/guide/backup.md" in done.stderr
    assert run_cli("adopt", root, "--json").returncode == 0
    assert run_cli("run", "verify", root).returncode == 0


def test_an_adoption_that_is_killed_goes_on(lab: Lab, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    run("cp", "-a", lab.root, root)
    for point in ("adopt.bound", "adopt.synced"):
        killed = crash.run_cli("adopt", root, fail_at=point)
        assert crash.was_killed(killed), killed.stderr
        with pytest.raises(CopiedVolume):
            Volume.open(str(root))
    killed = crash.run_cli("adopt", root, fail_at="adopt.recorded")
    assert crash.was_killed(killed), killed.stderr
    Lab(root).verify_clean()
    report = adopt(root)
    assert (report.own, report.adopted) == (2, 0)


def test_garbage_is_not_collected_from_a_tree_that_has_lost_its_stubs(lab: Lab) -> None:
    for name in ("one", "other"):
        lab.put(name, bytes(300 * KIB))
    done = run_cli("run", "gc", lab.root)
    assert done.returncode == EXIT_FINDINGS
    assert " has blocks of zeros" in done.stderr
    assert "--all-garbage" in done.stderr and "docs/guide/backup.md" in done.stderr
    assert lab.collect().orphaned_chunks == 0
    assert run_cli("run", "gc", "--all-garbage", lab.root).returncode == 0
    assert lab.collect(full=True).orphans_before > 0
    for name in ("one", "other"):
        (lab.data / name).unlink()
    assert lab.collect().errors == 0


def test_through_the_mount_every_program_copies_plain_files(lab: Lab, tmp_path: Path) -> None:
    overwrite(lab, "one", bytes(100 * KIB), 8 * KIB, seals=True)
    contents = {name: lab.read(name) for name in ("one", "other")}
    view = tmp_path / "view"
    view.mkdir()
    mount_process.mount_in_background(str(lab.root), str(view))
    try:
        for name, (copy, _, _) in TOOLS.items():
            if not is_known(name) or "--reflink=auto" in name:
                continue
            target = tmp_path / "copied"
            copy(view, target)
            found = {path.name: path.read_bytes() for path in target.iterdir()}
            assert found == contents, name
            assert "trusted.dedupd" not in os.listxattr(target / "one")
            shutil.rmtree(target)
    finally:
        mount_process.unmount(str(view))
