"""Trains of chunks say of each what a single read says, and end in time where nobody answers."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import Damaged, StoreUnreachable, UsageError
from dedupd_core.format.cluster.objects import chunk_object, frame_of
from dedupd_core.rados.cluster.changes import Change
from dedupd_core.rados.cluster.chunk_trains import READS_AT_ONCE, ChunkTrains, WantedChunk
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import mini_ceph
from tests.support.lab import noise
from tests.support.rados_hosts import Site, fingerprint, new_chunk

TEXT = b"some text that compresses, compresses, compresses, compresses" * 30
NOISE = noise(5000, 1)
TAG = ["ab" * 16]


def wanted(raw: bytes) -> WantedChunk:
    return WantedChunk(fingerprint(raw), len(raw))


def plant(site: Site, own: bytes, data: bytes) -> None:
    """Put any bytes under the name of a chunk."""
    site.cluster.apply(Change("rados.chunk-repaired", chunk_object(own), data=data))


def alone(site: Site, own: bytes) -> bytes | None:
    """What Python reads of a chunk."""
    chunks = site.store.chunks
    try:
        return chunks.decoded(own, chunks.stored(own))
    except Damaged:
        return None


def test_a_train_has_each_chunk_in_its_place(site: Site) -> None:
    raws = [noise(100 + n * 37, n) for n in range(3 * READS_AT_ONCE)] + [TEXT, b"", b"x"]
    for raw in raws:
        site.store.chunks.put(new_chunk(raw), TAG)
    order = [*raws, *raws[::-1], TEXT, TEXT]
    assert site.store.trains.read([wanted(raw) for raw in order]) == order
    assert site.store.trains.read([]) == []


def test_a_train_keeps_what_it_has_read(site: Site) -> None:
    for raw in (TEXT, NOISE):
        site.store.chunks.put(new_chunk(raw), TAG)
    kept: dict[bytes, bytes] = {}
    absent = WantedChunk(fingerprint(b"absent"), 6)
    found = site.store.trains.read([wanted(TEXT), absent, wanted(NOISE)], kept.__setitem__)
    assert found == [TEXT, None, NOISE]
    assert kept == {fingerprint(raw): new_chunk(raw).frame() for raw in (TEXT, NOISE)}


@pytest.mark.parametrize("raw", [TEXT, NOISE[:300]], ids=["compressed", "raw"])
def test_no_changed_byte_passes_where_a_single_read_finds_it(site: Site, raw: bytes) -> None:
    own, frame = fingerprint(raw), new_chunk(raw).frame()
    places = [*range(40), *range(40, len(frame), 11), len(frame) - 1]
    changed = [frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1 :] for at in places]
    cut = [frame[:end] for end in (*range(0, 40, 5), len(frame) - 1)]
    for data in (*changed, *cut, frame + b"\0", frame + bytes(5000), b""):
        plant(site, own, data)
        assert (site.store.trains.read([wanted(raw)]), alone(site, own)) == ([None], None)
    plant(site, own, frame)
    assert (site.store.trains.read([wanted(raw)]), alone(site, own)) == ([raw], raw)


def test_a_sound_frame_of_other_bytes_does_not_pass(site: Site) -> None:
    """As a host with bad memory stores it: all checksums are right."""
    for other in (NOISE[::-1], TEXT):
        plant(site, fingerprint(NOISE), frame_of(other, fingerprint(NOISE)))
        for length in (len(NOISE), len(other)):
            chunk = WantedChunk(fingerprint(NOISE), length)
            assert site.store.trains.read([chunk]) == [None]
        assert alone(site, fingerprint(NOISE)) is None


def test_another_length_than_the_recipe_s_is_left_to_a_single_read(site: Site) -> None:
    site.store.chunks.put(new_chunk(TEXT), TAG)
    for length in (0, len(TEXT) - 1, len(TEXT) + 1, 10 * len(TEXT)):
        assert site.store.trains.read([WantedChunk(fingerprint(TEXT), length)]) == [None]


def test_a_closed_reader_connects_again(site: Site) -> None:
    site.store.chunks.put(new_chunk(TEXT), TAG)
    for _ in range(2):
        assert site.store.trains.read([wanted(TEXT)]) == [TEXT]
        site.store.trains.close()


@pytest.fixture
def trains(site: Site) -> Iterator[ChunkTrains]:
    """Of a pool that is not there."""
    address = replace(site.address, pool="none")
    with Cluster(address) as cluster, closing(ChunkTrains(cluster, "blake3")) as found:
        yield found


def test_a_pool_that_is_not_there_is_named(trains: ChunkTrains) -> None:
    with pytest.raises(
        UsageError, match=r"rados:none/.*the pool, its configuration or the key does not exist"
    ):
        trains.read([wanted(TEXT)])


def test_a_library_that_is_not_there_is_named(
    trains: ChunkTrains, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(**_: object) -> None:
        raise ImportError("librados.so.2: cannot open shared object file")

    monkeypatch.setattr(native.rados, "ChunkReader", absent)
    with pytest.raises(UsageError, match="librados"):
        trains.read([wanted(TEXT)])


@pytest.mark.slow
def test_a_train_ends_in_time_where_no_osd_answers(tmp_path: Path) -> None:
    with mini_ceph(tmp_path) as ceph, RadosStore.create(ceph.address("store", 3.0)) as store:
        raws = [noise(50_000, n) for n in range(100)]
        for raw in raws:
            store.chunks.put(new_chunk(raw), TAG)
        train = [wanted(raw) for raw in raws]
        assert store.trains.read(train) == raws
        osds = [name for name in ceph.daemons if name.startswith("osd")]
        for name in osds:
            ceph.pause_daemon(name)
        begun_s = time.monotonic()
        with pytest.raises(StoreUnreachable):
            store.trains.read(train)
        assert time.monotonic() - begun_s < 6  # those behind the first 64 are not asked for
        for name in osds:
            ceph.go_on(name)
        assert store.trains.read(train) == raws
        for name in osds:
            ceph.stop_daemon(name, signal.SIGKILL)
