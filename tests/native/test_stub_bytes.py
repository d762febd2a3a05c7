"""Bytes of stubs, with a cache of chunks: bounded, never wrong, one load for readers that meet; and
repairs, which native code is given."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.store.reader import RecordReader
from tests.support.lab import flip_bit, noise
from tests.support.stores import Records
from tests.support.stub_chunks import NODE, Row, StubOfChunks

SIZE = 10_000
COUNT = 8
CHUNKS = [noise(SIZE, seed) for seed in range(COUNT)]
WHOLE = b"".join(CHUNKS)


@pytest.fixture
def store(tmp_path: Path) -> Records:
    store = Records(tmp_path / "s")
    store.append(*CHUNKS)
    store.writer.sync()
    store.data().read_bytes()  # so that the page cache has it
    return store


@pytest.fixture
def reader(store: Records) -> Iterator[RecordReader]:
    reader = store.reader()
    yield reader
    reader.close()


@pytest.fixture
def rows(reader: RecordReader) -> list[Row]:
    ids = [1 << 32 | ordinal for ordinal in range(COUNT)]
    return [(one, SIZE, fingerprint_check(reader.describe(one).fingerprint)) for one in ids]


@pytest.fixture
def stub(reader: RecordReader, rows: list[Row]) -> StubOfChunks:
    return StubOfChunks(reader, rows, threads=2, cache_bytes=4 * SIZE)


def test_a_chunk_is_read_once(stub: StubOfChunks) -> None:
    assert [stub.read(5, SIZE), stub.read(0, SIZE)] == [CHUNKS[0][5:], CHUNKS[0]]
    assert stub.cache.uses == (1, 1)


def test_the_cache_keeps_within_its_bounds_what_was_used_last(stub: StubOfChunks) -> None:
    for at in (0, 1, 2, 3, 0, 5):
        assert stub.read(at * SIZE, (at + 1) * SIZE) == CHUNKS[at]
    assert stub.cache.bytes == 4 * SIZE
    hits, misses = stub.cache.uses
    stub.read(0, 1)
    assert stub.cache.uses == (hits + 1, misses)
    stub.read(SIZE, SIZE + 1)
    assert stub.cache.uses == (hits + 1, misses + 1)


def test_a_read_of_more_than_fits_loses_nothing(stub: StubOfChunks) -> None:
    assert stub.read(0, len(WHOLE)) == WHOLE
    assert stub.cache.bytes <= 4 * SIZE


def test_readers_that_come_together_get_the_same_and_do_not_wait_for_ever(
    stub: StubOfChunks,
) -> None:
    parts = [(0, 5), (3, 8), (0, 8), (2, 6)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            reads = [pool.submit(stub.read, first * SIZE, end * SIZE) for first, end in parts]
            for (first, end), read in zip(parts, reads, strict=True):
                assert read.result() == WHOLE[first * SIZE : end * SIZE]


def test_damage_reaches_its_reader_and_no_other(store: Records, stub: StubOfChunks) -> None:
    flip_bit(store.data(), store.data().read_bytes().index(CHUNKS[1][:100]))
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(stub.read, 0, 3 * SIZE) for _ in range(8)]
        for read in reads:
            found = read.result()
            assert isinstance(found, list)
            assert [(one.part, one.id, one.why) for one in found] == [
                ("chunk", 1 << 32 | 1, "damaged")
            ]
    assert (stub.read(0, SIZE), stub.read(2 * SIZE, 3 * SIZE)) == (CHUNKS[0], CHUNKS[2])


def test_a_repaired_chunk_is_used_however_small_the_cache_is(
    store: Records, reader: RecordReader, rows: list[Row]
) -> None:
    stub = StubOfChunks(reader, rows)
    data = store.data().read_bytes()
    for at in (1, 6):
        flip_bit(store.data(), data.index(CHUNKS[at][:100]))
    named = NODE, bytes(16), False, len(WHOLE)
    found = stub.native.read(-1, named, (), 0, len(WHOLE), waits=True)
    assert isinstance(found, list)
    assert [(one.id, one.length, one.check) for one in found] == [rows[1], rows[6]]
    repaired = [(rows[at], CHUNKS[at]) for at in (1, 6)]
    found = stub.native.read(-1, named, (), 0, len(WHOLE), waits=True, repaired=repaired)
    assert found == WHOLE


def test_blocks_of_its_own_go_before_the_recipe_and_zeros_come_behind_it(
    tmp_path: Path, stub: StubOfChunks
) -> None:
    path = tmp_path / "file"
    path.write_bytes(noise(20_000, 99))
    own = [(4096, 8192), (12_288, 16_384)]
    expected = bytearray(CHUNKS[0] + bytes(10_000))
    for low, high in own:
        expected[low:high] = path.read_bytes()[low:high]
    named = NODE, bytes(16), False, SIZE
    with open(path, "rb") as file:
        for start, end in [(0, 20_000), (5000, 9000), (9999, 10_001), (8192, 12_288), (7, 7)]:
            found = stub.native.read(file.fileno(), named, own, start, end, waits=True)
            assert found == bytes(expected[start:end])


def test_a_recipe_that_is_not_the_stub_s_is_told_apart(stub: StubOfChunks) -> None:
    for digest, covered, part in (
        (b"\1" * 16, SIZE, "node"),
        (bytes(16), len(WHOLE) + 1, "recipe"),
    ):
        found = stub.native.read(-1, (NODE, digest, False, covered), (), 0, 10, waits=True)
        assert isinstance(found, list)
        assert [(one.part, one.why) for one in found] == [(part, "not meant")]
