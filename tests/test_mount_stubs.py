"""Optimising under users' hands, damage, and deaths of the process that serves the mount."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dedupd.commit import Request, VolumeCommitter, request_to_json
from dedupd.control import ControlClient
from dedupd.errors import Damaged, DedupdError
from dedupd.format.container import Kind
from dedupd.format.recipe import RecipeRef
from dedupd.stub import FileIdentity
from tests.helpers import flip_bit, noise
from tests.mount_helpers import MountedLab, is_serving, mounted_lab

pytestmark = pytest.mark.root

KIB = 1 << 10
CONTENT = noise(300 * KIB + 77, 3)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


# --- optimising -------------------------------------------------------------------------------


def test_optimising_frees_the_blocks_that_users_see(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    os.sync()
    assert path.stat().st_blocks >= len(CONTENT) // 512
    before = path.stat()
    lab.optimise()
    after = path.stat()
    assert after.st_blocks <= 8
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert path.read_bytes() == CONTENT


def test_unoptimising_gives_the_blocks_back(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    lab.unoptimise()
    assert lab.stub("f") is None
    assert path.stat().st_blocks >= len(CONTENT) // 512
    assert path.read_bytes() == CONTENT


def test_who_has_a_file_open_reads_on_through_its_transitions(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "rb", buffering=0) as file:
        for step in (lab.optimise, lab.unoptimise, lab.optimise):
            step()
            assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
    assert lab.stub("f") is not None


def test_a_file_that_is_open_for_writing_is_left_alone(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "r+b"):
        report = lab.optimise()
        assert lab.stub("f") is None
        assert report.files_left == {"in use": 1}
    lab.optimise()
    assert lab.stub("f") is not None


def test_a_mapping_outlives_the_descriptor_and_keeps_a_file_in_use(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    lab.optimise()
    assert lab.stub("f") is None
    mapping[:5] = b"fresh"
    mapping.close()
    lab.optimise()
    assert lab.stub("f") is not None
    assert path.read_bytes() == b"fresh" + CONTENT[5:]


def test_a_stub_can_be_restored_while_it_is_being_written(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"one", 10_000)
        lab.unoptimise()
        os.pwrite(file.fileno(), b"two", 20_000)
    expected = bytearray(CONTENT)
    expected[10_000:10_003], expected[20_000:20_003] = b"one", b"two"
    assert lab.stub("f") is None
    assert path.read_bytes() == expected


# --- the commit, step by step -----------------------------------------------------------------


class Committing:
    """A commit between its two steps, by a job that talks to the mount as the real one does."""

    def __init__(self, lab: MountedLab, names: list[str]) -> None:
        self.lab = lab
        self.client: ControlClient = lab.client()
        self.requests = []
        for name in names:
            path = lab.view / name
            path.write_bytes(CONTENT)
            lab.optimise()
            stub = lab.stub(name)
            assert stub is not None
            # Plain again, with the recipe in the store: what a job has before it commits.
            lab.unoptimise()
            identity = FileIdentity.of(os.stat(lab.data / name))
            ref = RecipeRef(stub.recipe, stub.digest)
            self.requests.append(Request(os.fsencode(name), identity, ref))

    def begin(self) -> list[str]:
        reply = self.client.call(
            "commit_begin", files=[request_to_json(request) for request in self.requests]
        )
        return [row["outcome"] for row in reply["results"]]

    def finish(self) -> list[str]:
        reply = self.client.call(
            "commit_finish", inodes=[request.identity.inode for request in self.requests]
        )
        return [row["outcome"] for row in reply["results"]]


def write(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"NEW")


def write_and_take_back(path: Path) -> None:
    write(path)
    with open(path, "r+b") as file:
        file.write(CONTENT[:3])


def map_and_write(path: Path) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:3] = b"NEW"


@pytest.mark.parametrize(
    "touch",
    [
        write,
        write_and_take_back,
        map_and_write,
        lambda path: os.truncate(path, 100),
        lambda path: os.truncate(path, len(CONTENT)),
        lambda path: path.write_bytes(b"all new"),
        os.utime,
        lambda path: os.chmod(path, 0o600),
        lambda path: os.setxattr(path, "user.x", b"y"),
        lambda path: os.rename(path, path.with_name("g")),
        lambda path: os.link(path, path.with_name("g")),
        lambda path: path.unlink(),
    ],
)
def test_whatever_touches_a_file_takes_its_commit_back(
    lab: MountedLab, touch: Callable[[Path], Any]
) -> None:
    path = lab.view / "f"
    committing = Committing(lab, ["f"])
    assert committing.begin() == ["done"]
    assert path.read_bytes() == CONTENT
    touch(path)
    where = path if path.exists() else path.with_name("g")
    expected = where.read_bytes() if where.exists() else None
    assert committing.finish() == ["changed"]
    if expected is not None:
        assert lab.stub(where.name) is None
        assert where.read_bytes() == expected
        lab.unmount()
        lab.mount()
        assert where.read_bytes() == expected


def test_reading_does_not_hold_a_commit_up(lab: MountedLab) -> None:
    path = lab.view / "f"
    committing = Committing(lab, ["f"])
    with open(path, "rb", buffering=0) as file:
        assert committing.begin() == ["done"]
        assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
        assert committing.finish() == ["done"]
        assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
    assert lab.stub("f") is not None


def test_a_job_that_dies_between_the_steps_leaves_plain_files(lab: MountedLab) -> None:
    committing = Committing(lab, ["f"])
    assert committing.begin() == ["done"]
    committing.client.close()
    write(lab.view / "f")
    assert lab.stub("f") is None
    assert (lab.view / "f").read_bytes() == b"NEW" + CONTENT[3:]


def test_a_file_that_changed_before_its_commit_is_left_alone(lab: MountedLab) -> None:
    committing = Committing(lab, ["f"])
    write(lab.view / "f")
    assert committing.begin() == ["changed"]
    assert committing.finish() == ["changed"]
    assert lab.stub("f") is None


def test_a_file_that_is_gone_before_its_commit_is_passed_over(lab: MountedLab) -> None:
    committing = Committing(lab, ["f"])
    (lab.view / "f").unlink()
    assert committing.begin() == ["gone"]


def test_a_committer_goes_through_the_mount(lab: MountedLab) -> None:
    committing = Committing(lab, ["f"])
    with lab.opened() as volume:
        results = VolumeCommitter(volume).commit(committing.requests)
    assert [result.outcome.value for result in results] == ["done"]
    assert (lab.view / "f").read_bytes() == CONTENT


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


def test_a_write_that_needs_a_damaged_chunk_fails_and_one_that_does_not_succeeds(
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
    assert caught.value.errno == errno.ENOTCONN
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
            lab.unoptimise()
        else:
            lab.optimise()
    assert not is_serving(lab)
    lab.mount()
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    lab.optimise()
    assert path.read_bytes() == CONTENT
    lab.unmount()
    lab.verify_clean()
