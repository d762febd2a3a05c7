"""The shares of a job's memory add up to no more than the policy gives it."""

from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.config.memory_budget import (
    RECONCILE_FIXED_BYTES,
    REFINE_FIXED_BYTES,
    capacity,
    index_bytes,
    index_share,
    memory_for,
    optimize_shares,
    reconcile_join_bytes,
    refine_similar_bytes,
    send_ahead_bytes,
)
from dedupd_core.config.policy import IndexChoice, Policy
from dedupd_core.units import MIB

memories = st.integers(72 * MIB, 1 << 50)


@given(memories)
def test_the_shares_of_an_optimize_run_fit_its_memory(memory_bytes: int) -> None:
    shares = optimize_shares(memory_bytes, index_share(memory_bytes))
    assert min(shares) > 0
    assert sum(shares) <= memory_bytes


@given(memories)
def test_the_shares_of_a_reconcile_run_fit_its_memory(memory_bytes: int) -> None:
    assert 0 < reconcile_join_bytes(memory_bytes) <= memory_bytes - RECONCILE_FIXED_BYTES


@given(memories)
def test_what_is_read_ahead_for_a_stream_is_an_eighth(memory_bytes: int) -> None:
    assert send_ahead_bytes(memory_bytes) <= memory_bytes / 8


@given(memories, st.sampled_from(IndexChoice))
def test_an_index_at_its_capacity_takes_its_share(memory_bytes: int, choice: IndexChoice) -> None:
    entries = capacity(choice, memory_bytes)
    assert index_bytes(choice, entries) <= index_share(memory_bytes)
    assert index_bytes(choice, entries + 1) + 1 >= index_share(memory_bytes)


@given(st.integers(0, 1 << 40), st.sampled_from(IndexChoice))
def test_the_memory_for_an_index_is_enough_for_it(entries: int, choice: IndexChoice) -> None:
    assert capacity(choice, max(72 * MIB, memory_for(choice, entries))) >= entries - 1


def test_the_shares_by_default_are_those_of_the_table() -> None:
    memory_bytes = Policy().memory_bytes
    assert optimize_shares(memory_bytes, index_share(memory_bytes)) == (
        *(48 * MIB, 64 * MIB, 8 * MIB, 72 * MIB),
    )
    assert RECONCILE_FIXED_BYTES == 64 * MIB and REFINE_FIXED_BYTES == 96 * MIB
    assert reconcile_join_bytes(memory_bytes) == 96 * MIB
    assert refine_similar_bytes(memory_bytes) == 80 * MIB
