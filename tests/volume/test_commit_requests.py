"""Requests to commit files, held against plain lists of them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.format.recipe import RecipeRef
from dedupd_core.native.commit import CommitRequests
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.commit_requests import CommitRequest
from tests.support.lab import requests_of

numbers = st.integers(0, 2**63 - 1)
identities = st.builds(
    FileIdentity, numbers, numbers.map(lambda n: n >> 8), st.integers(-(2**62), 2**62), numbers
)
recipes = st.builds(RecipeRef, numbers, st.binary(min_size=16, max_size=16), st.booleans())
paths = st.binary(min_size=1, max_size=20).map(lambda path: path.replace(b"\0", b"/"))
previous = st.none() | st.binary(max_size=3)
requests = st.builds(CommitRequest, paths, identities, recipes, previous, st.booleans())


def listed(several: CommitRequests) -> list[CommitRequest]:
    return [CommitRequest.of(fields) for fields in several]


@given(st.lists(requests, max_size=12))
def test_what_is_added_is_there(added: list[CommitRequest]) -> None:
    several = requests_of(added)
    assert listed(several) == added
    assert len(several) == len(added)
    assert several.paths == [request.path for request in added]
    assert several.size_bytes == sum(request.identity.size for request in added)
    assert list(several.are_plain) == [
        not (one.in_parts or one.previous is not None) for one in added
    ]


@given(st.lists(requests, max_size=12), st.integers(0, 13), st.integers(0, 13))
def test_a_part_is_what_a_slice_of_a_list_is(
    added: list[CommitRequest], start: int, end: int
) -> None:
    several = requests_of(added)
    assert listed(several.part(start, end)) == added[start:end]
    assert listed(several) == added


@given(st.lists(requests, max_size=9), st.lists(requests, max_size=9))
def test_what_is_taken_moves(one: list[CommitRequest], other: list[CommitRequest]) -> None:
    into, source = requests_of(one), requests_of(other)
    into.take(source)
    assert listed(into) == [*one, *other]
    assert len(source) == 0


def test_what_is_no_request_is_refused() -> None:
    several = CommitRequests()
    with pytest.raises(ValueError, match="digest has not 16 bytes"):
        several.add(b"path", (1, 2, 3, 4), (5, bytes(15), True))
    with pytest.raises(ValueError, match="path"):
        several.add(b"pa\0th", (1, 2, 3, 4), (5, bytes(16), True))
    with pytest.raises(ValueError, match="attribute"):
        several.add(b"path", (1, 2, 3, 4), (5, bytes(16), True), bytes(1 << 16))
    with pytest.raises(IndexError, match="no request 0"):
        several[0]


@given(st.lists(requests, max_size=12))
def test_requests_travel_as_bytes(added: list[CommitRequest]) -> None:
    several = requests_of(added)
    data = several.to_bytes()
    again = CommitRequests.from_bytes(data)
    assert listed(again) == added
    assert again.inodes == b"".join(one.identity.inode.to_bytes(8, "little") for one in added)
    assert listed(several.pick(list(reversed(range(len(added)))))) == added[::-1]
    for end in range(len(data)):
        with suppress(ValueError):  # the end of one request is no damage
            whole = CommitRequests.from_bytes(data[:end])
            assert listed(whole) == added[: len(whole)]


@given(st.binary(max_size=300))
def test_other_bytes_are_no_requests(data: bytes) -> None:
    with suppress(ValueError):
        assert CommitRequests.from_bytes(data).to_bytes() == data
