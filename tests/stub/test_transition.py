"""Plain ↔ stub: whatever interrupts it, the content is the same and the next run finishes it."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import CopiedStub, Damaged
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag, StubAttribute, encode_stub
from dedupd_core.stub.commit_steps import NotCommitted, begin_commit, finish_commit, revert_commit
from dedupd_core.stub.parts import punch_parts
from dedupd_core.stub.transition import (
    AttributeSpace,
    FileIdentity,
    StubFiles,
    settle,
)
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.units import KIB
from tests.support.lab import OLD_NS, Lab, fill, lab_in, new_lab, noise, prose, stop_at
from tests.support.stores import LazyDisk

BLOCK = 4096
SPACE = AttributeSpace(b"user.dedupd", bytes(16), 5)
REF = RecipeRef(1 << 32, bytes(16))
DISK = LazyDisk()
FILES = StubFiles(SPACE, DISK, BLOCK)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A plain file of ten blocks, open."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, noise(10 * BLOCK), 0)
    os.utime(fd, ns=(OLD_NS, OLD_NS))
    yield fd
    os.close(fd)


def identity(fd: int) -> FileIdentity:
    return FileIdentity.of(os.fstat(fd))


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_PATH])
def test_a_file_that_was_replaced_since_it_was_met_is_no_copy(tmp_path: Path, flags: int) -> None:
    values = {}
    for name in ("met", "other", "copy", "plain"):
        with opened(os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)) as fd:
            if name != "plain":
                FILES.write(fd, StubAttribute(1 << 32, bytes(16), 10 * BLOCK, OLD_NS, Flag(0)))
                values[name] = os.getxattr(fd, SPACE.name)
    os.setxattr(tmp_path / "copy", SPACE.name, values["met"])

    def decoded(name: str, value: bytes) -> StubAttribute:
        with opened(os.open(tmp_path / name, flags)) as fd:
            return SPACE.decode_met(value, fd, name)

    assert decoded("met", values["met"]).recipe == 1 << 32
    with pytest.raises(CopiedStub):
        decoded("copy", values["met"])
    for name in ("other", "plain"):
        with pytest.raises(FileNotFoundError):
            decoded(name, values["met"])


# --- the commit, step by step -----------------------------------------------------------------


def test_a_commit_frees_the_blocks_and_changes_nothing_that_users_see(file: int) -> None:
    begun = begin_commit(file, identity(file), REF, FILES)
    assert os.pread(file, 10 * BLOCK, 0) == noise(10 * BLOCK)
    finish_commit(file, begun, FILES)
    status = os.fstat(file)
    assert (status.st_size, status.st_mtime_ns, status.st_blocks) == (10 * BLOCK, OLD_NS, 0)
    assert SPACE.read(file, "") == StubAttribute(REF.recipe, REF.digest, 10 * BLOCK, OLD_NS)


def test_no_block_is_punched_in_part(file: int) -> None:
    """It would stay, and win, with zeros in it."""
    punch_parts(file, [(BLOCK - 1, 3 * BLOCK + 1), (5 * BLOCK, 6 * BLOCK - 1)], FILES)
    expected = bytearray(noise(10 * BLOCK))
    expected[BLOCK : 3 * BLOCK] = bytes(2 * BLOCK)
    assert os.pread(file, 10 * BLOCK, 0) == expected


@pytest.mark.parametrize("change", ["size", "mtime_ns", "ctime_ns", "inode"])
def test_a_file_that_is_not_the_one_that_was_read_is_left_alone(file: int, change: str) -> None:
    read = identity(file)
    with pytest.raises(NotCommitted):
        begin_commit(file, read._replace(**{change: 7}), REF, FILES)
    assert SPACE.read(file, "") is None
    assert identity(file) == read


def test_a_file_that_is_a_stub_already_is_left_alone(file: int) -> None:
    begin_commit(file, identity(file), REF, FILES)
    with pytest.raises(NotCommitted, match="became a stub, or another stub, at the same time"):
        begin_commit(file, identity(file), REF, FILES)


@pytest.mark.parametrize("change", ["content", "length", "mode"])
def test_a_file_touched_during_its_commit_is_plain_again(file: int, change: str) -> None:
    begun = begin_commit(file, identity(file), REF, FILES)
    expected = noise(10 * BLOCK)
    if change == "content":
        os.pwrite(file, b"new", 5)
        expected = expected[:5] + b"new" + expected[8:]
    elif change == "length":
        os.ftruncate(file, 5 * BLOCK)
        expected = expected[: 5 * BLOCK]
    else:
        os.fchmod(file, 0o604)
    with pytest.raises(NotCommitted, match="while it was being committed"):
        finish_commit(file, begun, FILES)
    assert SPACE.read(file, "") is None
    assert os.pread(file, 11 * BLOCK, 0) == expected


def test_a_commit_that_has_begun_can_be_taken_back(file: int) -> None:
    begun = begin_commit(file, identity(file), REF, FILES)
    revert_commit(file, begun, FILES)
    assert SPACE.read(file, "") is None
    assert os.pread(file, 10 * BLOCK, 0) == noise(10 * BLOCK)


# --- the two ways, interrupted ----------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        "stub.attribute-set",
        "commit.begun",
        "commit.durable",
        "stub.punched",
        "stub.times-set",
        "commit.finished",
    ],
)
@pytest.mark.parametrize("passes", [1, 3])
def test_a_commit_stopped_anywhere_loses_nothing_and_is_finished(
    tmp_path: Path, point: str, passes: int
) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        with stop_at(point, passes if point.startswith("stub") else 1):
            lab.optimize()
        assert {name: lab.read(name) for name in contents} == contents
        lab.optimize()
        assert {name: lab.read(name) for name in contents} == contents
        for name in contents:
            stub = lab.stub(name)
            assert stub is not None and not stub.flags.transient
            assert (lab.data / name).stat().st_blocks == 0
            assert (lab.data / name).stat().st_mtime_ns == OLD_NS


@pytest.mark.parametrize("point", ["stub.restoring", "stub.filled", "stub.plain"])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_restore_stopped_anywhere_loses_nothing_and_is_finished(
    tmp_path: Path, point: str, passes: int
) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        with stop_at(point, passes):
            lab.unoptimize()
        assert {name: lab.read(name) for name in contents} == contents
        lab.unoptimize()
        for name, content in contents.items():
            assert lab.stub(name) is None
            assert (lab.data / name).read_bytes() == content
            assert (lab.data / name).stat().st_mtime_ns == OLD_NS


# --- settling ---------------------------------------------------------------------------------


def set_stub(lab: Lab, name: str, stub: StubAttribute) -> None:
    with lab.opened() as volume, opened(os.open(lab.data / name, os.O_RDWR)) as fd:
        volume.stub_files.write(fd, stub)


def committing(lab: Lab, name: str, content: bytes) -> None:
    """Leave a file as a crash between the attribute and the punch leaves it."""
    lab.put(name, content)
    lab.optimize()
    stub = lab.stub(name)
    assert stub is not None
    (lab.data / name).write_bytes(content)
    set_stub(
        lab,
        name,
        StubAttribute(stub.recipe, stub.digest, stub.covered, OLD_NS, stub.flags | Flag.COMMITTING),
    )


def test_a_block_written_after_the_commit_began_stays(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(50 * BLOCK)
        committing(lab, "file", content)
        changed = content[: 7 * BLOCK] + b"written by somebody" + content[7 * BLOCK + 19 :]
        with open(lab.data / "file", "r+b") as file:
            file.seek(7 * BLOCK)
            file.write(b"written by somebody")
        settle_file(lab, "file")
        assert lab.read("file") == changed
        assert 0 < (lab.data / "file").stat().st_blocks * 512 < 50 * BLOCK
        assert (lab.data / "file").stat().st_mtime_ns != OLD_NS


def settle_file(lab: Lab, name: str) -> StubAttribute:
    """What a mount does when it opens a stub, and a job when it comes by."""
    with lab.opened() as volume:
        fd = open_beneath(volume.data_fd, os.fsencode(name), os.O_RDWR)
        try:
            stub = volume.space.read(fd, name)
            assert stub is not None
            load = partial(volume.content, stub, name)
            return settle(fd, stub, load, volume.stub_files)
        finally:
            os.close(fd)


@pytest.mark.parametrize("kind", list(COPIES_OF))
def test_no_block_goes_that_the_store_cannot_give_back(tmp_path: Path, kind: Kind) -> None:
    lab = new_lab(tmp_path / "volume")
    content = prose(50 * BLOCK)
    committing(lab, "file", content)
    lab.lose(kind)
    settle_file(lab, "file")
    assert (lab.data / "file").read_bytes() == content


def test_a_stub_with_all_its_blocks_is_made_plain_without_the_store(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    content = prose(50 * BLOCK + 7)
    committing(lab, "file", content)
    for kind in COPIES_OF:
        lab.lose(kind)
    assert lab.unoptimize().errors == 0
    assert lab.stub("file") is None
    assert (lab.data / "file").read_bytes() == content
    assert (lab.data / "file").stat().st_mtime_ns == OLD_NS


def test_a_stub_cut_by_a_crash_shows_zeros_where_it_grows_again(tmp_path: Path) -> None:
    """The truncation reached the disk and the attribute did not."""
    with lab_in(tmp_path) as lab:
        content = noise(60 * KIB)
        lab.put("file", content)
        lab.optimize()
        os.truncate(lab.data / "file", 10 * KIB + 1)
        settled = settle_file(lab, "file")
        assert settled.covered == 10 * KIB + 1
        os.truncate(lab.data / "file", 60 * KIB)
        assert lab.read("file") == content[: 10 * KIB + 1].ljust(60 * KIB, b"\0")


# --- which bytes are whose --------------------------------------------------------------------

blocks = st.sets(st.integers(0, 49))


@given(blocks, st.integers(1, 50 * BLOCK))
def test_blocks_in_the_file_win_over_the_recipe(
    overwritten_lab: Lab, written: set[int], size: int
) -> None:
    """A stub with some blocks written and its end cut reads, and is restored, as the model."""
    lab = overwritten_lab
    content = bytearray(noise(50 * BLOCK))
    lab.put("file", bytes(content))
    lab.optimize()
    with open(lab.let_write("file"), "r+b") as file:
        for block in written:
            content[block * BLOCK : (block + 1) * BLOCK] = noise(BLOCK, block)
            os.pwrite(file.fileno(), noise(BLOCK, block), block * BLOCK)
        os.ftruncate(file.fileno(), size)
    assert lab.read("file") == content[:size]
    assert lab.unoptimize().messages == []
    assert (lab.data / "file").read_bytes() == content[:size]
    lab.verify_clean()
    (lab.data / "file").unlink()


@pytest.fixture(scope="module")
def overwritten_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("lab")) as lab:
        lab.disk = DISK
        yield lab


ranges = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30)), max_size=12)


@given(ranges, st.integers(0, 220), st.integers(0, 220))
def test_missing_ranges_are_what_no_local_range_holds(
    pairs: list[tuple[int, int]], start: int, end: int
) -> None:
    local = sorted({(begin, begin + length) for begin, length in pairs})
    held = {at for begin, stop in local for at in range(begin, stop)}
    missing = list(missing_ranges(local, start, end))
    assert [at for begin, stop in missing for at in range(begin, stop)] == [
        at for at in range(start, end) if at not in held
    ]


def test_holes_stay_holes(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("sparse", b"")
        with open(path, "r+b") as file:
            file.write(noise(10 * BLOCK))
            file.seek(4000 * BLOCK)
            file.write(noise(10 * BLOCK, 1))
            file.truncate(9000 * BLOCK)
        before, blocks_before = path.read_bytes(), path.stat().st_blocks
        chunk_blocks = 128 * KIB // 512
        lab.optimize()
        assert lab.read("sparse") == before
        lab.unoptimize()
        assert path.read_bytes() == before
        assert path.stat().st_blocks <= blocks_before + 4 * chunk_blocks


def test_a_stub_of_another_volume_is_never_read_as_one(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(10 * BLOCK))
    lab.optimize()
    stub = lab.stub("file")
    assert stub is not None
    with lab.opened() as volume:
        os.setxattr(lab.data / "file", volume.space.name, encode_stub(stub, bytes(16), 0))
    with pytest.raises(Damaged, match="belongs to another volume"):
        lab.read("file")
