"""A chunk is stored once, its references are exact, and what is damaged is repaired on arrival."""

from collections.abc import Callable

import pytest

from dedupd_core.errors import Damaged
from dedupd_core.format.cluster.objects import ChunkState, chunk_object, frame_of, tag_key
from dedupd_core.rados.chunks import StoreResult
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from tests.support.rados_hosts import Site, fingerprint, new_chunk

RAW = b"a chunk that is a little longer than nothing " * 40
FP = fingerprint(RAW)
OID = chunk_object(FP)
V1, V2, V3 = ("1" * 32, "2" * 32, "3" * 32)


def state_of(site: Site) -> str | None:
    return site.cluster.value(OID, "S")


def tags(site: Site) -> set[str]:
    return {key.removeprefix("r.") for key in site.cluster.keys(OID, "r.")}


def plant(site: Site, state: ChunkState, data: bytes) -> None:
    """An object as a crash or a bad disk has left it."""
    change = AtomicChange(
        "rados.chunk-created", OID, data=data, put={"S": state.value, tag_key(V1): ""}
    )
    assert site.cluster.apply(change) is Outcome.DONE


@pytest.mark.parametrize("is_expected", [False, True])
def test_a_chunk_is_stored_once_and_each_arrival_is_a_tag(site: Site, is_expected: bool) -> None:
    put = site.store.chunks.put
    assert put(new_chunk(RAW, is_expected=is_expected), [V1]) is StoreResult.CREATED
    assert put(new_chunk(RAW, is_expected=is_expected), [V2, V3]) is StoreResult.REFERENCED
    assert (state_of(site), tags(site)) == ("V", {V1, V2, V3})
    assert site.store.chunks.read(FP) == RAW


@pytest.mark.parametrize(
    ("content", "arrival"),
    [
        (frame_of(RAW, FP, level=3), StoreResult.CHECKED),
        (frame_of(RAW, FP, level=0), StoreResult.CHECKED),  # of a host that compresses otherwise
        (frame_of(RAW, FP)[:-5], StoreResult.REPAIRED),
        (b"", StoreResult.REPAIRED),
        (frame_of(b"other bytes", FP), StoreResult.REPAIRED),  # intact, and not the chunk
    ],
    ids=["good", "good-raw", "torn", "empty", "another"],
)
def test_an_arrival_looks_at_the_content_of_what_is_not_valid(
    site: Site, content: bytes, arrival: StoreResult
) -> None:
    plant(site, ChunkState.INVALID, content)
    assert site.store.chunks.put(new_chunk(RAW), [V2]) is arrival
    assert (state_of(site), tags(site)) == ("V", {V1, V2})
    assert site.store.chunks.read(FP) == RAW


def test_a_reader_gets_an_error_and_the_next_arrival_repairs(site: Site) -> None:
    frame = bytearray(frame_of(RAW, FP))
    frame[-1] ^= 1
    plant(site, ChunkState.VALID, bytes(frame))
    with pytest.raises(Damaged):
        site.store.chunks.read(FP)
    assert state_of(site) == "I"
    assert site.store.chunks.put(new_chunk(RAW), [V2]) is StoreResult.REPAIRED
    assert (state_of(site), site.store.chunks.read(FP)) == ("V", RAW)


def test_a_missing_chunk_is_an_error(site: Site) -> None:
    with pytest.raises(Damaged, match="missing"):
        site.store.chunks.read(FP)


def test_each_operation_may_lose_its_acknowledgement(site: Site) -> None:
    chunks = site.store.chunks
    site.cluster.acknowledgements_lost = True
    chunks.put(new_chunk(RAW), [V1])
    assert chunks.put(new_chunk(RAW), [V2]) is StoreResult.REFERENCED
    assert (state_of(site), tags(site)) == ("V", {V1, V2})
    assert chunks.drop_references(FP, [V1]) is None
    left = chunks.drop_references(FP, [V2])
    assert left is not None
    chunks.condemn([left])
    assert (state_of(site), tags(site)) == ("I", set())
    assert site.collect().candidates == 1
    assert state_of(site) is None


def test_a_chunk_of_very_many_references_is_pinned(site: Site) -> None:
    chunks = site.store.chunks
    chunks.tags_max, chunks.pin_sample = 1500, 1  # more than one answer of the OSD has
    many = [f"{n:032x}" for n in range(1501)]
    chunks.put(new_chunk(RAW), many[:-1])
    assert chunks.put(new_chunk(RAW, is_expected=True), many[-1:]) is StoreResult.REFERENCED
    assert state_of(site) == "P"
    assert chunks.put(new_chunk(RAW, is_expected=True), [V1]) is StoreResult.PINNED
    assert V1 not in tags(site) and len(tags(site)) == 1501
    assert chunks.drop_references(FP, many) is None  # never a candidate again
    assert chunks.remove_unreferenced(FP) is False
    chunks.mark_damaged(FP)
    assert (state_of(site), chunks.remove_unreferenced(FP)) == ("Q", False)
    assert chunks.put(new_chunk(RAW), [V1]) is StoreResult.CHECKED
    assert state_of(site) == "P"


# --- a duplicate arrives at each gap of a collection ------------------------------------------


def arrive(site: Site) -> None:
    site.store.chunks.put(new_chunk(RAW, is_expected=True), [V2])


@pytest.mark.parametrize("gap", ["keys", "rados.chunk-removed"])
def test_a_duplicate_that_arrives_before_the_removal_keeps_the_chunk(site: Site, gap: str) -> None:
    condemned(site)
    at_gap(site, gap, arrive)
    site.collect()
    assert (state_of(site), tags(site)) == ("V", {V2})
    assert site.store.chunks.read(FP) == RAW


def test_a_duplicate_that_arrives_after_the_removal_stores_the_chunk_again(site: Site) -> None:
    condemned(site)
    at_gap(site, "rados.candidate-dropped", arrive)
    site.collect()
    assert (state_of(site), tags(site)) == ("V", {V2})
    assert site.store.chunks.read(FP) == RAW


def test_a_candidate_that_came_back_meanwhile_is_not_dropped(site: Site) -> None:
    """A collection has seen a reference that is gone when it drops the candidate."""
    condemned(site)
    arrive(site)

    def retire_again(site: Site) -> None:
        left = site.store.chunks.drop_references(FP, [V2])
        assert left is not None
        site.store.chunks.condemn([left])

    at_gap(site, "rados.candidate-dropped", retire_again)
    assert site.collect().removed == 0
    assert site.collect().removed == 1
    assert state_of(site) is None


def test_a_collection_between_candidate_and_flag_leaks_nothing(site: Site) -> None:
    chunks = site.store.chunks
    chunks.put(new_chunk(RAW), [V1])
    left = chunks.drop_references(FP, [V1])
    assert left is not None
    at_gap(site, "rados.chunk-invalidated", collect_all)
    chunks.condemn([left])
    assert state_of(site) is None


def collect_all(site: Site) -> None:
    site.collect()


def condemned(site: Site) -> None:
    """A chunk that is a candidate."""
    chunks = site.store.chunks
    chunks.put(new_chunk(RAW), [V1])
    left = chunks.drop_references(FP, [V1])
    assert left is not None
    chunks.condemn([left])
    assert state_of(site) == "I"


def at_gap(site: Site, gap: str, act: Callable[[Site], None]) -> None:
    """Act once as another host, just before the first operation of this kind on a chunk."""
    collecting = site.cluster
    keys_read = 0

    def gate(operation: str) -> None:
        nonlocal keys_read
        keys_read += operation == "keys"
        # A collection reads the keys of each table of candidates, and then those of the chunk.
        if operation != gap or (gap == "keys" and keys_read < FP[0] + 2):
            return
        collecting.gate = None
        with site.another() as other:
            act(other)

    collecting.gate = gate
