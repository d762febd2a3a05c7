"""Chunks of other partitions are found by a sample of them, and no other chunk is taken for one."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.index.hooks import HookedIndex, zeros_for
from dedupd_core.store.chunk_index import EmptyIndex
from tests.support.indexes import Indexed, indexed
from tests.support.lab import noise

CHUNKS = 3000


@pytest.fixture
def lab() -> Iterator[Indexed]:
    with indexed(container_bytes_max=8 << 20) as made:
        yield made


def hooked(lab: Indexed, share_bytes: int) -> HookedIndex:
    """The hooks of all that a store has, beside a partition that has nothing."""
    count = max(1, len(lab.store.contents))
    index = HookedIndex(EmptyIndex(), lab.directory, entries=count, share_bytes=share_bytes)
    for container in lab.store.reopen():
        index.load_other(container)
    return index


def packed(contents: list[bytes]) -> bytes:
    return b"".join(map(native.hashing.fingerprint, contents))


def test_a_run_that_another_partition_has_is_found_by_its_hooks(lab: Indexed) -> None:
    lab.fill(CHUNKS)
    index = hooked(lab, CHUNKS)
    assert index.zeros == 4
    known = list(lab.store.contents.items())
    found = 0
    for at in range(0, CHUNKS, 100):
        run = known[at : at + 100]
        ids = index.lookup(packed([content for _, content in run]))
        assert all(one in (0, chunk) for one, (chunk, _) in zip(ids, run, strict=True))
        found += sum(one != 0 for one in ids)
    counters = index.counters()
    assert found == counters.hits == counters.hits_of_others > 0.97 * CHUNKS
    assert counters.disk_reads < CHUNKS / 20
    assert counters.memory_bytes < 200_000


def test_with_room_for_all_every_single_chunk_is_found(lab: Indexed) -> None:
    lab.fill(CHUNKS)
    index = hooked(lab, 1 << 20)
    assert index.zeros == 0
    for chunk, content in list(lab.store.contents.items())[::7]:
        assert list(index.lookup(packed([content]))) == [chunk]


def test_chunks_that_nobody_has_cost_next_to_no_read(lab: Indexed) -> None:
    lab.fill(CHUNKS)
    index = hooked(lab, 1 << 20)
    asked = [b"absent %d" % n for n in range(20_000)]
    assert not any(index.lookup(packed(asked)))
    assert index.counters().disk_reads < 0.005 * len(asked)


def test_what_the_partition_has_itself_is_not_looked_for_elsewhere(lab: Indexed) -> None:
    lab.fill(50)

    class Own(EmptyIndex):
        def lookup(self, fingerprints: bytes) -> "memoryview[int]":
            return memoryview(bytes([7, *bytes(7)]) * (len(fingerprints) // 32)).cast("Q")

    index = HookedIndex(Own(), lab.directory, entries=50, share_bytes=1 << 20)
    for container in lab.store.reopen():
        index.load_other(container)
    assert set(index.lookup(packed(list(lab.store.contents.values())))) == {7}
    assert index.counters().disk_reads == index.counters().hits_of_others == 0


steps = st.lists(
    st.tuples(
        st.sampled_from([tbl.State.LIVE, tbl.State.ORPHANED, tbl.State.TOMBSTONE]),
        st.integers(0, 40),
    ),
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(steps, st.sampled_from([60, 1 << 20]))
def test_only_what_may_be_named_is_offered_and_orphans_are_told_of(
    done: list[tuple[tbl.State, int]], share_bytes: int
) -> None:
    with indexed() as lab:
        lab.fill(41)
        chunks = list(lab.store.contents)
        states = dict.fromkeys(chunks, tbl.State.LIVE)
        for state, n in done:
            if states[chunks[n]] is not tbl.State.TOMBSTONE:
                lab.change(chunks[n], state)
                states[chunks[n]] = state
        index = hooked(lab, share_bytes)
        ids = list(index.lookup(packed([noise(300, n) for n in range(41)])))
        for chunk, found in zip(chunks, ids, strict=True):
            assert found in (0, chunk)
            if states[chunk] is tbl.State.TOMBSTONE:
                assert found == 0
            elif index.zeros == 0:
                assert found == chunk
        orphans = {one for one in ids if states.get(one) is tbl.State.ORPHANED}
        assert index.take_found_orphans() == orphans
        assert index.take_found_orphans() == set()


@given(st.integers(0, 1 << 40), st.integers(64, 1 << 30))
def test_hooks_are_as_dense_as_memory_allows(entries: int, table_bytes: int) -> None:
    zeros = zeros_for(entries, table_bytes)
    assert (entries >> zeros) * 6.5 <= table_bytes
    assert zeros == 0 or (entries >> zeros - 1) * 6.5 > table_bytes
