"""What native code does to marks and lengths, held against the same in plain Python."""

from array import array
from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import State, TableEntry
from dedupd_core.native.upkeep import Marks, Needs
from tests.support.lab import noise

COLUMNS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=70)


def packed(column: list[int]) -> bytes:
    return array("Q", column).tobytes()


@given(COLUMNS, COLUMNS, COLUMNS, st.sets(st.integers(0, 79)))
def test_an_earlier_run_is_resumed_if_its_tree_named_no_more(
    now: list[int], wanted: list[int], more: list[int], unread: set[int]
) -> None:
    """``more`` is what nodes above needed of each node, beyond what stubs wanted."""
    needs = Needs({1: len(now)})
    needs.need_packed(packed([make_id(1, at) for at in range(len(now))]), packed(now))
    needed = [max(pair) for pair in zip_longest(wanted, more, fillvalue=0)]
    bits = sum(1 << at for at in unread).to_bytes(10, "little")
    is_resumed = needs.resume(1, packed(wanted), packed(needed), bits)
    pairs = list(zip_longest(now, wanted, fillvalue=0))
    no_more = all(then <= length for length, then in pairs) and not any(needed[len(now) :])
    assert is_resumed == no_more
    if not is_resumed:
        assert needs.lengths(1) == packed(now)
        return
    known = [then for then, _ in zip_longest(needed, now, fillvalue=0)][: len(now)]
    assert needs.lengths(1) == packed([max(pair) for pair in zip(now, known, strict=True)])
    fresh = int.from_bytes(needs.fresh(1), "little")
    for at, (length, then) in enumerate(zip(now, known, strict=True)):
        assert fresh >> at & 1 == (length > then or at in unread)
        assert make_id(1, at) in needs
    assert fresh.bit_length() <= len(now)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 2**64 - 1))
def test_the_digest_is_of_the_fingerprints_of_what_is_needed(lengths: list[int], seed: int) -> None:
    table = [noise(64, at) for at in range(30)]
    needed = b"".join(row[:32] for row, length in zip(table, lengths, strict=False) if length)
    found = native.upkeep.digest_needed(b"".join(table), packed(lengths), seed)
    assert found == native.hashing.xxh3_64(needed, seed)


@given(st.integers(0, 40), st.sets(st.integers(0, 39)), st.sets(st.integers(0, 47)))
def test_bits_are_taken_over_only_where_there_are_records(
    count: int, own: set[int], others: set[int]
) -> None:
    marks = Marks({1: count})
    marks.add(make_id(1, at) for at in own if at < count)
    before = marks.bits(1)
    bits = sum(1 << at for at in others).to_bytes(6, "little")
    is_taken = marks.merge(1, bits)
    assert is_taken == all(at < count for at in others)
    expected = {at for at in own if at < count} | (others if is_taken else set())
    assert {at for at in range(count) if make_id(1, at) in marks} == expected
    assert is_taken or marks.bits(1) == before
    assert marks.merge(2, bits) == (not others)


# --- what tables say of marked records ----------------------------------------------------------

COUNT = 20
"""Records of the container that tables are made of here; its number is 1, and there is no other."""

TARGETS = st.one_of(
    st.just(0), st.integers(1, 5), st.builds(make_id, st.just(1), st.integers(0, 25))
)
ROWS = st.lists(st.tuples(st.sampled_from(State), TARGETS), min_size=COUNT, max_size=COUNT)
SOME = st.sets(st.integers(0, COUNT - 1))


def table_of(rows: list[tuple[State, int]]) -> bytes:
    entries = [TableEntry(bytes(32), 0, target, 9, 9, 0, state, 0) for state, target in rows]
    return b"".join(tbl.encode_entry(entry, 7) for entry in entries)


def marked(ordinals: set[int]) -> Marks:
    marks = Marks({1: COUNT})
    marks.add(make_id(1, at) for at in ordinals)
    return marks


def ordinals(marks: Marks) -> set[int]:
    return {at for at in range(COUNT) if make_id(1, at) in marks}


def is_repeated(target: int, needed: set[int]) -> bool:
    return target in needed or target not in {make_id(1, at) for at in range(COUNT)}


@given(ROWS, SOME)
def test_what_marked_records_lead_to_is_marked(
    rows: list[tuple[State, int]], some: set[int]
) -> None:
    marks = marked(some)
    followed = marks.follow(make_id(1, 0), table_of(rows))
    needed = {make_id(1, at) for at in some}
    unknown = []
    for at, (state, target) in enumerate(rows):
        own = make_id(1, at)
        if state == State.MERGED and target and own in needed and target not in needed:
            if is_repeated(target, needed):
                unknown.append(target)
            else:
                needed.add(target)
        elif state == State.LIVE and target and is_repeated(target, needed):
            needed.add(own)
    assert {make_id(1, at) for at in ordinals(marks)} == needed
    assert followed.found_any == (len(needed) > len(some))
    assert marks.strays == sorted(set(unknown))
    assert followed.epoch == max((t for s, t in rows if s == State.ORPHANED), default=0)


@given(ROWS, SOME, SOME)
def test_copies_are_needed_as_what_they_repeat(
    rows: list[tuple[State, int]], some: set[int], before: set[int]
) -> None:
    copies, of = marked(before), marked(some)
    epoch = copies.add_copies(make_id(1, 0), table_of(rows), of)
    needed = {make_id(1, at) for at in some}
    assert ordinals(copies) == before | {
        at
        for at, (state, target) in enumerate(rows)
        if state != State.ORPHANED and is_repeated(target, needed)
    }
    assert epoch == max((t for s, t in rows if s == State.ORPHANED), default=0)


@given(ROWS, SOME)
def test_entries_that_do_not_fit_the_marks_are_found(
    rows: list[tuple[State, int]], some: set[int]
) -> None:
    places, orphans = native.upkeep.misfits(table_of(rows), marked(some).bits(1))
    unneeded = (State.ORPHANED, State.TOMBSTONE)
    assert list(memoryview(places).cast("I")) == [
        at
        for at, (state, _) in enumerate(rows)
        if state != State.TOMBSTONE and (at in some) == (state in unneeded)
    ]
    assert orphans == sum(state == State.ORPHANED for state, _ in rows)
