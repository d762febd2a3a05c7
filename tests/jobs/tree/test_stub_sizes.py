"""How much of each type is in stubs, held against a walk in plain Python."""

import os
from collections import Counter
from pathlib import Path

import pytest

from dedupd_core.volume.partition_map import type_of
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Cancelled
from jobs.tree import walk as tree_walk
from jobs.tree.stub_sizes import stub_bytes_by_type
from jobs.tree.walk import walk
from tests.support.lab import Lab, lab_in, noise

NAMES: tuple[str | bytes, ...] = (
    *("a.txt", "b.TXT", "c.Ärger", "d.ÄRGER", "e", "f.", ".hidden", ".hidden.txt", "two.dots.gz"),
    *(b"odd.\xff", b"odd.\xff\xfe", b"line\n.b\n", b"dir.d/none", b"dir.d/.d/g.txt"),
    b"x." + b"y" * 200,
)


def plainly(volume: Volume) -> Counter[str]:
    """The same, file by file."""
    found: Counter[str] = Counter()
    for file in walk(volume):
        if file.is_stub:
            found[type_of(file.path)] += file.identity.size
    return found


def compared(lab: Lab) -> Counter[str]:
    """What both say, which is the same."""
    with lab.opened() as volume:
        found = stub_bytes_by_type(volume, lambda: None)
        assert found == plainly(volume)
    return found


def test_sizes_are_summed_up_by_what_names_end_in(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for number, name in enumerate(NAMES):
            lab.put(name, noise(10_000 + number, number))
        assert compared(lab) == {}
        lab.optimize()
        lab.put("plain.txt", noise(50_000, 99))
        assert compared(lab).total() == sum(10_000 + number for number in range(len(NAMES)))


def test_a_file_of_several_names_counts_once(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("a/one.bin", noise(70_000))
        (lab.data / "b").mkdir()
        os.link(path, lab.data / "b/two.bin")
        os.link(path, lab.data / "a/three.bin")
        lab.optimize()
        assert compared(lab) == {"bin": 70_000}


def test_many_directories_are_all_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_walk, "DIRECTORIES_AT_ONCE", 7)
    with lab_in(tmp_path) as lab:
        for number in range(90):
            lab.put(f"{number % 8}/{number}/file.t{number % 3}", b"%d" % number * 3000)
        lab.optimize()
        assert len(compared(lab)) == 3


def test_a_stop_is_heard_on_the_way(tmp_path: Path) -> None:
    def stop() -> None:
        raise Cancelled

    with lab_in(tmp_path) as lab:
        lab.put("file", noise(10_000))
        with lab.opened() as volume, pytest.raises(Cancelled):
            stub_bytes_by_type(volume, stop)
