"""Which files pay, against a second way to say the same; and what a ledger remembers."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format.recipe import ENTRY_BYTES as ROW_BYTES
from dedupd_core.format.recipe import HEADER_BYTES as NODE_BYTES
from dedupd_core.format.table import ENTRY_BYTES
from dedupd_core.units import KIB
from tests.native.test_new_chunks import cut, packed, unpacked
from tests.support.lab import noise

MODES = {
    native.ingest.JUDGE: "judge",
    native.ingest.STORE: "store",
    native.ingest.LEAVE: "leave",
    native.ingest.BEGIN: "begin",
}
NOT_STORED = 2**64 - 1
FIRST, FIRST_AS_IS = 7 << 32, (9 << 32) + 5

parts = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0, 3 * KIB, 20 * KIB])), min_size=1, max_size=4
)
files_of_parts = st.lists(parts, min_size=1, max_size=6)


def content(made_of: list[tuple[int, int]]) -> bytes:
    return b"".join(noise(10 * KIB, seed) + bytes(zeros) for seed, zeros in made_of)


def record_bytes(stored: int) -> int:
    return fmt.record_size(stored) + ENTRY_BYTES


def recipe_bytes(rows: int) -> int:
    return 2 * (fmt.RECORD_HEADER_BYTES + ENTRY_BYTES + NODE_BYTES + rows * ROW_BYTES)


@given(
    files_of_parts,
    st.lists(st.sampled_from(sorted(MODES)), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.lists(st.integers(0, 60), max_size=8),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.data(),
)
def test_a_file_is_taken_where_its_blocks_are_more_than_what_is_new_of_it(
    files: list[list[tuple[int, int]]],
    modes: list[int],
    as_is: list[bool],
    later_at: list[int],
    least: float,
    data: st.DataObject,
) -> None:
    contents = [content(made_of) for made_of in files]
    count = len(contents)
    found = cut(contents)
    placed = found.place(bytes(8 * len(found)), bytes(as_is[:count]))
    prints = [found.fingerprints[at : at + 32] for at in range(0, len(found) * 32, 32)]
    new = [
        [one.fingerprints[at : at + 32] for at in range(0, len(one) * 32, 32)] for one in placed.new
    ]
    sizes = {one: data.draw(st.integers(1, 5000)) for group in new for one in group}
    late = {prints[at]: 5000 + at for at in later_at if at < len(prints)}
    freed = [data.draw(st.integers(0, 60)) * KIB for _ in contents]
    judgement = placed.judge(
        (packed([late.get(i, 0) for i in new[0]]), packed([late.get(i, 0) for i in new[1]])),
        (u32([sizes[one] for one in new[0]]), u32([sizes[one] for one in new[1]])),
        bytes(modes[:count]),
        packed(freed),
        native.admission.Recall(),
        least,
    )

    chunks: list[list[int]] = []
    at = 0
    for number in unpacked(found.counts, "I"):
        chunks.append(list(range(at, at + number)))
        at += number
    own = [{prints[n] for n in one if not found.zero[n]} for one in chunks]
    ends = unpacked(found.ends, "I")
    kept: set[bytes] = set()
    for number, mine in enumerate(own):
        fresh = {one for one in mine if one not in late and one not in kept}
        cost = sum(record_bytes(sizes[one]) // sum(one in o for o in own) for one in fresh)
        if len(chunks[number]) > 1 or not mine:
            cost += recipe_bytes(len(chunks[number]))
        lengths = [ends[n] - (ends[n - 1] if n else 0) for n in chunks[number]]
        solid = sum(
            length for n, length in zip(chunks[number], lengths, strict=True) if not found.zero[n]
        )
        blocks = solid if MODES[modes[number]] == "begin" else freed[number]
        pays = least == 0 or (blocks > cost and blocks - cost >= blocks * least)
        taken = {"store": True, "leave": False}.get(MODES[modes[number]], pays)
        assert (judgement.costs[number], judgement.unique[number]) == (cost, len(fresh))
        assert (judgement.taken[number], judgement.solid[number]) == (taken, solid)
        if taken:
            kept |= fresh
    flags = [[one in kept for one in group] for group in new]
    assert [list(map(bool, one)) for one in judgement.kept] == flags
    ranks = [
        {one: first + n for n, one in enumerate(one for one in group if one in kept)}
        for group, first in zip(new, (FIRST, FIRST_AS_IS), strict=True)
    ]
    expected = [
        0
        if found.zero[n]
        else late.get(one) or ranks[0].get(one) or ranks[1].get(one) or NOT_STORED
        for n, one in enumerate(prints)
    ]
    ids = judgement.ids(FIRST, FIRST_AS_IS)
    assert unpacked(ids, "Q") == expected
    for number, one in enumerate(chunks):
        if any(expected[n] == NOT_STORED for n in one):
            with pytest.raises(ValueError, match="not stored"):
                found.rows(number, ids)
        else:
            assert [row[0] for row in found.rows(number, ids)] == [expected[n] for n in one]


def u32(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def test_a_wanted_chunk_costs_nothing() -> None:
    contents = [noise(10 * KIB, 1), noise(10 * KIB, 2)]
    found = cut(contents)
    ledger = native.admission.Ledger(b"", 0.05, rows_max=9, notes_max=99)
    for inode in (5, 6):
        ledger.leave((inode, 1, 1, 1), 0.0, 1)
        ledger.note(inode, b"".join(found.fingerprints[at : at + 8] for at in range(0, 32, 32)))
    recall = ledger.snapshot(True).join(None, 100)
    assert recall.inodes == {5, 6} and recall.wanted == 1
    placed = found.place(bytes(8 * len(found)), bytes(2))
    new = placed.new[0]
    lengths = unpacked(new.lengths, "I")
    judgement = placed.judge(
        (bytes(8 * len(new)), b""),
        (new.lengths, b""),
        bytes([native.ingest.JUDGE]) * 2,
        packed([12 * KIB] * 2),
        recall,
        0.05,
    )
    counts = unpacked(found.counts, "I")
    without_first = sum(map(record_bytes, lengths[1 : counts[0]]))
    assert judgement.costs[0] - (recipe_bytes(counts[0]) if counts[0] > 1 else 0) == without_first


def test_chunks_of_one_file_alone_recall_nobody() -> None:
    ledger = native.admission.Ledger(b"", 0.05, rows_max=9, notes_max=99)
    ledger.leave((5, 1, 1, 1), 0.0, 1)
    ledger.note(5, packed([1, 2, 2, 1]))
    ledger.note(6, packed([1, 2]))  # of a file that was not left
    assert len(ledger.snapshot(True).join(None, 100)) == 0


def test_a_file_is_recalled_where_enough_of_its_chunks_are_elsewhere() -> None:
    ledger = native.admission.Ledger(b"", 0.05, rows_max=9, notes_max=99)
    ledger.leave((5, 1, 1, 1), 0.0, 10)
    ledger.note(5, packed(list(range(100))))
    ledger.leave((6, 1, 1, 1), 0.0, 1)
    ledger.note(6, packed([1, 2, 3]))
    assert ledger.snapshot(True).join(None, 100).inodes == {6}
    ledger.leave((7, 1, 1, 1), 0.0, 1)
    ledger.note(7, packed([4, 5, 6]))
    assert ledger.snapshot(True).join(None, 100).inodes == {5, 6, 7}


def test_more_files_than_there_is_memory_for_are_forgotten() -> None:
    ledger = native.admission.Ledger(b"", 0.05, rows_max=2, notes_max=3)
    for inode in range(1, 5):
        ledger.leave((inode, 1, 1, 1), 0.0, 1)
    assert ledger.snapshot(True).files == 2
    ledger.note(1, packed([1, 2, 3]))
    assert ledger.is_full
