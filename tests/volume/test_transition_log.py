"""What a killed process leaves for the next one to put right."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.volume.transition_log import Transitions

NAMES = [b"a", b"directory/with \xff and\nmore"]


@pytest.fixture
def note(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "mount.lock", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_what_is_under_way_at_a_death_is_known_to_the_next_holder(note: int) -> None:
    dying = Transitions(note)
    dying.begin(NAMES[:1])
    dying.begin(NAMES)
    dying.end()
    assert Transitions(note).interrupted() == NAMES


def test_what_has_ended_is_forgotten(note: int) -> None:
    transitions = Transitions(note)
    with transitions.under_way(NAMES):
        assert transitions.interrupted() == NAMES
    assert transitions.interrupted() == []


def test_what_ended_with_an_error_has_ended(note: int) -> None:
    transitions = Transitions(note)
    with pytest.raises(KeyError), transitions.under_way(NAMES):
        raise KeyError
    assert transitions.interrupted() == []


def test_a_name_that_was_cut_short_is_not_one(note: int) -> None:
    Transitions(note).begin(NAMES)
    os.ftruncate(note, os.fstat(note).st_size - 1)
    assert Transitions(note).interrupted() == NAMES[:1]
