"""Native code reads of each chunk in a cluster what a single read gives, and ends in time when the
cluster does not answer."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, count
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import Damaged, UsageError
from dedupd_core.format.cluster.objects import (
    ChunkEntry,
    FileId,
    FileRecipe,
    chunk_object,
    frame_of,
)
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.cluster.native_reads import NativeReads
from dedupd_core.rados.reading.sources import RECIPE_NUMBER, ClusterChunks
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import mini_ceph
from tests.support.lab import noise
from tests.support.rados_hosts import Site, fingerprint, new_chunk

TEXT = b"some text that compresses, compresses, compresses, compresses" * 30
NOISE = noise(5000, 1)
TAG = ["ab" * 16]
VERSIONS = count(1)

Wanted = tuple[bytes, int]
"""Fingerprint and length of a chunk."""


def wanted(raw: bytes) -> Wanted:
    return fingerprint(raw), len(raw)


Found = bytes | list[native.store.Unreadable]


def reader_of(store: RadosStore, chunks: Sequence[Wanted]) -> Callable[[], Found]:
    """Reads a stub that consists of these chunks: its bytes, or the unreadable chunks."""
    version = f"{next(VERSIONS):032x}"
    ends = list(accumulate(length for _, length in chunks))
    entries = [
        ChunkEntry(end - length, length, own)
        for (own, length), end in zip(chunks, ends, strict=True)
    ]
    store.recipes.write(FileRecipe(version, "00" * 16, FileId(1, 1), ends[-1], entries))
    source = ClusterChunks(lambda: store)
    source.connect(store)
    stub_bytes = native.store.StubBytes.of_cluster(source.content, native.store.ChunkCache(0))
    stub = RECIPE_NUMBER, bytes.fromhex(version), False, ends[-1]
    return lambda: stub_bytes.read(-1, stub, (), 0, ends[-1], waits=True)


def read_one(store: RadosStore, chunk: Wanted) -> bytes | str:
    """The bytes of a chunk, or the reason why there are none."""
    found = reader_of(store, [chunk])()
    return found if isinstance(found, bytes) else found[0].why


def plant(site: Site, own: bytes, data: bytes) -> None:
    """Put any bytes under the name of a chunk."""
    site.cluster.apply(AtomicChange("rados.chunk-repaired", chunk_object(own), data=data))


def alone(site: Site, own: bytes) -> bytes | None:
    """What Python reads of a chunk."""
    chunks = site.store.chunks
    try:
        return chunks.decoded(own, chunks.stored(own))
    except Damaged:
        return None


def test_a_train_has_each_chunk_in_its_place(site: Site) -> None:
    raws = [noise(100 + n * 37, n) for n in range(200)] + [TEXT, b"x"]
    for raw in raws:
        site.store.chunks.put(new_chunk(raw), TAG)
    order = [*raws, *raws[::-1], TEXT, TEXT]
    assert reader_of(site.store, [wanted(raw) for raw in order])() == b"".join(order)


def test_a_missing_chunk_is_named(site: Site) -> None:
    for raw in (TEXT, NOISE):
        site.store.chunks.put(new_chunk(raw), TAG)
    train = [wanted(TEXT), (fingerprint(b"absent"), 6), wanted(NOISE)]
    found = reader_of(site.store, train)()
    assert isinstance(found, list)
    assert [(one.part, one.length, one.why) for one in found] == [("chunk", 6, "damaged")]


@pytest.mark.parametrize("raw", [TEXT, NOISE[:300]], ids=["compressed", "raw"])
def test_no_changed_byte_passes_where_a_single_read_finds_it(site: Site, raw: bytes) -> None:
    own, frame = fingerprint(raw), new_chunk(raw).frame()
    places = [*range(40), *range(40, len(frame), 11), len(frame) - 1]
    changed = [frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :] for at in places]
    cut = [frame[:end] for end in (*range(0, 40, 5), len(frame) - 1)]
    for data in (*changed, *cut, frame + b"\0", frame + bytes(5000), b""):
        plant(site, own, data)
        assert (read_one(site.store, wanted(raw)), alone(site, own)) == ("damaged", None)
    plant(site, own, frame)
    assert (read_one(site.store, wanted(raw)), alone(site, own)) == (raw, raw)


def test_a_sound_frame_of_other_bytes_does_not_pass(site: Site) -> None:
    """As a host with bad memory stores it: all checksums are right."""
    for other in (NOISE[::-1], TEXT):
        plant(site, fingerprint(NOISE), frame_of(other, fingerprint(NOISE)))
        for length in (len(NOISE), len(other)):
            assert read_one(site.store, (fingerprint(NOISE), length)) == "damaged"
        assert alone(site, fingerprint(NOISE)) is None


def test_another_length_than_the_recipe_s_does_not_pass(site: Site) -> None:
    site.store.chunks.put(new_chunk(TEXT), TAG)
    for length in (len(TEXT) - 1, len(TEXT) + 1, 10 * len(TEXT)):
        assert read_one(site.store, (fingerprint(TEXT), length)) == "damaged"


def test_a_closed_reader_connects_again(site: Site) -> None:
    site.store.chunks.put(new_chunk(TEXT), TAG)
    for _ in range(2):
        assert read_one(site.store, wanted(TEXT)) == TEXT
        site.store.reads.close()


@pytest.fixture
def reads(site: Site) -> Iterator[NativeReads]:
    """Of a pool that is not there."""
    address = replace(site.address, pool="none")
    with Cluster(address) as cluster, closing(NativeReads(cluster)) as found:
        yield found


def test_a_pool_that_is_not_there_is_named(reads: NativeReads) -> None:
    with pytest.raises(
        UsageError, match=r"rados:none/.*the pool, its configuration or the key does not exist"
    ):
        _ = reads.reader


def test_a_library_that_is_not_there_is_named(
    reads: NativeReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(**_: object) -> None:
        raise ImportError("librados.so.2: cannot open shared object file")

    monkeypatch.setattr(native.rados, "ChunkReader", absent)
    with pytest.raises(UsageError, match="librados"):
        _ = reads.reader


@pytest.mark.slow
def test_a_train_ends_in_time_where_no_osd_answers(tmp_path: Path) -> None:
    with mini_ceph(tmp_path) as ceph, RadosStore.create(ceph.address("store", 3.0)) as store:
        raws = [noise(50_000, n) for n in range(100)]
        for raw in raws:
            store.chunks.put(new_chunk(raw), TAG)
        found = reader_of(store, [wanted(raw) for raw in raws])
        assert found() == b"".join(raws)
        osds = [name for name in ceph.daemons if name.startswith("osd")]
        for name in osds:
            ceph.pause_daemon(name)
        begun_s = time.monotonic()
        unreadable = found()
        assert isinstance(unreadable, list) and unreadable[0].why == "errno"
        assert time.monotonic() - begun_s < 6  # those behind the first 64 are not asked for
        for name in osds:
            ceph.go_on(name)
        for name in osds:
            ceph.stop_daemon(name, signal.SIGKILL)
