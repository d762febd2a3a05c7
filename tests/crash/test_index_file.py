"""A power cut at any moment of a job leaves chains that know every chunk, or are made again.

What an index keeps in its file is derived: a crash must not cost bytes, and cannot. But an index
that looks whole and is not would have every later job store what is there already.
"""

import os
import random
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.index.bloom_index import BloomIndex
from tests.support.crash_states import ANY, FILE_SYSTEMS, Choice, CrashStates
from tests.support.indexes import Indexed, indexed
from tests.support.simulated_disk import Forgetful, Inode, RecordingDisk, Write, materialise, scan

CHUNKS = 12_000
"""So many that every partition of a small index has a full page."""

MORE = 9_000
"""So many that most have another one."""

STATES = 40


def choices(rng: random.Random) -> Iterator[Choice]:
    """Mostly such as keep nearly all blocks: one lost list is enough for the file to be refused."""
    yield Choice(ANY, 0.0, 0.0)
    yield Choice(ANY, 1.0, 1.0)
    while True:
        yield Choice(
            rng.choice(FILE_SYSTEMS),
            metadata_share=rng.choice([0.5, 1.0]),
            block_share=rng.choice([0.5, 0.98, 0.99, 0.995]),
            unwritten_share=rng.choice([0.0, 1.0]),
            torn=rng.random() < 0.5,
            length_first=rng.random() < 0.5,
        )


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Indexed]:
    """A store, and chains of its first chunks in a directory of their own."""
    with indexed("bloom", container_bytes_max=1 << 30) as made:
        own = tmp_path / "own"
        own.mkdir()
        dir_fd = os.open(own, os.O_RDONLY)
        made.saved = made.saved._replace(dir_fd=dir_fd)
        made.file = own / made.file.name
        append(made, None, 0, CHUNKS)
        made.open(page_entries=100, cache_entries=1000).save()
        yield made
        os.close(dir_fd)


def append(lab: Indexed, index: BloomIndex | None, first: int, count: int) -> None:
    """As ingest does, a few thousand chunks at a time."""
    for at in range(first, first + count, 3000):
        contents = [b"%d" % n for n in range(at, at + 3000)]
        ids = lab.store.append(*contents)
        if index is not None:
            rows = b"".join(native.hashing.fingerprint(content) for content in contents)
            index.insert(rows, array("Q", ids))
    lab.store.writer.sync()


def job(lab: Indexed, disk: RecordingDisk) -> tuple[dict[int, Inode], int]:
    """Use the saved chains, add to them, and save them again; returns what was there before."""
    before, top = scan(lab.file.parent), lab.file.parent.stat().st_ino
    whole, lab.saved = lab.saved, lab.saved._replace(disk=disk)
    index = lab.open(page_entries=100, cache_entries=1000)
    assert isinstance(index, BloomIndex) and index.was_restored
    append(lab, index, CHUNKS, MORE)
    index.save()
    lab.saved = whole
    return before, top


def explore(lab: Indexed, disk: RecordingDisk) -> int:
    """Check states that a power cut may leave of the file; returns in how many it is valid."""
    before, top = job(lab, disk)
    states = CrashStates(before, disk.log)
    rng = random.Random(1)
    valid = 0
    for choice in islice(choices(rng), STATES):
        length = rng.choice([len(disk.log), rng.randrange(len(disk.log) + 1)])
        crashed = lab.file.parent.with_name("crashed")
        materialise(states.state(length, choice, rng), top, crashed)
        (crashed / lab.file.name).rename(lab.file)
        crashed.rmdir()
        index = lab.open(page_entries=100, cache_entries=1000)
        assert isinstance(index, BloomIndex)
        valid += index.was_restored
        lab.expect_all(index)
    return valid


def test_a_power_cut_leaves_chains_that_know_all_or_are_made_again(lab: Indexed) -> None:
    disk = RecordingDisk()
    valid = explore(lab, disk)
    assert 0 < valid < STATES
    pages = sum(isinstance(entry.event, Write) for entry in disk.log)
    assert pages > 20, "the chains are not written through the disk"


@pytest.mark.parametrize("forgotten", [["sync_data"]])
def test_chains_that_are_made_valid_too_early_are_found(
    lab: Indexed, forgotten: Sequence[str]
) -> None:
    with pytest.raises(AssertionError):
        explore(lab, Forgetful(forgotten))
