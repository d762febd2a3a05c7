"""Candidates that are kept from one walk: those that were found, or none."""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jobs.optimize.optimize_job
import jobs.tree.candidate_cache
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.partition_map import type_of
from jobs.tree.candidate_cache import CandidateCache
from jobs.tree.candidates import Candidate, PlainFiles
from tests.support.lab import Lab, fill, new_lab, noise, prose

SUFFIXES = b"a", b"A", b"bb", b"", "Ä".encode(), b"\xff"


def through(
    found: CandidateCache, is_wanted: Callable[[str], bool] | None = None
) -> Iterator[Candidate]:
    """What was found, one by one."""
    for one in found.through(is_wanted):
        if isinstance(one, Candidate):
            yield one
        else:
            for path, identity, _ in one:
                yield Candidate(path, FileIdentity(*identity), None, identity[1])


numbers = st.integers(0, 2**63 - 1)
candidate = st.builds(
    Candidate,
    path=st.binary(min_size=1, max_size=40),
    identity=st.builds(FileIdentity, numbers, numbers, st.integers(-(2**63), 2**63 - 1), numbers),
    attribute=st.none() | st.binary(max_size=100),
    work_bytes=numbers,
)


@given(st.lists(candidate, max_size=30), st.integers(0, 200))
def test_what_was_found_comes_again_in_order(some: list[Candidate], repeat: int) -> None:
    everything = some * repeat
    found = CandidateCache(64 * MIB)
    for one in everything:
        found.add(one)
    assert found.is_complete
    for _ in range(2):
        assert list(through(found)) == everything
        assert list(through(found, lambda file_type: True)) == everything
    assert list(through(found, lambda file_type: len(file_type) % 2 == 0)) == [
        one for one in everything if len(type_of(one.path)) % 2 == 0
    ]


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(0, 2))
def test_plain_files_are_kept_by_the_directory(counts: list[int], others: int) -> None:
    kept = CandidateCache(64 * MIB)
    everything: list[Candidate] = []
    for at, count in enumerate(counts):
        fields = [(at * 1000 + n, n + 1, -n, n * n) for n in range(count)]
        names = [b"%d.%s" % (n, SUFFIXES[n % (at + 1) % len(SUFFIXES)]) for n in range(count)]
        chunks = [(suffix, 1) for suffix in {name.partition(b".")[2] for name in names}]
        packed = b"".join(
            struct.pack("<Qqqq", *one) + name + b"\0"
            for one, name in zip(fields, names, strict=True)
        )
        kept.add(PlainFiles(b"%d/" % at, packed, count, 0, chunks, []))
        everything += [
            Candidate(b"%d/%s" % (at, name), FileIdentity(*one), None, one[1])
            for one, name in zip(fields, names, strict=True)
        ]
        for number in range(others):
            single = Candidate(b"%d" % number, FileIdentity(1, 2, 3, 4), b"attribute", 77)
            kept.add(single)
            everything.append(single)
    assert list(through(kept)) == everything
    for wanted in ({"a"}, {"a", ""}, {"bb", "ä"}, {"none"}):
        assert list(through(kept, wanted.__contains__)) == [
            one for one in everything if type_of(one.path) in wanted
        ]


def test_where_there_is_no_room_for_all_there_is_none(tmp_path: Path) -> None:
    found = CandidateCache(100 * KIB)
    for number in range(50_000):
        identity = FileIdentity(number, *(int.from_bytes(os.urandom(6), "big") for _ in range(3)))
        found.add(Candidate(b"%d" % number, identity, None, 1))
    assert not found.is_complete
    assert list(through(found, lambda file_type: True)) == []


def filled(root: Path) -> Lab:
    lab = new_lab(root)
    lab.set_policy('min_age = "0s"\nmin_size = "100"\npartitions = 3\n')
    fill(lab)
    for kind in ("txt", "bin", "log", "iso"):
        for number in range(3):
            lab.put(f"{kind}/{number}.{kind}", noise(90 * KIB, number) + prose(50 * KIB, number))
    lab.put("small", b"x")
    return lab


def test_a_run_does_the_same_whether_candidates_are_kept_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labs = filled(tmp_path / "kept"), filled(tmp_path / "walked")
    kept = labs[0].optimize()
    monkeypatch.setattr("dedupd_core.config.memory_budget.CANDIDATES_SHARE", 0)
    monkeypatch.setattr(jobs.tree.candidate_cache, "_PER_BLOCK", 1)
    walked = labs[1].optimize()
    assert (kept.partitions, kept.files_skipped) == (3, {"below the minimum size": 1})
    for report in (kept, walked):
        for key in [key for key in asdict(report.sums) if key.endswith("_s")]:
            setattr(report.sums, key, 0.0)
        report.resources, report.started_s = {}, 0.0
        # Of the file system, which the volumes have in common with each other and with others.
        report.free_bytes_before = report.free_bytes_after = 0
        # Files are read in the order of their inodes, so chunks may have other ids in the other
        # volume, and recipes compress as well as the ids in them.
        report.recipe_bytes = 0
        report.index = replace(report.index, memory_bytes=0)
    assert kept == walked
    for lab in labs:
        lab.verify_clean()
