"""Damage below a mount, and deaths of the process that serves it: errors, and never wrong bytes."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dedupd_core.errors import Damaged, DedupdError
from dedupd_core.format.container import Kind
from tests.support import upkeep
from tests.support.lab import flip_bit, noise
from tests.support.mounts import DEAD, MountedLab, is_serving, mounted_lab

pytestmark = pytest.mark.root

KIB = 1 << 10
CONTENT = noise(300 * KIB + 77, 3)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


# --- damage -----------------------------------------------------------------------------------


def read_error(path: Path, offset: int = 0) -> int:
    """The error number of opening and reading a file; 0 where there is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            os.pread(file.fileno(), 4096, offset)
    except OSError as error:
        return error.errno or 0
    return 0


def test_a_damaged_chunk_is_an_error_for_its_range_and_nothing_else(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    other = lab.make_stub("other", noise(100 * KIB, 9))
    with open(path, "r+b") as file:
        file.write(b"local")
    lab.unmount()
    flip_bit(lab.container(Kind.CHUNKS), 4096 + 200)
    lab.mount()
    hit = [offset for offset in range(0, len(CONTENT), 4096) if read_error(path, offset)]
    assert 32 // 4 <= len(hit) <= 128 // 4 + 32, "the blocks of one chunk, as the kernel asks"
    for offset in range(0, len(CONTENT), 4096):
        if offset not in hit:
            with open(path, "rb", buffering=0) as file:
                expected = b"local" + CONTENT[5:]
                assert os.pread(file.fileno(), 1, offset) == expected[offset : offset + 1]
    assert other.read_bytes() == noise(100 * KIB, 9)
    assert path.stat().st_size == len(CONTENT)


def test_only_a_write_that_needs_a_damaged_chunk_fails(
    lab: MountedLab,
) -> None:
    path = lab.make_stub("f", noise(20 * KIB, 1))
    lab.unmount()
    flip_bit(lab.container(Kind.CHUNKS), 4096 + 200)
    lab.mount()
    with open(path, "r+b", buffering=0) as file:
        with pytest.raises(OSError) as caught:
            os.pwrite(file.fileno(), b"x", 5000)
        assert caught.value.errno == errno.EIO
        assert os.pwrite(file.fileno(), b"n" * 8192, 8192) == 8192
        assert os.pread(file.fileno(), 8192, 8192) == b"n" * 8192


@pytest.mark.parametrize("byte", [0, 1, 5, 9, 20, 33, 47])
def test_a_damaged_attribute_hits_its_file_only(lab: MountedLab, byte: int) -> None:
    path = lab.make_stub("f", CONTENT)
    other = lab.make_stub("other", noise(100 * KIB, 9))
    lab.unmount()
    below = lab.data / "f"
    value = bytearray(os.getxattr(below, "trusted.dedupd"))
    value[byte] ^= 0x10
    os.setxattr(below, "trusted.dedupd", value)
    lab.mount()
    assert path.stat().st_size == len(CONTENT)
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    assert other.read_bytes() == noise(100 * KIB, 9)
    path.write_bytes(b"written anew")
    assert path.read_bytes() == b"written anew"
    assert lab.stub("f") is None


def test_an_attribute_of_another_volume_is_refused(lab: MountedLab, tmp_path: Path) -> None:
    path = lab.make_stub("f", CONTENT)
    value = bytearray(os.getxattr(lab.data / "f", "trusted.dedupd"))
    (tmp_path / "second").mkdir()
    with mounted_lab(tmp_path / "second") as second:
        foreign = second.make_stub("g", noise(100 * KIB))
        lab.unmount()
        os.setxattr(
            lab.data / "f", "trusted.dedupd", os.getxattr(second.data / "g", "trusted.dedupd")
        )
        lab.mount()
        assert read_error(path) == errno.EIO
        assert foreign.read_bytes() == noise(100 * KIB)
    assert value


def test_a_missing_container_is_an_error_and_no_zeros(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    lab.unmount()
    lab.container(Kind.CHUNKS).unlink()
    lab.mount()
    assert read_error(path) == errno.EIO
    with pytest.raises(Damaged):
        lab.read("f")


# --- the process that serves the mount dies ---------------------------------------------------


def test_a_killed_mount_fails_closed_and_mounting_again_recovers(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    lab.kill()
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno in DEAD
    assert not is_serving(lab)
    lab.mount()
    assert path.read_bytes() == CONTENT


def test_what_was_written_outlives_a_killed_mount(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    model = bytearray(CONTENT)
    with open(path, "r+b", buffering=0) as file:
        for offset in (5, 70_001, 150_000, len(CONTENT) - 3):
            os.pwrite(file.fileno(), b"fresh", offset)
            model[offset : offset + 5] = b"fresh"
        lab.kill()
    lab.mount()
    assert path.read_bytes() == model


@pytest.mark.parametrize(
    "point", ["stub.attribute-set", "stub.punched", "stub.times-set", "stub.restoring"]
)
def test_a_death_within_a_transition_is_settled(
    lab: MountedLab, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lab.view / "f"
    if point == "stub.restoring":
        path = lab.make_stub("f", CONTENT)
    else:
        path.write_bytes(CONTENT)
    before = path.stat()
    lab.unmount()
    monkeypatch.setenv("DEDUPD_FAIL_POINT", point)
    lab.mount()
    monkeypatch.delenv("DEDUPD_FAIL_POINT")
    with suppress(DedupdError):
        if point == "stub.restoring":
            lab.unoptimize()
        else:
            lab.optimize()
    lab.wait_until_dead()
    assert not is_serving(lab)
    lab.mount()
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    lab.optimize()
    assert path.read_bytes() == CONTENT
    lab.unmount()
    lab.verify_clean()


# --- second copies ----------------------------------------------------------------------------


def test_a_mount_reads_the_second_copy_and_a_scrub_beside_it_repairs(lab: MountedLab) -> None:
    """Without a remount: the reader looks again at tables that were changed or written anew."""
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
    path = lab.make_stub("f", CONTENT)
    lab.make_stub("same", CONTENT)
    lab.unmount()
    upkeep.scrub(lab.root)
    flip_bit(lab.container(Kind.CHUNKS), 4096 + 200)
    lab.container(Kind.RECIPES).unlink()
    lab.mount()
    assert path.read_bytes() == CONTENT
    report = upkeep.scrub(lab.root)
    assert report.outcome == "repaired" and report.repaired["from the second copy"] >= 2
    assert path.read_bytes() == CONTENT
    lab.unmount()
    lab.verify_clean()
