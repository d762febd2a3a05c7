"""The chains of the index in the least RAM: full pages in a file that anything may happen to."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.config.memory_budget import capacity, fitting
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.ids import make_id
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.choice import make_index
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB
from tests.support.indexes import Indexed, indexed
from tests.support.lab import fill, flip_bit, lab_in
from tests.support.stores import VOLUME

CHUNKS = 12_000
"""So many that every partition of a small index has a full page."""

UNIT_BYTES = 4096
CHAIN_UNITS = 160


@pytest.fixture(scope="module")
def full() -> Iterator[Indexed]:
    """A store with chains that are not empty. Its file is removed before each test."""
    with indexed("bloom", container_bytes_max=1 << 30) as made:
        contents = [b"%d" % n for n in range(CHUNKS)]
        for at in range(0, CHUNKS, 2000):
            made.store.append(*contents[at : at + 2000])
        made.store.writer.sync()
        yield made


@pytest.fixture
def lab(full: Indexed) -> Indexed:
    full.saved.remove()
    return full


def index_of(lab: Indexed) -> BloomIndex:
    index = lab.open(page_entries=100, cache_entries=1000)
    assert isinstance(index, BloomIndex)
    return index


def test_every_chunk_is_found_in_the_chains(lab: Indexed) -> None:
    index = index_of(lab)
    assert lab.file.stat().st_size > 16 * CHAIN_UNITS * UNIT_BYTES // 2
    lab.expect_all(index)
    assert index.counters().memory_bytes < 2_000_000


def test_saved_chains_are_used_by_the_next_job(lab: Indexed) -> None:
    index_of(lab).save()
    index = index_of(lab)
    assert index.was_restored
    lab.expect_all(index)
    assert len(index) == CHUNKS


def test_chains_of_a_killed_job_are_made_again(lab: Indexed) -> None:
    index_of(lab).save()
    assert index_of(lab).was_restored  # and never saved
    index = index_of(lab)
    assert not index.was_restored
    lab.expect_all(index)


class SyncedDisk(Disk):
    """Remembers what the file was whenever it was made durable."""

    def __init__(self) -> None:
        self.synced: list[bytes] = []

    def sync_data(self, fd: int) -> None:
        self.synced.append(os.pread(fd, 1 << 26, 0))
        super().sync_data(fd)


def test_a_file_looks_valid_on_the_disk_only_while_all_of_it_is_there(lab: Indexed) -> None:
    index_of(lab).save()
    saved = lab.file.read_bytes()
    whole, disk = lab.saved, SyncedDisk()
    lab.saved = whole._replace(disk=disk)
    try:
        index = index_of(lab)
        (opened_at,) = disk.synced
        assert opened_at == bytes(64) + saved[64:]  # nothing else was changed before
        rows = b"".join(native.hashing.fingerprint(b"more %d" % n) for n in range(CHUNKS))
        index.insert(rows, range(9 << 32, (9 << 32) + CHUNKS))
        index.save()
    finally:
        lab.saved = whole
    _, before_header, at_last = disk.synced
    assert before_header == bytes(64) + at_last[64:]
    assert at_last == lab.file.read_bytes() and at_last[:8] == b"DEDUPBLM"


steps = st.lists(
    st.one_of(
        st.sampled_from(["next job", "crash", "rebuild"]).map(lambda step: (step, 0.0)),
        st.tuples(st.just("damage"), st.floats(0, 0.999)),
    ),
    max_size=6,
)


@settings(max_examples=10, deadline=None)
@given(steps)
def test_through_jobs_crashes_and_damage_the_chains_equal_a_dictionary(
    full: Indexed, done: list[tuple[str, float]]
) -> None:
    full.saved.remove()
    index = index_of(full)
    asked = [*list(full.store.contents.items())[::11], *((0, b"not %d" % n) for n in range(500))]
    packed = b"".join(native.hashing.fingerprint(content) for _, content in asked)
    for step, part in done:
        if step == "damage":
            flip_bit(full.file, int(part * full.file.stat().st_size))
        elif step == "rebuild":
            native.testing.rebuild(index._native)
        else:
            if step == "next job":
                index.save()
            index = index_of(full)
        assert list(index.lookup(packed)) == [chunk_id for chunk_id, _ in asked]
        assert len(index) == CHUNKS


@pytest.mark.parametrize("part", ["header", "lists"])
def test_a_damaged_saved_form_is_noticed(lab: Indexed, part: str) -> None:
    index_of(lab).save()
    flip_bit(lab.file, 40 if part == "header" else lab.file.stat().st_size - 100)
    index = index_of(lab)
    assert not index.was_restored
    lab.expect_all(index)


def test_a_short_file_is_noticed(lab: Indexed) -> None:
    index_of(lab).save()
    os.truncate(lab.file, lab.file.stat().st_size - 1)
    assert not index_of(lab).was_restored


@pytest.mark.parametrize("unit", [0, 31, 32], ids=["first block", "last block", "page"])
@pytest.mark.parametrize("kind", ["flipped", "zeros", "gone"])
def test_damage_of_a_chain_is_noticed_when_it_is_read_and_made_up_for(
    lab: Indexed, unit: int, kind: str
) -> None:
    index = index_of(lab)
    for chain in range(16):
        at = (1 + chain * CHAIN_UNITS + unit) * UNIT_BYTES
        if kind == "flipped":
            flip_bit(lab.file, at + 1000)
        elif kind == "zeros":
            with lab.file.open("r+b") as file:
                os.pwrite(file.fileno(), bytes(UNIT_BYTES), at)
    if kind == "gone":
        os.truncate(lab.file, UNIT_BYTES)
    lab.expect_all(index)
    before = lab.file.stat().st_size
    assert before > UNIT_BYTES
    assert len(index) == CHUNKS


def test_a_block_of_another_place_is_taken_for_damage(lab: Indexed) -> None:
    index = index_of(lab)
    with lab.file.open("r+b") as file:
        chain = os.pread(file.fileno(), 32 * UNIT_BYTES, UNIT_BYTES)
        os.pwrite(file.fileno(), chain, (1 + CHAIN_UNITS) * UNIT_BYTES)
    lab.expect_all(index)


def test_equal_hashes_fill_chains_and_are_told_apart(lab: Indexed) -> None:
    index = index_of(lab)
    alike = [bytes(16) + n.to_bytes(16, "little") for n in range(2000)]
    index.insert(b"".join(alike), range(9 << 32, (9 << 32) + 2000))
    assert list(index.lookup(b"".join(alike))) == list(range(9 << 32, (9 << 32) + 2000))
    assert not any(index.lookup(bytes(16) + bytes([255]) * 16))
    lab.expect_all(index)


def test_only_the_first_of_a_run_of_duplicates_costs_reads(lab: Indexed) -> None:
    index = index_of(lab)
    contents = list(lab.store.contents.values())[300:400]
    found = index.lookup(b"".join(map(native.hashing.fingerprint, contents)))
    assert list(found) == list(range(make_id(1, 300), make_id(1, 400)))
    assert 1 <= index.counters().disk_reads <= 6


def test_what_is_new_costs_next_to_no_read(lab: Indexed) -> None:
    index = index_of(lab)
    asked = b"".join(native.hashing.fingerprint(b"new %d" % n) for n in range(20_000))
    assert not any(index.lookup(asked))
    assert index.counters().disk_reads < 600


@pytest.mark.root
def test_on_a_full_disk_chunks_are_forgotten_and_nothing_is_saved(
    lab: Indexed, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", tmp_path], check=True)
    small = os.open(tmp_path, os.O_RDONLY)
    roomy = lab.saved
    try:
        lab.saved = roomy._replace(dir_fd=small)
        index = index_of(lab)
        asked = b"".join(native.hashing.fingerprint(one) for one in lab.store.contents.values())
        found = list(index.lookup(asked))
        assert 0 in found
        assert all(a in (0, b) for a, b in zip(found, lab.store.contents, strict=True))
        index.save()
        assert not os.listdir(small)
    finally:
        lab.saved = roomy
        os.close(small)
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


# --- in a volume ------------------------------------------------------------------------------


@pytest.mark.root
def test_a_volume_stores_each_chunk_once_with_any_index(tmp_path: Path) -> None:
    stored = []
    for index in IndexChoice:
        directory = tmp_path / index
        directory.mkdir()
        with lab_in(directory, chunk_size="4k") as lab:
            lab.set_policy(f'min_age = "0s"\nmin_size = "1"\nindex = "{index}"\n')
            contents = fill(lab)
            lab.optimize()
            for name, content in contents.items():
                lab.put(f"again/{name}", content)
            report = lab.optimize()
            assert report.sums.new_chunks == 0
            assert {name: lab.read(f"again/{name}") for name in contents} == contents
            lab.verify_clean()
            stored.append(lab.container(Kind.CHUNKS).stat().st_size)
    assert stored[0] == stored[1]


def test_a_partition_that_has_no_room_in_a_table_gets_chains() -> None:
    room = capacity(IndexChoice.TABLE, 64 * MIB)
    assert fitting(IndexChoice.TABLE, room, 64 * MIB) is IndexChoice.TABLE
    assert fitting(IndexChoice.TABLE, room + 1, 64 * MIB) is IndexChoice.BLOOM


def test_an_index_removes_what_another_one_left(tmp_path: Path) -> None:
    made = []
    fd = os.open(tmp_path, os.O_RDONLY)
    with ContainerDirectory(fd, Kind.CHUNKS, VOLUME, Disk()) as directory:
        for choice in IndexChoice:
            (tmp_path / "saved-00000003.table").touch()
            (tmp_path / "saved-00000003.bloom").touch()
            make_index(choice, directory, partition=PartitionKey(number=3), entries=0)
            made.append(sorted(os.listdir(tmp_path)))
    assert made == [["saved-00000003.table"], ["saved-00000003.bloom"]]
