"""Partial files: stubs that were written to, and have gone quiet again, are optimized again."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import failpoint
from dedupd_core.format.ids import HOLE
from dedupd_core.store.recipe.recipe_reader import Span
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import settle
from dedupd_core.system.files import data_ranges, opened
from dedupd_core.units import KIB, MIB
from jobs.optimize.partial_plan import FreshRange, KeptSpan, plan
from tests.support.lab import Lab, lab_in, noise, stop_at
from tests.support.mounts import MountedLab, mounted_lab

BLOCK = 4096
SIZE = 2 * MIB + 777


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as lab:
        yield lab


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


def edit(lab: Lab, name: str, *edits: tuple[int, bytes], size: int | None = None) -> None:
    """Write to a stub as the mount does, and set its length."""
    with lab.opened() as volume, opened(os.open(lab.data / name, os.O_RDWR)) as fd:
        attribute = volume.space.read(fd, name)
        assert attribute is not None
        load = partial(volume.content, attribute, name)
        attribute = settle(fd, attribute, load, volume.stub_files)
        stub = SparseStub(
            fd,
            attribute,
            volume.stub_files,
            lambda found: volume.content(found, name),
        )
        for offset, data in edits:
            stub.write(offset, data)
        if size is not None:
            stub.truncate(size)


def chunks(lab: Lab, name: str) -> list[int]:
    """The chunk ids of a stub, in order."""
    stub = lab.stub(name)
    assert stub is not None
    with lab.opened() as volume:
        content = volume.content(stub, name)
        return [span.chunk for span in content.recipe.spans(0, content.recipe.length)]


def own_blocks(lab: Lab, name: str) -> list[tuple[int, int]]:
    with opened(os.open(lab.data / name, os.O_RDONLY)) as fd:
        return list(data_ranges(fd, 0, os.fstat(fd).st_size))


@contextmanager
def at_point(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Do something, once, when a fail point is passed in the block; it must get there."""
    done = False

    def hook(name: str) -> None:
        nonlocal done
        if name == point and not done:
            done = True
            action()

    failpoint.hook = hook
    try:
        yield
    finally:
        failpoint.hook = None
    assert done, f"{point} was not passed"


# --- the plan ---------------------------------------------------------------------------------


@st.composite
def stubs(draw: st.DrawFn) -> tuple[list[Span], list[tuple[int, int]], int, int]:
    """Spans of an old recipe, local ranges, covered length, size."""
    lengths = draw(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=12))
    spans, at = [], 0
    for number, (length, is_hole) in enumerate(lengths):
        spans.append(Span(at, length, HOLE if is_hole else number + 1, 0))
        at += length
    covered = draw(st.integers(0, at))
    size = draw(st.integers(covered, covered + 60))
    borders = sorted(draw(st.sets(st.integers(0, size), max_size=10)))
    local = [pair for pair in list(pairwise(borders))[::2] if pair[0] < pair[1]]
    return spans, local, covered, size


@given(stubs())
def test_a_plan_keeps_what_is_untouched_and_reads_the_rest(
    stub: tuple[list[Span], list[tuple[int, int]], int, int],
) -> None:
    spans, local, covered, size = stub
    is_local = {at for start, end in local for at in range(start, end)}
    owner = {at: span for span in spans for at in range(span.offset, span.offset + span.length)}
    parts = list(plan(spans, local, covered, size))
    at = 0
    for part in parts:
        if isinstance(part, FreshRange):
            assert part.start == at < part.end
            for place in range(part.start, part.end):
                span = owner.get(place)
                if span is None or span.chunk == HOLE or place >= covered:
                    assert place in is_local, "a hole was read"
                else:
                    whole = range(span.offset, span.offset + span.length)
                    assert is_local & set(whole) or whole.stop > covered, "an untouched chunk"
            at = part.end
        else:
            range_ = range(at, at + part.length)
            assert not is_local & set(range_)
            if part.chunk != HOLE:
                span = owner[at]
                assert (span.offset, span.length, span.chunk) == (at, part.length, part.chunk)
                assert range_.stop <= covered
            else:
                assert all(place >= covered or owner[place].chunk == HOLE for place in range_)
            at += part.length
    assert at == size
    assert not any(
        isinstance(a, FreshRange) and isinstance(b, FreshRange) for a, b in pairwise(parts)
    )


def test_an_untouched_stub_keeps_every_chunk() -> None:
    spans = [Span(0, 10, 7, 0), Span(10, 5, HOLE, 0), Span(15, 9, 8, 0)]
    assert list(plan(spans, [], 24, 24)) == [KeptSpan(7, 10), KeptSpan(HOLE, 5), KeptSpan(8, 9)]


# --- the job ----------------------------------------------------------------------------------


def test_only_the_chunks_around_an_edit_are_stored_again(lab: Lab) -> None:
    content = bytearray(noise(SIZE))
    lab.put("file", content)
    lab.optimize()
    before = chunks(lab, "file")
    edit(lab, "file", (MIB, b"an edit"))
    content[MIB : MIB + 7] = b"an edit"
    report = lab.optimize()
    assert (report.files_optimized, report.files_spliced) == (1, 1)
    assert report.sums.new_raw_bytes <= 2 * 128 * KIB
    assert lab.read("file") == content
    assert own_blocks(lab, "file") == []
    after = chunks(lab, "file")
    assert len(set(before) - set(after)) <= 2


def test_its_times_stay(lab: Lab) -> None:
    lab.put("file", noise(SIZE))
    lab.optimize()
    edit(lab, "file", (100, b"later"))
    status = os.stat(lab.data / "file")
    lab.optimize()
    after = os.stat(lab.data / "file")
    assert (after.st_mtime_ns, after.st_atime_ns) == (status.st_mtime_ns, status.st_atime_ns)


@pytest.mark.parametrize(
    "size", [1, BLOCK, 300 * KIB + 5, SIZE - 1, SIZE + 1, SIZE + 3 * MIB], ids=str
)
def test_a_stub_of_another_length_is_taken_again(lab: Lab, size: int) -> None:
    content = noise(SIZE)
    lab.put("file", content)
    lab.optimize()
    edit(lab, "file", size=size)
    expected = content[:size].ljust(size, b"\0")
    lab.optimize()
    assert lab.read("file") == expected
    stub = lab.stub("file")
    assert stub is not None and stub.covered == size
    assert own_blocks(lab, "file") == []


def test_a_write_into_a_long_hole_does_not_read_the_hole(lab: Lab) -> None:
    path = lab.put("sparse", b"start")
    os.truncate(path, 1 << 40)
    lab.optimize()
    edit(lab, "sparse", (1 << 39, b"in the middle"))
    report = lab.optimize()
    assert report.files_spliced == 1
    assert report.sums.raw_bytes <= MIB
    with lab.opened() as volume, opened(os.open(lab.data / "sparse", os.O_RDONLY)) as fd:
        stub = volume.space.read(fd, "sparse")
        assert stub is not None
        content = volume.content(stub, "sparse")
        assert content.read(1 << 39, (1 << 39) + 13) == b"in the middle"
        assert content.read((1 << 39) + BLOCK, (1 << 39) + BLOCK + 9) == bytes(9)
        assert content.read(0, 5) == b"start"


def test_an_unchanged_stub_is_not_taken_again(lab: Lab) -> None:
    lab.put("file", noise(SIZE))
    lab.optimize()
    report = lab.optimize()
    assert report.files_optimized == 0
    assert report.files_skipped == {"already optimized": 1}


def test_a_stub_in_use_that_is_mostly_its_own_becomes_plain(lab: Lab) -> None:
    content = bytearray(noise(SIZE))
    lab.put("busy", content)
    lab.put("touched", noise(SIZE, 1))
    lab.optimize()
    new = noise(SIZE - 100 * KIB, 2)
    edit(lab, "busy", (0, new))
    edit(lab, "touched", (0, b"a little"))
    content[: len(new)] = new
    lab.set_policy('min_age = "1d"\nmin_size = 1\n')
    report = lab.optimize()
    assert report.files_made_plain == 1
    assert lab.stub("busy") is None and lab.stub("touched") is not None
    assert lab.read("busy") == content


@settings(max_examples=30)
@given(data=st.data())
def test_edits_in_turns_with_optimize_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with lab_in(tmp_path_factory.mktemp("partial")) as lab:
        content = bytearray(noise(400 * KIB))
        lab.put("file", content)
        lab.optimize()
        for seed in range(data.draw(st.integers(1, 3))):
            for _ in range(data.draw(st.integers(0, 4))):
                offset = data.draw(st.integers(0, 600 * KIB))
                new = noise(data.draw(st.integers(1, 90 * KIB)), seed)
                if data.draw(st.booleans()):
                    new = bytes(len(new))
                edit(lab, "file", (offset, new))
                content[len(content) :] = bytes(max(0, offset - len(content)))
                content[offset : offset + len(new)] = new
            if data.draw(st.booleans()):
                size = data.draw(st.integers(1, len(content) + 50 * KIB))
                edit(lab, "file", size=size)
                content[:] = content[:size].ljust(size, b"\0")
            lab.optimize()
            assert lab.read("file") == content
            assert own_blocks(lab, "file") == []


# --- interrupted ------------------------------------------------------------------------------

POINTS = [
    "commit.begun",
    "commit.durable",
    "commit.finished",
    "stub.attribute-set",
    "stub.punched",
    "stub.times-set",
    "writer.appended",
    "writer.synced",
    "writer.marked",
]


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_splice_loses_nothing(lab: Lab, point: str) -> None:
    content = bytearray(noise(SIZE))
    lab.put("file", content)
    lab.optimize()
    edit(lab, "file", (300 * KIB, b"x" * 5000), (SIZE - 10, b"beyond the end"))
    content[300 * KIB : 300 * KIB + 5000] = b"x" * 5000
    content[SIZE - 10 :] = b"beyond the end"
    mtime_ns = os.stat(lab.data / "file").st_mtime_ns
    with stop_at(point):
        lab.optimize()
    assert lab.read("file") == content
    lab.optimize()
    lab.optimize()
    assert lab.read("file") == content
    assert own_blocks(lab, "file") == []
    assert os.stat(lab.data / "file").st_mtime_ns == mtime_ns


# --- through the mount ------------------------------------------------------------------------


@pytest.mark.root
def test_through_the_mount_a_stub_is_written_to_and_taken_again(mounted: MountedLab) -> None:
    content = bytearray(noise(SIZE))
    path = mounted.make_stub("file", content)
    for turn in range(3):
        with open(path, "r+b") as file:
            file.seek(turn * 500 * KIB)
            file.write(b"turn %d" % turn)
        content[turn * 500 * KIB : turn * 500 * KIB + 6] = b"turn %d" % turn
        report = mounted.optimize()
        assert report.files_spliced == 1
        assert path.read_bytes() == content
        assert own_blocks(mounted, "file") == []
    mounted.unmount()
    mounted.verify_clean()


@pytest.mark.root
def test_a_stub_that_a_user_has_open_is_taken_and_written_on(mounted: MountedLab) -> None:
    """The kernel tells nobody that it is open."""
    content = bytearray(noise(SIZE))
    path = mounted.make_stub("file", content)
    with open(path, "r+b", buffering=0) as file:
        for start in (0, SIZE // 2):
            file.seek(start)
            file.write(b"still at it")
            content[start : start + 11] = b"still at it"
            assert path.read_bytes() == content
            assert mounted.optimize().files_spliced == 1
            assert path.read_bytes() == content
    mounted.unmount()
    mounted.verify_clean()


@pytest.mark.root
def test_a_write_during_the_commit_of_a_stub_puts_its_old_recipe_back(
    mounted: MountedLab,
) -> None:
    content = bytearray(noise(SIZE))
    path = mounted.make_stub("file", content)
    with open(path, "r+b") as file:
        file.write(b"first")
    content[:5] = b"first"
    stub_before = mounted.stub("file")

    def write_now() -> None:
        with open(path, "r+b") as file:
            file.seek(700 * KIB)
            file.write(b"second")

    with at_point("commit.durable", write_now):
        report = mounted.optimize()
    content[700 * KIB : 700 * KIB + 6] = b"second"
    assert report.files_left == {"changed": 1}
    assert mounted.stub("file") == stub_before
    assert path.read_bytes() == content
    assert mounted.optimize().files_spliced == 1
    assert path.read_bytes() == content
    mounted.unmount()
    mounted.verify_clean()
