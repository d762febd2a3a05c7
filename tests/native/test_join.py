"""The join of reconciliation: what two sets of chunks have in common, as a dictionary would say."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id

SEED = 77


def entry(content: int, state: tbl.State = tbl.State.LIVE) -> tbl.TableEntry:
    fingerprint = native.hashing.fingerprint(b"%d" % content)
    return tbl.TableEntry(fingerprint, 128, 0, 900, 1000, 0, state, 0)


def pack(contents: list[int]) -> bytes:
    return b"".join(tbl.encode_entry(entry(content), SEED) for content in contents)


def pairs(found: bytes) -> list[tuple[int, int]]:
    ids = memoryview(found).cast("Q").tolist()
    return list(zip(ids[::2], ids[1::2], strict=True))


contents = st.lists(st.integers(0, 60), max_size=80)


@given(st.lists(contents, max_size=4), st.lists(contents, max_size=4), st.integers(0, 2**64 - 1))
def test_a_join_equals_a_dictionary(new: list[list[int]], old: list[list[int]], seed: int) -> None:
    join = native.upkeep.Join(sum(map(len, new)), seed=seed)
    own = {make_id(n + 1, at): c for n, part in enumerate(new) for at, c in enumerate(part)}
    others = {make_id(n + 50, at): c for n, part in enumerate(old) for at, c in enumerate(part)}
    for number, part in enumerate(new):
        assert join.add(pack(part), SEED, make_id(number + 1, 0))
    assert len(join) == len(own)
    found = [
        pair
        for number, part in enumerate(old)
        for pair in pairs(join.probe(pack(part), SEED, make_id(number + 50, 0)))
    ]
    first: dict[int, int] = {}
    for chunk_id, content in others.items():
        first.setdefault(content, chunk_id)
    assert dict(found) == {i: first[c] for i, c in own.items() if c in first}
    assert len(found) == len(dict(found))
    # What is left over is compared with itself: one of each stays, and no pair leads to a pair.
    rest = dict(pairs(join.finish()))
    alone = {i: c for i, c in own.items() if c not in first}
    kept = set(alone) - set(rest)
    assert sorted(alone[i] for i in kept) == sorted(set(alone.values()))
    assert all(alone[i] == alone[into] and into not in rest for i, into in rest.items())


def test_only_live_and_sound_entries_count() -> None:
    join = native.upkeep.Join(10)
    states = [tbl.encode_entry(entry(state, state), SEED) for state in tbl.State]
    torn = bytearray(tbl.encode_entry(entry(99), SEED))
    torn[40] ^= 1
    assert join.add(b"".join(states) + torn, SEED, make_id(1, 0))
    assert len(join) == 1
    other = b"".join(tbl.encode_entry(entry(n), SEED) for n in (*tbl.State, 99))
    assert pairs(join.probe(other, SEED, make_id(2, 0))) == [(make_id(1, 0), make_id(2, 0))]


def test_a_chunk_is_not_merged_into_itself() -> None:
    join = native.upkeep.Join(10)
    data = pack([1, 2, 3])
    join.add(data, SEED, make_id(1, 0))
    assert join.probe(data, SEED, make_id(1, 0)) == b""
    assert join.finish() == b""


def test_what_has_no_room_is_refused_and_changes_nothing() -> None:
    join = native.upkeep.Join(4)
    assert join.add(pack([1, 2, 3]), SEED, make_id(1, 0))
    assert not join.add(pack([4, 5]), SEED, make_id(2, 0))
    assert join.add(pack([6]), SEED, make_id(3, 0))
    found = pairs(join.probe(pack([4, 5, 6]), SEED, make_id(9, 0)))
    assert found == [(make_id(3, 0), make_id(9, 2))]


@pytest.mark.parametrize("bits", [1, 3])
def test_a_sample_is_the_same_part_of_both_sets(bits: int) -> None:
    rng = random.Random(bits)
    old = [rng.randrange(10**9) for _ in range(4000)]
    new = old[:2000] + [rng.randrange(10**9, 2 * 10**9) for _ in range(2000)]
    join = native.upkeep.Join(4000, bits)
    join.add(pack(new), SEED, make_id(1, 0))
    found = pairs(join.probe(pack(old), SEED, make_id(2, 0)))
    assert all(own - make_id(1, 0) == into - make_id(2, 0) for own, into in found)
    assert len(found) << bits == pytest.approx(2000, rel=0.25)


def test_a_chunk_takes_fourteen_bytes() -> None:
    join = native.upkeep.Join(1_000_000)
    assert join.memory_bytes <= 14 * 1_000_000
    assert join.add(b"", SEED, make_id(1, 0))


def test_a_full_join_still_ends() -> None:
    join = native.upkeep.Join(1000)
    assert join.add(pack(list(range(1000))), SEED, make_id(1, 0))
    assert len(join) == 1000
    assert join.probe(pack(list(range(1000, 2000))), SEED, make_id(2, 0)) == b""
