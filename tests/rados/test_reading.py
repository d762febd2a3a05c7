"""Stubs' recipes and chunks are read from the cluster, or from this host's disk, and verified."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedChunk, DamagedRecipe, StoreUnreachable
from dedupd_core.format.cluster.objects import chunk_object
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import StubAttribute
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.reading import sources
from dedupd_core.rados.reading.disk_cache import DiskCache
from dedupd_core.rados.reading.sources import ClusterChunks, ClusterRecipes, reference
from dedupd_core.rados.store import RadosStore
from dedupd_core.stub.content import Contents, StoreContent
from tests.support.disk_caches import cache_in
from tests.support.rados_hosts import PIECE_BYTES, Site, fingerprint, random_content

A = random_content(1, 6)
SPARSE = A[: 2 * PIECE_BYTES] + bytes(3 * PIECE_BYTES) + A[:PIECE_BYTES] + bytes(PIECE_BYTES)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[DiskCache]:
    cache = cache_in(tmp_path / "cache")
    yield cache
    cache.close()


def put(site: Site, data: bytes) -> RecipeRef:
    with site.host(operations_at_once=4) as host:
        (one,) = host.put({1: data})
    return reference(one.version)


def opened(site: Site, chunks: ClusterChunks, ref: RecipeRef) -> StoreContent:
    recipes = ClusterRecipes(lambda: site.store, chunks)
    return content_of(chunks, recipes, ref)


def content_of(chunks: ClusterChunks, recipes: ClusterRecipes, ref: RecipeRef) -> StoreContent:
    cache = native.store.ChunkCache(0)
    stub_bytes = native.store.StubBytes.of_cluster(chunks.content, cache)
    contents = Contents(stub_bytes, cache, chunks, recipes)
    covered = contents.of(StubAttribute(ref.recipe, ref.digest, 0, 0), "here").recipe.length
    return contents.of(StubAttribute(ref.recipe, ref.digest, covered, 0), "here")


def test_a_stub_reads_what_was_stored(site: Site, cache: DiskCache) -> None:
    ref = put(site, SPARSE)
    for chunks in (ClusterChunks(lambda: site.store), ClusterChunks(lambda: site.store, cache)):
        found = opened(site, chunks, ref)
        assert found.recipe.length == len(SPARSE)
        for start, end in ((0, len(SPARSE)), (5, 9000), (9000, 20000), (24000, len(SPARSE) + 10)):
            assert found.read(start, end) == SPARSE[start:end] + bytes(max(0, end - len(SPARSE)))


def test_what_was_read_is_read_from_this_host_s_disk(site: Site, tmp_path: Path) -> None:
    ref = put(site, A)
    cache = cache_in(tmp_path / "cache")
    assert opened(site, ClusterChunks(lambda: site.store, cache), ref).read(0, len(A)) == A
    cache.close()
    cache = cache_in(tmp_path / "cache")  # by the next process
    found = opened(site, ClusterChunks(lambda: site.store, cache), ref)
    operations: list[str] = []
    site.cluster.gate = operations.append
    assert found.read(0, len(A)) == A
    assert operations == []
    site.cluster.gate = None
    (path,) = (tmp_path / "cache").glob("*.frames")
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    found = opened(site, ClusterChunks(lambda: site.store, cache), ref)
    assert found.read(0, len(A)) == A
    cache.close()


def test_what_was_read_is_read_while_the_store_is_gone(site: Site, tmp_path: Path) -> None:
    ref = put(site, SPARSE)
    directory = tmp_path / "cache"

    def gone() -> RadosStore:
        raise StoreUnreachable("nobody answers")

    def content_by(store: Callable[[], RadosStore]) -> bytes:
        with closing(cache_in(directory)) as cache:
            chunks = ClusterChunks(store, cache)
            recipes = ClusterRecipes(store, chunks)
            return content_of(chunks, recipes, ref).read(0, len(SPARSE))

    with pytest.raises(StoreUnreachable):
        content_by(gone)
    assert content_by(lambda: site.store) == SPARSE
    assert content_by(gone) == SPARSE
    # A recipe that is torn on this host's disk is fetched again, as a chunk is.
    (path,) = directory.glob("*.frames")
    data = bytearray(path.read_bytes())
    data[data.index(b"DDRM") + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreUnreachable):
        content_by(gone)
    assert content_by(lambda: site.store) == SPARSE


def test_a_damaged_chunk_is_an_error_and_is_marked(site: Site, cache: DiskCache) -> None:
    ref = put(site, A)
    own = fingerprint(A[:PIECE_BYTES])
    data = bytearray(site.cluster.read(chunk_object(own)) or b"")
    data[-1] ^= 1
    site.cluster.apply(AtomicChange("rados.chunk-repaired", chunk_object(own), data=bytes(data)))
    found = opened(site, ClusterChunks(lambda: site.store, cache), ref)
    with pytest.raises(Damaged):
        found.read(0, 10)
    assert site.cluster.value(chunk_object(own), "S") == "I"
    assert found.read(PIECE_BYTES, len(A)) == A[PIECE_BYTES:]


def test_a_version_that_is_gone_is_an_error(site: Site) -> None:
    chunks = ClusterChunks(lambda: site.store)
    with pytest.raises(DamagedRecipe, match="does not have file version"):
        opened(site, chunks, reference("ab" * 16))
    with pytest.raises(DamagedRecipe, match="refers to no file version"):
        opened(site, chunks, RecipeRef(77, bytes(16)))


def test_numbers_are_never_another_chunk_s(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "IDLE_NUMBERS_MAX", 2)
    chunks = ClusterChunks(lambda: site.store)
    numbers = chunks.numbers
    a, b, c = (bytes([n]) * 32 for n in range(3))
    first = numbers.take(a + b + a + c)
    assert first == [1, 2, 1, 3]
    numbers.give_back(first[:1])
    assert chunks.fingerprint(1) == a
    numbers.give_back(first[1:])
    with pytest.raises(DamagedChunk):
        chunks.fingerprint(2)  # the one that has been idle for longest
    assert numbers.take(a + b + c) == [1, 4, 3] and len(numbers) == 3
