"""Requests to commit files, held against plain lists of them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.commit_requests import (
    CommitRequest,
    CommitRequests,
    request_from_json,
    request_to_json,
)

numbers = st.integers(0, 2**63 - 1)
identities = st.builds(
    FileIdentity, numbers, numbers.map(lambda n: n >> 8), st.integers(-(2**62), 2**62), numbers
)
recipes = st.builds(RecipeRef, numbers, st.binary(min_size=16, max_size=16), st.booleans())
paths = st.binary(min_size=1, max_size=20).map(lambda path: path.replace(b"\0", b"/"))
requests = st.builds(CommitRequest, paths, identities, recipes, st.none() | st.binary(max_size=3))


@given(st.lists(requests, max_size=12))
def test_what_is_added_is_there_plain_files_first(added: list[CommitRequest]) -> None:
    several = CommitRequests.of(added)
    expected = sorted(added, key=lambda one: one.previous is not None or one.in_parts)
    assert list(several) == expected
    assert len(several) == len(added)
    assert several.paths == [request.path for request in expected]
    assert several.size_bytes == sum(request.identity.size for request in added)


@given(st.lists(requests, max_size=12), st.integers(0, 13), st.integers(0, 13))
def test_a_part_is_what_a_slice_of_a_list_is(
    added: list[CommitRequest], start: int, count: int
) -> None:
    several = CommitRequests.of(added)
    everything = list(several)
    assert list(several.part(start, count)) == everything[start : start + count]
    assert list(several) == everything


@given(st.lists(requests, max_size=9), st.lists(requests, max_size=9))
def test_what_is_taken_moves(one: list[CommitRequest], other: list[CommitRequest]) -> None:
    into, source = CommitRequests.of(one).plain, CommitRequests.of(other).plain
    expected = [*into, *source]
    into.take(source)
    assert list(into) == expected
    assert len(source) == 0


@given(requests)
def test_a_request_survives_its_way_to_the_mount(request: CommitRequest) -> None:
    assert request_from_json(request_to_json(request)) == request


def test_what_is_no_request_is_refused() -> None:
    plain = native.commit.PlainRequests()
    with pytest.raises(ValueError, match="digest has not 16 bytes"):
        plain.add(b"path", (1, 2, 3, 4), (5, bytes(15), True))
    with pytest.raises(ValueError, match="path"):
        plain.add(b"pa\0th", (1, 2, 3, 4), (5, bytes(16), True))
    with pytest.raises(IndexError, match="no request 0"):
        plain[0]


@given(st.lists(requests.map(lambda one: one._replace(previous=None, in_parts=False)), max_size=12))
def test_plain_requests_travel_as_bytes(added: list[CommitRequest]) -> None:
    plain = CommitRequests.of(added).plain
    data = plain.to_bytes()
    again = native.commit.PlainRequests.from_bytes(data)
    assert list(CommitRequests(again)) == added
    assert again.inodes == b"".join(one.identity.inode.to_bytes(8, "little") for one in added)
    picked = plain.pick(list(reversed(range(len(added)))))
    assert list(CommitRequests(picked)) == added[::-1]
    for end in range(len(data)):
        with suppress(ValueError):  # the end of one request is no damage
            whole = native.commit.PlainRequests.from_bytes(data[:end])
            assert list(CommitRequests(whole)) == added[: len(whole)]


@given(st.binary(max_size=300))
def test_other_bytes_are_no_requests(data: bytes) -> None:
    with suppress(ValueError):
        assert native.commit.PlainRequests.from_bytes(data).to_bytes() == data
