"""The cache of decompressed chunks: bounded, never wrong, one load for readers that meet."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dedupd_core.errors import DamagedChunk
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.store.reader import RecordReader
from dedupd_core.store.recipe.recipe_reader import Span
from fuse_stub.files.chunk_cache import ChunkCache
from tests.support.lab import flip_bit, noise
from tests.support.stores import Records

SIZE = 10_000
COUNT = 8
CHUNKS = [noise(SIZE, seed) for seed in range(COUNT)]


class CountingReader(RecordReader):
    """Counts the chunks that are read in batches, and can be made to wait."""

    read_count = 0
    gate: threading.Event | None = None

    def read_chunks(
        self, wanted: Sequence[tuple[int, int, int]], *, cached_only: bool, threads: int = 1
    ) -> list[bytes | None]:
        if self.gate is not None:
            self.gate.wait()
        self.read_count += len(wanted)
        return super().read_chunks(wanted, cached_only=cached_only, threads=threads)


@pytest.fixture
def store(tmp_path: Path) -> Records:
    store = Records(tmp_path / "s")
    store.append(*CHUNKS)
    store.writer.sync()
    store.data().read_bytes()  # so that the page cache has it
    return store


@pytest.fixture
def reader(store: Records) -> Iterator[CountingReader]:
    plain = store.reader()
    reader = CountingReader(str(store.data().parent), plain._kind, plain._volume_id)
    plain.close()
    yield reader
    reader.close()


@pytest.fixture
def spans(reader: CountingReader) -> list[Span]:
    ids = [1 << 32 | ordinal for ordinal in range(COUNT)]
    return [
        Span(at * SIZE, SIZE, one, fingerprint_check(reader.describe(one).fingerprint))
        for at, one in enumerate(ids)
    ]


@pytest.fixture
def cache(reader: CountingReader) -> Iterator[ChunkCache]:
    cache = ChunkCache(reader, 4 * SIZE, threads=2)
    yield cache
    cache.close()


def test_a_chunk_is_read_once(cache: ChunkCache, reader: CountingReader, spans: list[Span]) -> None:
    assert [cache.read(spans[0]), cache.read(spans[0])] == [CHUNKS[0]] * 2
    assert reader.read_count == 1


def test_the_cache_keeps_within_its_bounds_what_was_used_last(
    cache: ChunkCache, spans: list[Span]
) -> None:
    for span in spans[:4]:
        cache.read(span)
    cache.read(spans[0])
    cache.read(spans[5])
    assert cache.used_bytes == 4 * SIZE
    assert cache.find(spans[0]) == CHUNKS[0]
    assert cache.find(spans[1]) is None


def test_loading_more_than_fits_loses_nothing(cache: ChunkCache, spans: list[Span]) -> None:
    cache.load(spans)
    assert [cache.read(span) for span in spans] == CHUNKS
    assert cache.used_bytes <= 4 * SIZE


def test_readers_that_come_together_wait_for_one_load(
    cache: ChunkCache, reader: CountingReader, spans: list[Span]
) -> None:
    reader.gate = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(cache.read, spans[0]) for _ in range(4)]
        reader.gate.set()
        assert [one.result() for one in readers] == [CHUNKS[0]] * 4
    assert reader.read_count == 1


def test_loads_that_overlap_wait_for_each_other_and_not_for_ever(
    cache: ChunkCache, spans: list[Span]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(50):
            parts = [spans[:5], spans[3:], spans[::-1], spans[2:6]]
            for load in [pool.submit(cache.load, part) for part in parts]:
                load.result()
    assert [cache.read(span) for span in spans] == CHUNKS


def test_what_is_in_the_page_cache_is_there_at_once(
    cache: ChunkCache, reader: CountingReader, spans: list[Span]
) -> None:
    reader.read(spans[0].chunk)
    assert cache.load_at_once(spans[:2])
    assert cache.find(spans[1]) == CHUNKS[1]


def test_an_error_reaches_its_reader_and_no_other(
    cache: ChunkCache, store: Records, spans: list[Span]
) -> None:
    flip_bit(store.data(), store.data().read_bytes().index(CHUNKS[1][:100]))
    assert not cache.load_at_once(spans[:3])
    cache.load(spans[:3])
    cache.read_ahead(spans[:3])
    with pytest.raises(DamagedChunk):
        cache.read(spans[1])
    assert (cache.read(spans[0]), cache.read(spans[2])) == (CHUNKS[0], CHUNKS[2])


def test_a_chunk_that_is_not_what_the_recipe_means_is_an_error(
    cache: ChunkCache, spans: list[Span]
) -> None:
    assert cache.read(spans[0]) == CHUNKS[0]
    with pytest.raises(DamagedChunk):
        cache.read(spans[0]._replace(fingerprint_check=spans[0].fingerprint_check ^ 1))
