"""Recipe nodes: what is encoded comes back, and what cannot be one is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import DamagedRecipe
from dedupd_core.format import recipe
from dedupd_core.format.ids import HOLE, container_of, make_id, ordinal_of, show_id
from tests.support.formats import HASH, U32
from tests.support.recipe_nodes import decode_node

IDS = st.integers(1, 2**64 - 1)
chunk_rows = st.tuples(IDS, st.integers(1, 2**32 - 1), HASH)
hole_rows = st.tuples(st.just(HOLE), st.integers(1, 2**40), st.just(bytes(32)))
leaves = st.lists(chunk_rows | hole_rows, min_size=1, max_size=50)
inner_rows = st.lists(st.tuples(IDS, st.integers(1, 2**50), HASH), min_size=1, max_size=50)
CONTENT = b"0123456789abcdef"


@given(leaves)
def test_a_leaf_comes_back_as_it_was(rows: list[tuple[int, int, bytes]]) -> None:
    node = decode_node(recipe.encode_node(0, CONTENT, rows), "here")
    assert (node.level, node.content) == (0, CONTENT)
    assert list(zip(node.ids, node.lengths, node.fingerprint_checks, strict=True)) == [
        (i, n, 0 if i == HOLE else recipe.fingerprint_check(fp)) for i, n, fp in rows
    ]
    assert node.length == sum(n for _, n, _ in rows)
    assert list(node.offsets) == [sum(n for _, n, _ in rows[:at]) for at in range(len(rows))]


@given(st.integers(1, 5), inner_rows)
def test_an_inner_node_comes_back_as_it_was(level: int, rows: list[tuple[int, int, bytes]]) -> None:
    node = decode_node(recipe.encode_node(level, CONTENT, rows), "here")
    assert node.level == level
    assert list(zip(node.ids, node.lengths, strict=True)) == [(i, n) for i, n, _ in rows]
    assert not any(node.fingerprint_checks)


@given(leaves, st.integers(1, 100))
def test_a_node_cut_short_or_drawn_out_is_refused(
    rows: list[tuple[int, int, bytes]], amount: int
) -> None:
    payload = recipe.encode_node(0, CONTENT, rows)
    for wrong in (payload[:-amount], payload + bytes(amount)):
        with pytest.raises(DamagedRecipe, match="here"):
            decode_node(wrong, "here")


def test_lengths_that_do_not_add_up_are_refused() -> None:
    payload = bytearray(recipe.encode_node(0, CONTENT, [(7, 100, bytes(32)), (8, 50, bytes(32))]))
    struct.pack_into("<Q", payload, recipe.HEADER_BYTES + 8, 101)
    with pytest.raises(DamagedRecipe, match="do not add up"):
        decode_node(bytes(payload), "here")


def test_a_chunk_of_no_length_is_refused() -> None:
    payload = recipe.encode_node(1, CONTENT, [(7, 100, b""), (8, 0, b"")])
    with pytest.raises(DamagedRecipe, match="do not add up"):
        decode_node(payload, "here")


@pytest.mark.parametrize("position", [0, 4], ids=["magic", "format"])
def test_what_is_no_recipe_of_this_format_is_refused(position: int) -> None:
    payload = bytearray(recipe.encode_node(0, CONTENT, [(7, 100, bytes(32))]))
    payload[position] ^= 0x40
    with pytest.raises(DamagedRecipe, match="not a recipe of format 1"):
        decode_node(bytes(payload), "here")


def test_a_full_leaf_reads_in_one_small_piece() -> None:
    rows = [(at + 1, 1 << 16, bytes(32)) for at in range(recipe.FANOUT_MAX)]
    payload = recipe.encode_node(0, CONTENT, rows)
    assert len(payload) < 70_000
    assert len(decode_node(payload, "here").ids) == recipe.FANOUT_MAX


@given(st.lists(st.tuples(HASH, U32), max_size=5), st.lists(st.tuples(HASH, U32), max_size=5))
def test_equal_digests_mean_equal_content(
    one: list[tuple[bytes, int]], other: list[tuple[bytes, int]]
) -> None:
    assert (recipe.content_digest(one) == recipe.content_digest(other)) == (one == other)


@given(U32, U32)
def test_an_id_is_a_container_and_an_ordinal(container: int, ordinal: int) -> None:
    chunk = make_id(container, ordinal)
    assert (container_of(chunk), ordinal_of(chunk)) == (container, ordinal)
    assert show_id(chunk) == f"{container:08d}:{ordinal}"
