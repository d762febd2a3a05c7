"""The indexes in little RAM are a dictionary in all that they say."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id
from tests.support.indexes import KINDS, Indexed, ask, indexed
from tests.support.lab import noise

fingerprints = st.integers(0, 300).map(lambda n: native.hashing.fingerprint(b"%d" % n))


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest) -> Iterator[Indexed]:
    with indexed(request.param) as made:
        yield made


# --- a dictionary -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(st.tuples(fingerprints, st.integers(1, 2**64 - 1)), max_size=300),
    st.lists(fingerprints, max_size=50),
)
def test_it_equals_a_dictionary(
    kind: str, inserted: list[tuple[bytes, int]], asked: list[bytes]
) -> None:
    with indexed(kind) as lab:
        index, oracle = lab.open(), dict[bytes, int]()
        for fingerprint, chunk in inserted:
            index.insert(fingerprint, [chunk])
            oracle.setdefault(fingerprint, chunk)
        assert list(index.lookup(b"".join(asked))) == [oracle.get(one, 0) for one in asked]
        assert len(index) == len(oracle)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 40)),
        st.tuples(st.just("lose"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["next job", "crash", "rebuild"]), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(steps)
def test_through_jobs_crashes_and_changes_of_state_it_equals_a_dictionary(
    kind: str,
    done: list[tuple[str, int]],
) -> None:
    with indexed(kind) as lab:
        index, oracle = lab.open(page_entries=3, cache_entries=6), dict[bytes, int]()
        for step, n in done:
            content = noise(100 + n, n)
            if step == "put" and content not in oracle:
                oracle[content] = lab.append(index, content)
            elif step == "lose" and content in oracle:
                lab.change(oracle.pop(content), tbl.State.TOMBSTONE)
                index = lab.open(page_entries=3, cache_entries=6)
            elif step == "rebuild":
                native.testing.rebuild(index._native)
            elif step in ("next job", "crash"):
                lab.store.writer.sync()
                if step == "next job":
                    index.save()
                index = lab.open(page_entries=3, cache_entries=6)
            asked = [noise(100 + n, n) for n in range(41)]
            found = index.lookup(b"".join(map(native.hashing.fingerprint, asked)))
            assert list(found) == [oracle.get(one, 0) for one in asked]


def test_fingerprints_with_one_hash_are_told_apart(lab: Indexed) -> None:
    index = lab.open()
    alike = [bytes(24) + n.to_bytes(8, "little") for n in range(500)]
    index.insert(b"".join(alike), range(1 << 32, (1 << 32) + 500))
    assert list(index.lookup(b"".join(alike))) == list(range(1 << 32, (1 << 32) + 500))
    assert not any(index.lookup(bytes(24) + bytes.fromhex("ffffffff00000000")))


def test_entries_on_disk_with_equal_signatures_are_told_apart(lab: Indexed) -> None:
    lab.fill(100)
    index = lab.open()
    asked = b"".join(
        native.hashing.fingerprint(one)[:8] + bytes(24) for one in lab.store.contents.values()
    )
    assert not any(index.lookup(asked))
    assert index.counters().false_positives >= 100
    lab.expect_all(index)


@pytest.mark.parametrize("count", [0, 1, 2000])
def test_every_chunk_of_a_store_is_found(lab: Indexed, count: int) -> None:
    lab.fill(count)
    index = lab.open()
    lab.expect_all(index)
    assert len(index) == count


def test_it_grows_with_what_is_inserted(lab: Indexed) -> None:
    index = lab.open()
    rows = [native.hashing.fingerprint(b"%d" % n) for n in range(60_000)]
    for at in range(0, len(rows), 1000):
        index.insert(b"".join(rows[at : at + 1000]), range((9 << 32) + at, (9 << 32) + at + 1000))
    assert list(index.lookup(b"".join(rows))) == list(range(9 << 32, (9 << 32) + 60_000))


# --- the log and the cache --------------------------------------------------------------------


def test_a_run_of_duplicates_costs_one_read_for_a_page(lab: Indexed) -> None:
    lab.fill(50)
    index = lab.open(page_entries=1000)
    lab.expect_all(index)
    assert index.counters().disk_reads == 1
    assert index.counters().hits == 50


def test_chunks_that_are_not_known_cost_next_to_no_read(lab: Indexed) -> None:
    lab.fill(50)
    index = lab.open()
    index.lookup(b"".join(native.hashing.fingerprint(b"new %d" % n) for n in range(10_000)))
    assert index.counters().disk_reads <= 10


def test_the_cache_keeps_no_more_than_it_may(lab: Indexed) -> None:
    lab.fill(100)
    index = lab.open(page_entries=1, cache_entries=2)
    first, second, third = (native.hashing.fingerprint(noise(300, n)) for n in range(3))
    index.lookup(first + second + third + first)
    assert index.counters().disk_reads == 4
    index.lookup(first + third)
    assert index.counters().disk_reads == 4


def test_a_chunk_is_found_before_and_after_its_entry_is_on_disk(lab: Indexed) -> None:
    index = lab.open()
    fingerprint = native.hashing.fingerprint(noise(300, 1))
    index.insert(fingerprint, [make_id(1, 0)])
    assert index.lookup(fingerprint)[0] == make_id(1, 0)
    assert lab.store.append(noise(300, 1)) == [make_id(1, 0)]
    # So many that those on disk by now are let go of.
    others = b"".join(native.hashing.fingerprint(b"other %d" % n) for n in range(20_000))
    index.insert(others, range(2 << 32, (2 << 32) + 20_000))
    assert index.counters().disk_reads == 0
    assert index.lookup(fingerprint)[0] == make_id(1, 0)
    assert index.counters().disk_reads >= 1


@pytest.mark.parametrize("state", [s for s in tbl.State if s not in tbl.USABLE])
def test_a_chunk_that_is_of_no_use_any_more_is_not_offered(lab: Indexed, state: tbl.State) -> None:
    lab.fill(10)
    index = lab.open()
    lab.change(make_id(1, 3), state)
    assert ask(index, noise(300, 3)) == 0
    assert ask(index, noise(300, 4)) == make_id(1, 4)


def test_an_orphan_that_was_found_is_told_of_once(lab: Indexed) -> None:
    lab.fill(10)
    lab.change(make_id(1, 3), tbl.State.ORPHANED)
    index = lab.open()
    assert ask(index, noise(300, 4)) == make_id(1, 4)
    assert index.take_found_orphans() == set()
    assert ask(index, noise(300, 3)) == make_id(1, 3)
    assert index.take_found_orphans() == {make_id(1, 3)}
    assert ask(index, noise(300, 3)) == make_id(1, 3)
    assert index.take_found_orphans() == set()
