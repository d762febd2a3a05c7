"""The index: an exact map from fingerprints to ids, loaded from the store."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dedupd import native
from dedupd.index.memory import MemoryIndex
from tests.support.lab import noise
from tests.support.stores import Records

fingerprints = st.integers(0, 300).map(lambda n: native.hashing.fingerprint(b"%d" % n))
rows = st.lists(st.tuples(fingerprints, st.integers(1, 2**64 - 1)), max_size=400)


@given(rows, st.lists(fingerprints, max_size=50))
def test_the_index_equals_a_dictionary(
    inserted: list[tuple[bytes, int]], asked: list[bytes]
) -> None:
    index = MemoryIndex()
    oracle: dict[bytes, int] = {}
    for fingerprint, chunk in inserted:
        index.insert(fingerprint, [chunk])
        oracle.setdefault(fingerprint, chunk)
    assert list(index.lookup(b"".join(asked))) == [oracle.get(one, 0) for one in asked]
    assert len(index) == len(oracle)


@given(rows)
def test_the_first_id_of_a_batch_wins_too(inserted: list[tuple[bytes, int]]) -> None:
    index = MemoryIndex()
    index.insert(b"".join(fp for fp, _ in inserted), [chunk for _, chunk in inserted])
    oracle: dict[bytes, int] = {}
    for fingerprint, chunk in inserted:
        oracle.setdefault(fingerprint, chunk)
    assert list(index.lookup(b"".join(oracle))) == list(oracle.values())


def test_the_index_of_a_store_finds_every_record(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=5000)
    for seed in range(40):
        store.append(noise(300, seed))
    store.writer.sync()
    index = MemoryIndex()
    for container in store.reopen():
        index.load(container)
    asked = b"".join(native.hashing.fingerprint(content) for content in store.contents.values())
    assert list(index.lookup(asked)) == list(store.contents)


def test_fingerprints_that_share_their_beginning_are_told_apart() -> None:
    index = MemoryIndex()
    ends = [bytes(24) + n.to_bytes(8, "little") for n in range(500)]
    index.insert(b"".join(ends), range(1, 501))
    assert list(index.lookup(b"".join(reversed(ends)))) == list(range(500, 0, -1))
