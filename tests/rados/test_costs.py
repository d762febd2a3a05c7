"""What operations cost does not grow with what they are not about."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.format.cluster.objects import (
    FRAME_BYTES,
    PART_ENTRIES_MAX,
    ChunkEntry,
    FileId,
    FileRecipe,
    chunk_object,
)
from dedupd_core.rados.chunks import TAGS_MAX, StoreResult
from dedupd_core.rados.store import RadosStore
from tests.support.rados_hosts import PIECE_BYTES, Site, fingerprint, new_chunk, random_content


def operations_of_a_collection(site: Site) -> int:
    count = 0

    def gate(operation: str) -> None:
        nonlocal count
        count += 1

    site.cluster.gate = gate
    site.collect()
    site.cluster.gate = None
    return count


def test_a_collection_costs_what_was_deleted_and_not_what_is_there(site: Site) -> None:
    deleted = random_content(1, 30)
    with site.host("a", operations_at_once=8) as host:
        costs = []
        for seed, count in ((2, 20), (3, 400)):
            host.put({1: deleted, seed: random_content(seed, count)})
            host.delete([1])
            costs.append(operations_of_a_collection(site))
    assert costs[0] == costs[1] < 256 + 30 * 3 + 60


def test_a_look_up_is_one_operation(site: Site) -> None:
    """Placement by fingerprint: no location is kept, and none is asked for."""
    chunks = site.store.chunks
    chunks.put(new_chunk(b"a chunk"), ["1" * 32])
    operations: list[str] = []
    site.cluster.gate = operations.append
    chunks.put(new_chunk(b"a chunk", is_expected=True), ["2" * 32])
    assert operations == ["rados.chunk-referenced"]
    operations.clear()
    chunks.read(fingerprint(b"a chunk"))
    assert operations == ["read"]


def test_chunks_of_one_store_are_as_many_as_distinct_fingerprints(site: Site) -> None:
    common = random_content(1, 20)
    with site.host("a", operations_at_once=8) as a, site.host("b", operations_at_once=8) as b:
        a.put({1: common, 2: common + random_content(2)})
        b.put({1: random_content(3) + common})
    distinct = {common[at : at + PIECE_BYTES] for at in range(0, len(common), PIECE_BYTES)}
    names = [name for name in site.cluster.names() if name.startswith("c.")]
    assert len(names) == len(set(names)) == len(distinct) + 6


@pytest.mark.slow
def test_the_hundred_thousandth_reference_costs_what_the_first_does(site: Site) -> None:
    """One operation each, whose time `benchmarks/cluster_scale.py` compares."""
    raw = b"a chunk of very many files"
    chunks = site.store.chunks
    operations: list[str] = []
    arrivals: list[StoreResult] = []
    site.cluster.gate = operations.append

    def operations_of(reference: int) -> list[str]:
        operations.clear()
        chunk = new_chunk(raw, is_expected=True)
        arrivals.append(chunks.put_all([(chunk, [f"{reference:032x}"])])[0])
        return operations[:]

    chunks.put(new_chunk(raw), ["f" * 32])
    chunks.pin_sample = 2 * TAGS_MAX**10  # never
    assert operations_of(0) == ["rados.chunk-referenced"]
    for first in range(0, TAGS_MAX, 1000):
        chunks.put(
            new_chunk(raw, is_expected=True), [f"{n:032x}" for n in range(first, first + 1000)]
        )
    assert operations_of(TAGS_MAX) == ["rados.chunk-referenced"]
    chunks.pin_sample = 1
    assert operations_of(TAGS_MAX + 1)[-1] == "rados.chunk-pinned"
    assert operations_of(TAGS_MAX + 2)[-1] == "keys"  # the host learns of it
    assert operations_of(TAGS_MAX + 3) == ["keys"]
    assert arrivals == [StoreResult.REFERENCED] * 3 + [StoreResult.PINNED] * 2


@pytest.mark.slow
def test_a_chunk_of_very_many_references_is_pinned_in_time(site: Site) -> None:
    raw = b"a chunk of very many files"
    own, chunks = fingerprint(raw), site.store.chunks
    chunks.put(new_chunk(raw), ["f" * 32])
    for first in range(0, TAGS_MAX, 1000):
        chunks.put(
            new_chunk(raw, is_expected=True), [f"{n:032x}" for n in range(first, first + 1000)]
        )
    n = TAGS_MAX
    while site.cluster.value(chunk_object(own), "S") != "P":
        chunks.put(new_chunk(raw, is_expected=True), [f"{n:032x}"])
        n += 1
        assert n < TAGS_MAX + 20_000, "it is never pinned"
    tags = sum(1 for _ in site.cluster.each_key(chunk_object(own), "r."))
    assert tags < 200_000  # where the cluster would warn of a large object
    assert chunks.put(new_chunk(raw), ["e" * 32]) is StoreResult.PINNED


@pytest.mark.slow
def test_the_recipe_of_a_file_of_eight_gigabytes(site: Site) -> None:
    count = PART_ENTRIES_MAX + 5000
    entries = [
        ChunkEntry(n * 81920, 81920, fingerprint(n.to_bytes(8, "big"))) for n in range(count)
    ]
    recipe = FileRecipe("1" * 32, "2" * 32, FileId(1, 1), count * 81920, entries)
    recipes = site.store.recipes
    recipes.write(recipe)
    assert recipe.length > 8e9 - 1e9 and recipes.read("1" * 32) == recipe
    remnants = recipes.remnants("1" * 32)
    assert (remnants.later_parts, len(remnants.fingerprints)) == (1, count)
    recipes.remove(remnants)
    assert [name for name in site.cluster.names() if name.startswith("m.")] == []


@pytest.mark.slow
def test_a_corpus_takes_as_much_on_four_hosts_as_on_one(
    address: StoreAddress, tmp_path: Path
) -> None:
    """And the metadata, as objects and keys have it, below 3 % of the raw bytes at 64 KiB."""
    length = 64 << 10
    chance = random.Random(1)
    pool = [chance.randbytes(length // 2) + bytes(length // 2) for _ in range(150)]
    corpus = [b"".join(chance.choices(pool, k=chance.randint(8, 24))) for _ in range(40)]
    taken = []
    for count in (1, 4):
        store = replace(address, name=f"{address.name}.{count}")
        (tmp_path / str(count)).mkdir()
        with Site(RadosStore.create(store), tmp_path / str(count)) as site:
            for name in range(count):
                with site.host(str(name), operations_at_once=8, piece_bytes=length) as host:
                    files = dict(enumerate(corpus[name::count], 1))
                    host.put(files, is_expected=True)
                    assert all(host.read(inode) == content for inode, content in files.items())
            taken.append(stored_bytes(site))
            site.assert_whole()
    (one, metadata), (four, more) = taken
    assert abs(one - four) <= 0.01 * one
    assert max(metadata, more) < 0.03 * sum(map(len, corpus)), taken


def stored_bytes(site: Site) -> tuple[int, int]:
    """Of chunks, and of all else: recipes, keys, and headers of frames."""
    chunks = metadata = 0
    for name in site.cluster.names():
        data = len(site.cluster.read(name) or b"")
        metadata += sum(len(key) + len(value) for key, value in site.cluster.keys(name).items())
        if name.startswith("c."):
            chunks += data - FRAME_BYTES
            metadata += FRAME_BYTES
        else:
            metadata += data
    return chunks, metadata
