"""Handles that an NFS client makes by itself: they reach nothing, inside the volume or outside."""

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from fuse_stub.files.file_handles import SECRET_BYTES, SECRET_FILE, require_below
from tests.conftest import MakeFileSystem
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def lab(request: pytest.FixtureRequest, loop_fs: MakeFileSystem) -> Iterator[MountedLab]:
    with mounted_lab(loop_fs(request.param)) as lab:
        yield lab


def handle_of(path: Path) -> bytes:
    with opened(os.open(path, os.O_PATH)) as fd:
        return native.system.name_to_handle(fd)


def forged(lab: MountedLab, ino: int, generation: int) -> bytes:
    """A handle as the kernel gives them out for a mount: number and generation."""
    (lab.view / "known").touch()
    kind = handle_of(lab.view / "known")[:4]
    return kind + struct.pack("<III", ino >> 32, ino & 0xFFFF_FFFF, generation)


def error_of(lab: MountedLab, handle: bytes) -> int:
    with opened(os.open(lab.view, os.O_RDONLY)) as view:
        try:
            os.close(native.system.open_by_handle(view, handle, os.O_RDONLY))
        except OSError as error:
            return error.errno or 0
    return 0


def test_the_form_of_forged_handles_is_the_kernels(lab: MountedLab) -> None:
    (lab.view / "f").touch()
    real = handle_of(lab.view / "f")
    (generation,) = struct.unpack("<I", real[-4:])
    assert forged(lab, (lab.view / "f").stat().st_ino, generation) == real
    assert error_of(lab, real) == 0


@pytest.mark.parametrize("mounted_again", [False, True])
def test_the_generations_below_open_nothing(lab: MountedLab, mounted_again: bool) -> None:
    """Not even those of the own files: a client that can count, as on btrfs, is no wiser."""
    private = lab.root.parent / "private"
    private.mkdir(mode=0o700)
    (private / "secret").write_text("outside")
    (lab.data / "inside").write_text("inside")
    (lab.data / "directory").mkdir()
    targets = [
        *(private / "secret", private, lab.data / "inside", lab.data / "directory"),
        *(lab.root / ".dedupd/policy.toml", lab.root / ".dedupd/volume.json", lab.root / ".dedupd"),
    ]
    if mounted_again:
        lab.unmount()
        lab.mount()
    for path in targets:
        (generation,) = struct.unpack("<I", handle_of(path)[-4:])
        for guess in {generation, 0, 1, generation + 1}:
            handle = forged(lab, path.stat().st_ino, guess)
            assert error_of(lab, handle) == errno.ESTALE, path


def test_what_is_known_to_be_outside_is_refused_whatever_its_generation(lab: MountedLab) -> None:
    (lab.root.parent / "outside").touch()
    (lab.data / "inside").touch()
    with ExitStack() as stack:

        def opened_path(path: Path) -> int:
            return stack.enter_context(opened(os.open(path, os.O_PATH)))

        data = opened_path(lab.data)
        require_below(data, opened_path(lab.data / "inside"))
        require_below(data, data)
        for path in (lab.root.parent / "outside", lab.root / ".dedupd", lab.root, Path("/")):
            with pytest.raises(OSError) as caught:
                require_below(data, opened_path(path))
            assert caught.value.errno == errno.ESTALE


def test_the_secret_is_roots_and_stays(lab: MountedLab) -> None:
    path = lab.root / ".dedupd" / os.fsdecode(SECRET_FILE)
    secret = path.read_bytes()
    assert len(secret) == SECRET_BYTES and path.stat().st_mode & 0o777 == 0o600
    (lab.view / "f").write_text("x")
    handle = handle_of(lab.view / "f")
    lab.unmount()
    lab.mount()
    assert path.read_bytes() == secret and error_of(lab, handle) == 0
    lab.unmount()
    path.unlink()
    lab.mount()
    assert path.read_bytes() != secret and error_of(lab, handle) == errno.ESTALE
    assert (lab.view / "f").read_text() == "x", "no data depends on it"
