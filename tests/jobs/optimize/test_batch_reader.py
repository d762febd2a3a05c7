"""Reading ahead into buffers: every byte of every file, in order, in bounded memory."""

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.format.volume_parameters import new_parameters
from dedupd_core.system.file_reader import BATCH_BYTES
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.units import KIB, MIB
from jobs.optimize import batch_reader
from jobs.optimize.batch_reader import BatchReader, ReaderLimits
from jobs.optimize.buffers import Batch, FilesBatch, FileTask, Segment
from jobs.tree.candidates import Candidate
from jobs.tree.walk import walk
from tests.support.lab import (
    OLD_NS,
    SETTLE_NS,
    Lab,
    descriptors,
    descriptors_to_begin_with,
    lab_in,
    new_lab,
    noise,
)
from tests.support.stores import LazyDisk

HEADROOM = 128 * KIB
BUFFERS = 3


@contextmanager
def reading(lab: Lab, candidates: list[Candidate]) -> Iterator[tuple[BatchReader, BufferPool]]:
    with lab.opened() as volume:
        pool = BufferPool(mmap.mmap(-1, HEADROOM + BATCH_BYTES) for _ in range(BUFFERS))
        found = [FileTask.whole(candidate, True) for candidate in candidates]
        reader = BatchReader(volume, found, pool, ReaderLimits(HEADROOM, threads=2))
        try:
            yield reader, pool
        finally:
            reader.close()


def candidates_of(lab: Lab) -> list[Candidate]:
    with lab.opened() as volume:
        return [
            Candidate(file.path, file.identity, file.attribute, file.identity.size)
            for file in walk(volume)
        ]


def wait_until_settled(last: Path) -> None:
    """Until no write to a file could leave its times as they are."""
    while time.time_ns() - last.stat().st_ctime_ns < SETTLE_NS:
        time.sleep(0.005)


def whole_files(batch: FilesBatch) -> Iterator[tuple[bytes, bytes]]:
    """Paths and contents. Where a file lies is known from where its last chunk ends."""
    chunker = new_parameters("64k", "blake3", "user.x").chunker()
    found = chunker.process_files(batch.buffer, batch.files)
    counts = accumulate(memoryview(found.counts).cast("I"))
    ends = memoryview(found.ends).cast("I")
    for (path, (_, size, *_), _), count in zip(batch.files, counts, strict=True):
        end = ends[count - 1]
        assert end - size >= HEADROOM and end <= len(batch.buffer)
        yield path, batch.buffer[end - size : end]


def read_all(lab: Lab, candidates: list[Candidate]) -> tuple[dict[bytes, bytes], dict[bytes, str]]:
    """What the batches hold of each file, and why files were given up."""
    parts: dict[bytes, list[bytes]] = {}
    ended: list[FileTask] = []
    with reading(lab, candidates) as (reader, pool):
        for batch in reader:
            if isinstance(batch, FilesBatch):
                for path, content in whole_files(batch):
                    assert path not in parts
                    parts[path] = [content]
                pool.give(batch.buffer)
                continue
            for piece in batch.segments:
                assert piece.task not in ended
                data = bytes(batch.zeros)
                if batch.buffer is not None:
                    if piece.start < piece.end:
                        assert piece.start >= HEADROOM and piece.end <= len(batch.buffer)
                    data = batch.buffer[piece.start : piece.end]
                parts.setdefault(piece.task.candidate.path, []).append(data)
                if piece.final:
                    ended.append(piece.task)
            if batch.buffer is not None:
                pool.give(batch.buffer)
    assert {task.candidate.path for task in ended} | set(parts) == {c.path for c in candidates}
    failures = {task.candidate.path: task.failure for task in ended if task.failure}
    return {name: b"".join(data) for name, data in parts.items()}, failures


def test_many_small_files_share_a_buffer(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = {b"%d" % at: noise(1000 + at, at) for at in range(300)}
        for name, content in contents.items():
            lab.put(name, content)
        with reading(lab, candidates_of(lab)) as (reader, _):
            assert sum(isinstance(batch, FilesBatch) for batch in reader) == 1
        assert read_all(lab, candidates_of(lab)) == (contents, {})


def test_a_batch_holds_a_limited_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "FILES_PER_BATCH_MAX", 10)
    with lab_in(tmp_path) as lab:
        for at in range(35):
            last = lab.put(f"{at}", noise(100, at))
        wait_until_settled(last)
        with reading(lab, candidates_of(lab)) as (reader, pool):
            sizes = []
            for batch in reader:
                assert isinstance(batch, FilesBatch)
                sizes.append(len(batch.files))
                pool.give(batch.buffer)
        assert sizes == [10, 10, 10, 5]


def test_a_large_file_comes_in_pieces(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(3 * BATCH_BYTES + 77)
        lab.put("large", content)
        lab.put("small", b"x" * 500)
        assert read_all(lab, candidates_of(lab)) == ({b"large": content, b"small": b"x" * 500}, {})


def test_long_holes_are_not_read(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("sparse", noise(100))
        os.truncate(path, 1 << 40)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        with reading(lab, candidates_of(lab)) as (reader, _):
            found = [batch for batch in reader if isinstance(batch, Batch)]
        assert [batch.zeros > 0 for batch in found] == [False, True]
        assert found[1].zeros + found[0].segments[0].end - found[0].segments[0].start == 1 << 40


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return new_lab(tmp_path_factory.mktemp("lab") / "volume", disk=LazyDisk())


extents = st.lists(st.tuples(st.integers(0, 12 * MIB), st.integers(1, 300 * KIB)), max_size=6)


@settings(max_examples=20)
@given(extents, st.integers(1, 13 * MIB))
def test_sparse_files_of_any_shape_are_read_as_they_are(
    shared_lab: Lab, written: list[tuple[int, int]], size: int
) -> None:
    path = shared_lab.put("file", b"")
    with open(path, "r+b") as file:
        for offset, length in written:
            file.seek(offset)
            file.write(noise(length, length))
        file.truncate(size)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    expected = path.read_bytes()
    contents, failures = read_all(shared_lab, candidates_of(shared_lab))
    assert failures == {}
    assert contents[b"file"] == expected
    path.unlink()


# --- what cannot be read, or changes ----------------------------------------------------------


def test_a_file_that_is_not_the_one_that_was_found_is_given_up(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("rewritten", noise(500))
        lab.put("removed", noise(500, 1))
        lab.put("a directory now", noise(500, 2))
        lab.put("a link now", noise(500, 3))
        lab.put("same", noise(500, 4))
        found = candidates_of(lab)
        lab.put("rewritten", noise(600))
        for name in ("removed", "a directory now", "a link now"):
            (lab.data / name).unlink()
        (lab.data / "a directory now").mkdir()
        (lab.data / "a link now").symlink_to("same")
        contents, failures = read_all(lab, found)
        assert failures == {
            b"rewritten": "changed since it was found",
            b"removed": "was moved or deleted while it was read",
            b"a directory now": "changed since it was found",
            b"a link now": "was moved or deleted while it was read",
        }
        assert contents[b"same"] == noise(500, 4)


def test_nothing_is_read_of_a_file_that_has_changed(tmp_path: Path) -> None:
    """What a checkpoint says of a file is of the one that was found."""
    with lab_in(tmp_path) as lab:
        path = lab.put("large", noise(6 * BATCH_BYTES))
        with reading(lab, candidates_of(lab)) as (reader, pool):
            seen: list[Segment] = []
            for batch in reader:
                assert not isinstance(batch, FilesBatch) and batch.buffer is not None
                if not seen:
                    with open(path, "r+b") as file:
                        file.write(b"changed")
                seen += batch.segments
                pool.give(batch.buffer)
        assert seen[-1].final and seen[-1].task.failure == "changed while it was read"
        assert sum(piece.end - piece.start for piece in seen) < 6 * BATCH_BYTES


@pytest.mark.parametrize("size", [50 * KIB, 3 * MIB])
def test_a_file_open_for_writing_is_given_up(tmp_path: Path, size: int) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("file", noise(size))
        with open(path, "ab"):
            assert read_all(lab, candidates_of(lab))[1] == {b"file": "in use"}
        assert read_all(lab, candidates_of(lab))[1] == {}


def test_the_page_cache_is_left_as_it_was_found(tmp_path: Path) -> None:
    """Files that nobody had read are not in it afterwards."""
    with lab_in(tmp_path) as lab:
        path = lab.put("file", noise(6 * MIB))
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read_all(lab, candidates_of(lab))
        assert cached_bytes(fd) == 0
        os.close(fd)


def cached_bytes(fd: int) -> int:
    """How much of a file the page cache holds: reads that may not wait find nothing else."""
    found = 0
    size = os.fstat(fd).st_size
    for at in range(0, size, 64 * KIB):
        try:
            found += os.preadv(fd, [bytearray(4096)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
    return found


def test_access_times_stay(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("file", noise(2 * MIB))
        read_all(lab, candidates_of(lab))
        assert path.stat().st_atime_ns == OLD_NS


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batches_taken", [0, 1, 2])
def test_a_reader_stops_at_once_wherever_it_is(tmp_path: Path, batches_taken: int) -> None:
    """With all buffers in use, too: nobody gives any back here."""
    with lab_in(tmp_path) as lab:
        for at in range(6):
            lab.put(f"{at}", noise(BATCH_BYTES, at))
        found = candidates_of(lab)
        before = descriptors_to_begin_with()
        with reading(lab, found) as (reader, _):
            taken = iter(reader)
            for _ in range(batches_taken):
                next(taken)
        assert descriptors() == before


def test_a_stub_that_is_given_up_while_it_is_read_ends_once(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        stub = lab.put("stub", noise(4 * MIB))
        lab.optimize()
        with open(lab.let_write("stub"), "r+b") as file:
            file.write(noise(4 * MIB, 1))
        wait_until_settled(stub)
        (candidate,) = candidates_of(lab)
        assert candidate.attribute is not None
        with lab.opened() as volume:
            pool = BufferPool(mmap.mmap(-1, HEADROOM + MIB) for _ in range(BUFFERS))
            work = [FileTask.whole(candidate, True)]
            reader = BatchReader(volume, work, pool, ReaderLimits(HEADROOM, batch_bytes=MIB))
            ends = 0
            for batch in reader:  # the last batch needs a buffer that is released here
                assert isinstance(batch, Batch) and batch.buffer is not None
                for segment in batch.segments:
                    segment.task.failure = "no room for it"
                    ends += segment.final
                pool.give(batch.buffer)
            reader.close()
        assert ends == 1


def test_an_error_of_the_scan_reaches_the_reader(tmp_path: Path) -> None:
    def failing() -> Iterator[FileTask]:
        yield from ()
        raise OSError(5, "Input/output error")

    with lab_in(tmp_path) as lab, lab.opened() as volume:
        pool = BufferPool(mmap.mmap(-1, HEADROOM + BATCH_BYTES) for _ in range(BUFFERS))
        reader = BatchReader(volume, failing(), pool, ReaderLimits(HEADROOM))
        with pytest.raises(OSError, match="Input/output error"):
            list(reader)
        reader.close()
