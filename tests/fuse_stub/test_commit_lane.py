"""Optimizing under users' hands: no interleaving of writes and commits loses a write."""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.format.recipe import RecipeRef
from dedupd_core.native.commit import CommitRequests
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.volume.commit import VolumeCommitter
from dedupd_core.volume.commit_requests import CommitRequest
from tests.support.lab import noise, requests_of, write_out
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

KIB = 1 << 10
CONTENT = noise(300 * KIB + 77, 3)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("stubs")) as lab:
        yield lab


@pytest.fixture
def lab(shared: MountedLab) -> Iterator[MountedLab]:
    """The same mount for all tests, empty at the start of each."""
    yield shared
    for path in shared.view.iterdir():
        path.unlink()


# --- optimizing -------------------------------------------------------------------------------


def test_optimizing_frees_the_blocks_that_users_see(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    write_out(lab.data)
    assert path.stat().st_blocks >= len(CONTENT) // 512
    before = path.stat()
    lab.optimize()
    after = path.stat()
    assert after.st_blocks <= 8
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert path.read_bytes() == CONTENT


def test_a_stub_is_not_taken_for_a_hole(lab: MountedLab) -> None:
    """Programs do not read a file without a block: there can be nothing in it."""
    path = lab.make_stub("f", CONTENT)
    assert (lab.data / "f").stat().st_blocks == 0
    (listed,) = os.scandir(lab.view)
    assert listed.stat().st_blocks > 0
    with open(path, "rb") as file:
        assert os.fstat(file.fileno()).st_blocks > 0
    os.chmod(path, 0o600)
    assert path.stat().st_blocks > 0
    path.write_bytes(b"")
    assert path.stat().st_blocks == 0


def test_unoptimizing_gives_the_blocks_back(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    lab.unoptimize()
    assert lab.stub("f") is None
    assert path.stat().st_blocks >= len(CONTENT) // 512
    assert path.read_bytes() == CONTENT


def test_a_reader_reads_on_through_transitions_of_its_file(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "rb", buffering=0) as file:
        for step in (lab.optimize, lab.unoptimize, lab.optimize):
            step()
            assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
    assert lab.stub("f") is not None


def test_a_file_that_is_open_for_writing_is_optimized_and_written_on(lab: MountedLab) -> None:
    """The kernel does not tell that it is open; only a write tells that it is in use."""
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "r+b", buffering=0) as file:
        lab.optimize()
        assert lab.stub("f") is not None
        os.pwrite(file.fileno(), b"fresh", 10_000)
        assert (
            os.pread(file.fileno(), 20, 9_990)
            == CONTENT[9_990:10_000] + b"fresh" + CONTENT[10_005:10_010]
        )
    lab.unmount()
    lab.mount()
    assert path.read_bytes() == CONTENT[:10_000] + b"fresh" + CONTENT[10_005:]


def test_a_mapping_outlives_the_descriptor_and_writes_to_a_stub(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    mapping[20_000:20_005] = b"early"
    lab.optimize()
    mapping[:5] = b"fresh"
    mapping.close()
    expected = bytearray(CONTENT)
    expected[:5], expected[20_000:20_005] = b"fresh", b"early"
    assert path.read_bytes() == expected
    lab.optimize()
    assert lab.stub("f") is not None
    lab.unmount()
    lab.mount()
    assert path.read_bytes() == expected


def test_a_file_that_is_written_to_all_the_time_is_left_alone(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with open(path, "r+b", buffering=0) as file:
        committing = Committing(lab, ["f"])
        os.pwrite(file.fileno(), b"fresh", 0)
        assert committing.begin() == ["changed"]
    assert lab.stub("f") is None


def test_a_stub_can_be_restored_while_it_is_being_written(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"one", 10_000)
        lab.unoptimize()
        os.pwrite(file.fileno(), b"two", 20_000)
    expected = bytearray(CONTENT)
    expected[10_000:10_003], expected[20_000:20_003] = b"one", b"two"
    assert lab.stub("f") is None
    assert path.read_bytes() == expected


# --- the commit, step by step -----------------------------------------------------------------


@pytest.fixture(params=["alone", "many"])
def many(request: pytest.FixtureRequest) -> bool:
    """Whether files are plain and committed together, or stubs that are committed one by one."""
    return bool(request.param == "many")


class Committing:
    """A commit between its two steps, by a job that talks to the mount as the real one does.

    ``many``: as files that native code takes together. Others are stubs with blocks of their own.
    """

    def __init__(self, lab: MountedLab, names: list[str], many: bool = True) -> None:
        self.lab = lab
        self.many = many
        self.outcomes: list[str] = []
        self.client: ControlClient = lab.client()
        self.requests = list[CommitRequest]()
        for name in names:
            (lab.view / name).write_bytes(CONTENT)
        lab.optimize()
        stubs = {name: lab.stub(name) for name in names}
        if many:
            # Plain again, with the recipe in the store: what a job has before it commits.
            lab.unoptimize()
        for name, stub in stubs.items():
            assert stub is not None
            previous = None
            if not many:
                write_and_take_back(lab.view / name)
                write_out(lab.data)
                previous = os.getxattr(lab.data / name, "trusted.dedupd")
            identity = FileIdentity.of(os.stat(lab.data / name))
            ref = RecipeRef(stub.recipe, stub.digest)
            self.requests.append(CommitRequest(os.fsencode(name), identity, ref, previous))

    @property
    def asked(self) -> CommitRequests:
        return requests_of(self.requests)

    def begin(self) -> list[str]:
        reply = self.client.call_with("commit_many", self.asked.to_bytes())
        assert reply["taken"] == len(self.requests)
        self.outcomes = ["done"] * len(self.requests)
        return self._noted(reply)

    def _noted(self, reply: dict[str, Any]) -> list[str]:
        for at, row in reply["results"]:
            self.outcomes[at] = row["outcome"]
        return list(self.outcomes)

    def finish(self) -> list[str]:
        return self._noted(self.client.call("commit_done"))


def is_taken_back(lab: MountedLab, name: str) -> bool:
    """Whether a file is plain, or a stub with blocks of its own."""
    return lab.stub(name) is None or os.stat(lab.data / name).st_blocks > 0


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
    lab: MountedLab, many: bool, touch: Callable[[Path], Any]
) -> None:
    path = lab.view / "f"
    committing = Committing(lab, ["f"], many)
    assert committing.begin() == ["done"]
    assert path.read_bytes() == CONTENT
    touch(path)
    where = path if path.exists() else path.with_name("g")
    expected = where.read_bytes() if where.exists() else None
    assert committing.finish() == ["changed"]
    if expected is not None:
        assert is_taken_back(lab, where.name)
        assert where.read_bytes() == expected
        lab.unmount()
        lab.mount()
        assert where.read_bytes() == expected


def test_reading_does_not_hold_a_commit_up(lab: MountedLab, many: bool) -> None:
    path = lab.view / "f"
    committing = Committing(lab, ["f"], many)
    with open(path, "rb", buffering=0) as file:
        assert committing.begin() == ["done"]
        assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
        assert committing.finish() == ["done"]
        assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
    assert lab.stub("f") is not None


def test_a_job_that_dies_between_the_steps_leaves_plain_files(lab: MountedLab, many: bool) -> None:
    committing = Committing(lab, ["f"], many)
    assert committing.begin() == ["done"]
    committing.client.close()
    write(lab.view / "f")
    assert is_taken_back(lab, "f")
    assert (lab.view / "f").read_bytes() == b"NEW" + CONTENT[3:]


def test_a_file_that_changed_before_its_commit_is_left_alone(lab: MountedLab, many: bool) -> None:
    committing = Committing(lab, ["f"], many)
    write(lab.view / "f")
    assert committing.begin() == ["changed"]
    assert committing.finish() == ["changed"]
    assert is_taken_back(lab, "f")


def test_a_file_that_is_gone_before_its_commit_is_passed_over(lab: MountedLab, many: bool) -> None:
    committing = Committing(lab, ["f"], many)
    (lab.view / "f").unlink()
    assert committing.begin() == ["gone"]


def test_a_job_that_dies_takes_no_file_with_it_that_a_user_came_to(lab: MountedLab) -> None:
    names = [f"f{n}" for n in range(5)]
    committing = Committing(lab, names, many=True)
    with open(lab.view / "f1", "rb", buffering=0) as reader:
        assert committing.begin() == ["done"] * 5
        with open(lab.view / "f2", "rb", buffering=0) as later:
            committing.client.close()
            for file in (reader, later):
                assert os.pread(file.fileno(), len(CONTENT), 0) == CONTENT
            write(lab.view / "f3")
    deadline = time.monotonic() + 30  # the mount sees a moment later that the job has gone
    while any(map(lab.stub, names)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for name in names:
        expected = b"NEW" + CONTENT[3:] if name == "f3" else CONTENT
        assert lab.stub(name) is None
        assert (lab.view / name).read_bytes() == expected


def test_of_many_files_each_is_what_its_users_made_of_it(lab: MountedLab) -> None:
    names = [f"f{n}" for n in range(8)]
    committing = Committing(lab, names, many=True)
    with open(lab.view / "f0", "r+b"), open(lab.view / "f1", "rb", buffering=0) as reader:
        begun = committing.begin()
        assert begun == ["done"] * 8
        write(lab.view / "f2")
        (lab.view / "f3").unlink()
        (lab.view / "f4").rename(lab.view / "f5")
        with open(lab.view / "f6", "rb") as file:
            assert file.read() == CONTENT
        outcomes = committing.finish()
        assert outcomes[:4] == ["done", "done", "changed", "changed"]
        assert outcomes[4] == "changed" and outcomes[6:] == ["done", "done"]
        assert os.pread(reader.fileno(), len(CONTENT), 0) == CONTENT
    for name in ("f0", "f1", "f6", "f7"):
        assert lab.stub(name) is not None
        assert (lab.view / name).read_bytes() == CONTENT
    assert lab.stub("f2") is None
    assert (lab.view / "f2").read_bytes() == b"NEW" + CONTENT[3:]
    assert (lab.view / "f5").read_bytes() == CONTENT


def test_a_file_that_is_named_twice_is_committed_once(lab: MountedLab) -> None:
    committing = Committing(lab, ["f"], many=True)
    committing.requests *= 2
    assert sorted(committing.begin()) == ["done", "in use"]
    assert sorted(committing.finish()) == ["done", "in use"]
    assert (lab.view / "f").read_bytes() == CONTENT


@pytest.mark.logs_traceback
def test_a_second_batch_takes_the_first_one_back(lab: MountedLab) -> None:
    first = Committing(lab, ["f"], many=True)
    assert first.begin() == ["done"]
    assert first.begin() == ["changed"], "taking it back has changed the time of its inode"
    assert lab.stub("f") is None
    assert first.client.call_with("commit_many", b"no requests")["kind"] == "ValueError"
    assert "error" in first.client.call("commit_done")


def test_the_end_of_a_mount_takes_many_commits_back(lab: MountedLab) -> None:
    committing = Committing(lab, [f"f{n}" for n in range(3)], many=True)
    assert committing.begin() == ["done"] * 3
    lab.unmount()
    lab.mount()
    for n in range(3):
        assert lab.stub(f"f{n}") is None
        assert (lab.view / f"f{n}").read_bytes() == CONTENT


def test_a_committer_goes_through_the_mount(lab: MountedLab) -> None:
    committing = Committing(lab, ["f"])
    with lab.opened() as volume:
        results = VolumeCommitter(volume).commit(committing.asked)
    assert [result.outcome.value for result in results] == ["done"]
    assert (lab.view / "f").read_bytes() == CONTENT
