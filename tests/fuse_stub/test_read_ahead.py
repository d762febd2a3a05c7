"""Readers in sequence get the file as it is, whatever was decompressed ahead of them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dedupd import native
from dedupd.errors import DamagedChunk
from dedupd.format.container import Kind
from dedupd.store.reader import RecordReader
from dedupd.stub.stub_file import SparseStub
from dedupd.units import KIB
from dedupd.volume.volume import Volume
from fuse_stub.files import read_ahead
from fuse_stub.files.chunk_cache import ChunkCache
from fuse_stub.files.read_ahead import SequentialReads
from tests.support.lab import (
    Lab,
    descriptors,
    descriptors_to_begin_with,
    flip_bit,
    new_lab,
    noise,
    prose,
)

STEP = 256 * KIB
CONTENT = prose(900 * KIB, 1) + noise(700 * KIB, 2) + prose(500 * KIB + 77, 3)


class WatchedReader(RecordReader):
    """Notes which chunks are begun with."""

    def __init__(self, volume: Volume) -> None:
        plain = volume.chunk_records
        super().__init__(volume.directory(Kind.CHUNKS), plain._kind, plain._volume_id)
        self.begun: list[int] = []

    def begin_window(
        self, wanted: Sequence[tuple[int, int, int]], head: bytes | memoryview, helpers: int
    ) -> native.store.Window | None:
        self.begun += [chunk for chunk, _, _ in wanted]
        return super().begin_window(wanted, head, helpers)


class Reading:
    """A stub that is read as a mount does."""

    def __init__(self, lab: Lab, cache_bytes: int = 64 * KIB) -> None:
        self.volume = Volume.open(str(lab.root))
        self.fd = os.open(lab.data / "f", os.O_RDWR)
        attribute = self.volume.space.read(self.fd, "f")
        assert attribute is not None
        self.stub = SparseStub(
            self.fd,
            attribute,
            self.volume.stub_files,
            lambda stub: self.volume.content(stub, "f"),
        )
        self.records = WatchedReader(self.volume)
        for span in self.stub.chunks(0, len(CONTENT)):
            self.records.describe(span.chunk)
        self.cache = ChunkCache(self.records, cache_bytes, threads=2)
        self.reads = SequentialReads(self.records, self.cache, threads=2)

    def get(self, start: int, reader: object = "somebody", *, keep: bool = False) -> bytes | None:
        end = min(start + STEP, len(CONTENT))
        part = self.reads.read(reader, self.stub, start, end, keep=keep)
        return None if part is None else bytes(part)

    def close(self) -> None:
        self.reads.forget_all()
        self.cache.close()
        self.records.close()
        os.close(self.fd)
        self.volume.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = new_lab(tmp_path_factory.mktemp("streams"))
    lab.put("f", CONTENT)
    lab.optimize()
    lab.container(Kind.CHUNKS).read_bytes()  # so that the page cache has it
    return lab


@pytest.fixture
def reading(lab: Lab) -> Iterator[Reading]:
    reading = Reading(lab)
    yield reading
    reading.close()


STEPS = range(0, len(CONTENT), STEP)


def expected(start: int) -> bytes:
    return CONTENT[start : start + STEP]


def test_a_sequential_reader_gets_the_file(reading: Reading) -> None:
    assert [reading.get(start) for start in STEPS] == [expected(start) for start in STEPS]


def test_each_chunk_is_decompressed_once(reading: Reading) -> None:
    for start in STEPS:
        reading.get(start)
    chunks = [span.chunk for span in reading.stub.chunks(0, len(CONTENT))]
    assert reading.records.begun == chunks


def test_a_reader_that_jumps_gets_the_bytes_there(reading: Reading) -> None:
    for start in (0, STEP, 5 * STEP, 0, 3 * STEP + 4096, STEP, 5 * STEP):
        assert reading.get(start) == expected(start)


def test_readers_of_several_places_do_not_disturb_each_other(reading: Reading) -> None:
    for turn in STEPS[:-4]:
        for reader in range(read_ahead.READERS_MAX + 3):
            start = turn + reader % 4 * STEP
            assert reading.get(start, reader) == expected(start)


def test_no_more_is_begun_than_there_is_room_for(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "IDLE_S", 1e9)
    for reader in range(read_ahead.READERS_MAX + 3):
        reading.get(0, reader)
    assert set(reading.reads._begun) == set(range(read_ahead.READERS_MAX))


def test_an_idle_reader_makes_room(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "IDLE_S", 0.0)
    for reader in range(read_ahead.READERS_MAX + 3):
        reading.get(0, reader)
    assert set(reading.reads._begun) == set(range(3, read_ahead.READERS_MAX + 3))


def test_what_is_kept_is_in_the_cache_and_not_read_again(lab: Lab) -> None:
    reading = Reading(lab, cache_bytes=2 * len(CONTENT))
    for start in STEPS:
        reading.get(start, keep=True)
    for span in reading.stub.chunks(0, len(CONTENT)):
        assert reading.cache.find(span) == CONTENT[span.offset : span.offset + span.length]
    reading.records.begun.clear()
    assert reading.get(0) is None, "that is the cache's"
    assert reading.records.begun == []
    reading.close()


_WINDOWS_WITHOUT_THREADS = """
import os, resource
from dedupd import native
fd = os.open("/dev/null", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
os.setresuid(1000, 1000, 1000)  # root's threads have no limit
before = os.dup(fd)
for _ in range(10):
    native.store.Window(fd, fd, 0, [(0, 10, 0), (1, 10, 0)], b"", 1).finish()
assert os.dup(fd) == before + 1
"""


@pytest.mark.root
def test_nothing_is_held_where_the_system_has_no_more_threads() -> None:
    subprocess.run([sys.executable, "-c", _WINDOWS_WITHOUT_THREADS], check=True, timeout=60)


def test_nothing_is_held_once_all_is_forgotten(reading: Reading) -> None:
    own = descriptors_to_begin_with()
    for reader in range(4):
        reading.get(0, reader)
    assert reading.reads._begun
    reading.reads.forget_all()
    while descriptors() > own:
        os.sched_yield()  # a helper has seen that there is nothing left to do


@pytest.mark.root
def test_what_was_written_after_it_was_begun_is_not_passed_over(tmp_path: Path) -> None:
    lab = new_lab(tmp_path)
    lab.put("f", CONTENT)
    lab.optimize()
    reading = Reading(lab)
    reading.get(0)
    reading.stub.write(STEP + 10, b"new")
    assert reading.get(STEP) is None, "somebody else puts it together"
    assert reading.stub.read(STEP, STEP)[10:13] == b"new"
    reading.stub.truncate(2 * STEP)
    assert reading.get(2 * STEP) is None
    reading.close()


def test_damage_is_never_answered(tmp_path: Path) -> None:
    lab = new_lab(tmp_path)
    lab.put("f", CONTENT)
    lab.optimize()
    data = lab.container(Kind.CHUNKS)
    flip_bit(data, data.read_bytes().index(CONTENT[1000 * KIB :][:100]))
    reading = Reading(lab)
    for start in STEPS:
        part = reading.get(start)
        if part is None:
            with pytest.raises(DamagedChunk):
                reading.stub.read(start, STEP)
        else:
            assert part == expected(start)
    reading.close()
