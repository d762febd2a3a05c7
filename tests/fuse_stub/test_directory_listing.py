"""Listings of directories: what they show beside changes, and what they cost."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuse_stub.files import directory_listing
from fuse_stub.files.directory_listing import (
    CLOCK_OF_FILES,
    SETTLED_NS,
    DirectoryListing,
    HeldListings,
)

ALICE, BOB = 40001, 40002


@pytest.fixture
def listings() -> HeldListings:
    return HeldListings()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make(tmp_path, 300)
    return tmp_path


def make(directory: Path, count: int, prefix: str = "name") -> None:
    for number in range(count):
        (directory / f"{prefix} {number}").touch()


def settle(directory: Path) -> None:
    """Wait until the times of a directory show its next change."""
    while time.clock_gettime_ns(CLOCK_OF_FILES) <= (directory.stat().st_ctime_ns + SETTLED_NS):
        time.sleep(0.005)


def opened(directory: Path, listings: HeldListings, uid: int = ALICE) -> DirectoryListing:
    return DirectoryListing(os.open(directory, os.O_RDONLY), uid, listings)


def whole(listing: DirectoryListing, reply_names: int = 100) -> list[bytes]:
    """All names, asked for in parts as the kernel does."""
    found: list[bytes] = []
    position = 0
    while True:
        answer = list(replies(listing, position))[:reply_names]
        if not answer:
            return [name for name in found if name not in (b".", b"..")]
        found += [name for name, _ in answer]
        position = answer[-1][1]


def replies(listing: DirectoryListing, start: int) -> Iterator[tuple[bytes, int]]:
    for names, positions in listing.names(start):
        yield from zip(names, positions, strict=True)


def first_reply(listing: DirectoryListing) -> int:
    """The position after the first hundred names."""
    return list(replies(listing, 0))[99][1]


def test_handles_of_a_directory_that_does_not_change_share_one_listing(
    directory: Path, listings: HeldListings
) -> None:
    settle(directory)
    one = opened(directory, listings)
    expected = whole(one)
    assert sorted(expected) == sorted(os.fsencode(name) for name in os.listdir(directory))
    alone = listings.used_bytes
    others = [opened(directory, listings, BOB) for _ in range(20)]
    assert all(whole(other) == expected for other in others)
    assert listings.used_bytes == alone
    for listing in (one, *others):
        listing.close()
    assert listings.used_bytes == 0


@pytest.mark.parametrize("settled", [True, False])
def test_a_rewind_shows_what_has_changed_since(
    directory: Path, listings: HeldListings, settled: bool
) -> None:
    """Also where another handle holds the older listing, and within one tick of the clock."""
    if settled:
        settle(directory)
    one, other = opened(directory, listings), opened(directory, listings)
    for number in range(20):
        before = whole(one)
        position = first_reply(other)
        (directory / f"new {number}").touch()
        assert f"new {number}".encode() in whole(one)
        rest = [name for name, _ in replies(other, position)]
        assert set(rest) <= {*before, b".", b".."}, "it goes on as it began"
    one.close()
    other.close()


def test_beyond_the_share_of_a_user_nothing_is_held_and_nothing_is_missing(
    directory: Path, listings: HeldListings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(directory)
    one = opened(directory, listings)
    expected = whole(one)
    monkeypatch.setattr(directory_listing, "USER_BYTES_MAX", 2 * listings.used_bytes)
    handles = [one]
    for number in range(20):
        (directory / "changes").touch()
        (directory / "changes").unlink()
        handles.append(opened(directory, listings))
        assert sorted(whole(handles[-1])) == sorted(expected), number
    assert listings.used_bytes <= directory_listing.USER_BYTES_MAX
    before = listings.used_bytes
    handles.append(opened(directory, listings, BOB))
    assert whole(handles[-1]) == expected
    assert listings.used_bytes > before, "another user has a share of his own"
    for listing in handles:
        listing.close()
    assert listings.used_bytes == 0


def test_a_long_directory_is_read_in_parts(
    directory: Path, listings: HeldListings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_listing, "NAMES_MAX", 200)
    monkeypatch.setattr(directory_listing, "PAGE_NAMES", 10)
    make(directory, 3000, "x" * 100)
    settle(directory)
    one = opened(directory, listings)
    kept = {os.fsencode(name) for name in os.listdir(directory)}
    found: list[bytes] = []
    position = 0
    while answer := list(replies(one, position))[:100]:
        found += [name for name, _ in answer]
        position = answer[-1][1]
        gone = found[-1]
        if gone not in (b".", b"..") and position % 3:
            os.unlink(directory / os.fsdecode(gone))
    assert sorted(found) == sorted({*kept, b".", b".."})
    assert listings.used_bytes == 0
    one.close()
