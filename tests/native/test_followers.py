"""Ends that known chunks suggest are tried first, and every cut stays that of the definition."""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format.volume_parameters import Parameters, new_parameters
from dedupd_core.index.table_index import TableIndex
from dedupd_core.units import KIB, MIB
from tests.support.indexes import Indexed
from tests.support.lab import lab_in, noise, prose

PARAMETERS = new_parameters("4k", "blake3", "user.dedupd")


@pytest.fixture(params=["scalar", ""])
def chunker(request: pytest.FixtureRequest) -> native.chunker.Chunker:
    """Of the slowest code path, and of the fastest."""
    return PARAMETERS.chunker(request.param or None)


def pieces(chunks: native.chunker.Chunks, data: bytes) -> list[bytes]:
    ends = memoryview(chunks.ends).cast("I").tolist()
    return [data[start:end] for start, end in pairwise([0, *ends])]


def stored(directory: Path, contents: list[bytes]) -> tuple[Indexed, TableIndex]:
    """An index of chunks, in the order in which they are given."""
    lab = Indexed(directory, container_bytes_max=100_000)
    lab.store.append(*contents)
    lab.store.writer.sync()
    index = lab.open(page_entries=50, cache_entries=10_000)
    assert isinstance(index, TableIndex)
    return lab, index


def met(index: TableIndex, chunks: native.chunker.Chunks) -> native.chunker.Followers:
    """What is known once these chunks were looked up."""
    followers = native.chunker.Followers()
    index.use_followers(followers)
    index.lookup(chunks.fingerprints)
    return followers


def assert_cut_alike(
    chunker: native.chunker.Chunker, data: bytes, followers: native.chunker.Followers
) -> None:
    for final in (True, False):
        for threads in (1, 4):
            segments = [(0, len(data), final), (len(data) // 3, len(data) // 2, final)]
            plain = chunker.process(data, segments, threads)
            found = chunker.process(data, segments, threads, followers)
            for column in ("ends", "fingerprints", "zero", "counts"):
                assert getattr(found, column) == getattr(plain, column)


def test_a_copy_is_cut_as_it_was(tmp_path: Path, chunker: native.chunker.Chunker) -> None:
    data = noise(2 * MIB) + prose(1 * MIB)
    first = chunker.process(data, [(0, len(data), True)])
    _, index = stored(tmp_path, pieces(first, data))
    followers = met(index, first)
    assert_cut_alike(chunker, data, followers)
    edited = data[: 700 * KIB] + b"an edit" + data[700 * KIB : 2 * MIB] + noise(300 * KIB, 5)
    assert_cut_alike(chunker, edited, followers)


edges = st.lists(st.integers(0, 400 * KIB), min_size=1, max_size=60, unique=True)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=edges, order=st.randoms(use_true_random=False), edit=st.integers(0, 400 * KIB))
def test_forged_tables_change_no_cut(
    tmp_path_factory: pytest.TempPathFactory, at: list[int], order: Random, edit: int
) -> None:
    """Entries in any order, and of chunks that were cut anywhere else than at a full match."""
    chunker = PARAMETERS.chunker("scalar")
    data = noise(200 * KIB, 1) + prose(200 * KIB, 2)
    right = pieces(chunker.process(data, [(0, len(data), True)]), data)
    full = {end for end, bits in candidates(chunker, data) if bits == PARAMETERS.chunking.bits}
    places = [0, *sorted(at), len(data)]
    forged = [data[a:b] for a, b in pairwise(places) if b not in full and b > a]
    mixed = right + forged
    order.shuffle(mixed)
    _, index = stored(tmp_path_factory.mktemp("forged"), list(dict.fromkeys(mixed)))
    edited = data[:edit] + b"!" + data[edit:]
    followers = met(index, chunker.process(data, [(0, len(data), True)]))
    assert_cut_alike(chunker, data, followers)
    assert_cut_alike(chunker, edited, followers)


def candidates(chunker: native.chunker.Chunker, data: bytes) -> Iterator[tuple[int, int]]:
    rows = array("I", native.testing.candidates(chunker, data)).tolist()
    return zip(rows[::2], rows[1::2], strict=True)


def test_an_optimize_run_tries_them_where_cutting_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stores nothing of a copy, nor anything else than on another code path."""
    chosen = Parameters.chunker
    monkeypatch.setattr(Parameters, "chunker", lambda self, path=None: chosen(self, "scalar"))
    told: list[native.chunker.Followers] = []
    use = TableIndex.use_followers

    def noted(self: TableIndex, followers: native.chunker.Followers) -> None:
        told.append(followers)
        use(self, followers)

    monkeypatch.setattr(TableIndex, "use_followers", noted)
    with lab_in(tmp_path) as lab:
        contents = {f"f{n}": noise(700 * KIB, n) for n in range(8)}
        for name, content in contents.items():
            lab.put(name, content)
        lab.optimize()
        for name, content in contents.items():
            lab.put(f"copy of {name}", content)
        report = lab.optimize()
        assert len(told) == 2
        assert report.sums.new_chunks == 0
        for name, content in contents.items():
            assert lab.read(f"copy of {name}") == content
