"""The order of a run: classes of files by what they save for their cost, and each in its turn."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.units import GIB, KIB, MIB
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.partition_map import type_of
from jobs.frame.run import JobRun
from jobs.optimize import order
from jobs.optimize.buffers import FileTask
from jobs.optimize.optimize_job import Optimize
from jobs.optimize.order import ClassFigures, Figures, Order
from jobs.tree.candidates import Candidate
from jobs.tree.file_classes import Choice, FileClass, class_of
from tests.support.lab import Lab, new_lab, noise, prose

names = st.builds(
    lambda top, name, ending: f"{top}/{name}.{ending}" if top else f"{name}.{ending}",
    st.sampled_from(["", "a", "b", "c"]),
    st.integers(0, 99),
    st.sampled_from(["jpg", "txt", "c", "iso"]),
)


def candidate(path: str, inode: int, size_bytes: int) -> Candidate:
    return Candidate.plain(path.encode(), (inode, size_bytes, 0, 0))


@given(
    st.lists(st.tuples(names, st.integers(1, 10_000)), min_size=1, max_size=60),
    st.dictionaries(names, st.floats(0, 1), max_size=6),
    st.lists(st.tuples(names, st.floats(0, 1)), max_size=20),
    st.integers(0, 40),
    st.booleans(),
    st.sets(st.sampled_from(["jpg", "txt", "c", "iso"])),
)
def test_each_file_has_its_turn_once(
    files: list[tuple[str, int]],
    known: dict[str, float],
    learned: list[tuple[str, float]],
    turn: int,
    largest_first: bool,
    types: set[str],
) -> None:
    """Also files of classes that nobody expected, while classes turn out to be others, and where
    those of some types come before the rest."""
    figures = ClassFigures(
        {class_of(path.encode()): Figures(1, 1e6, 1e6, 1e6 * rate) for path, rate in known.items()},
        turn,
    )
    one = Order(figures, largest_first=largest_first)
    for path, inode in files[: len(files) // 2 + 1]:
        one.expect(candidate(path, inode, GIB))
    taken: list[tuple[str, int]] = []
    pending = iter(learned)
    for is_wanted in (types.__contains__, lambda one: one not in types):
        for choice in one.choices(is_wanted):
            taken += [
                (path, inode)
                for path, inode in files
                if is_wanted(type_of(path.encode()))
                and choice.takes(path.encode(), inode, inode**4)
            ]
            for path, rate in [next(pending, ("", 0.0))]:
                if path:
                    figures.add(class_of(path.encode()), Figures(9, 1e8, 1e8, 1e8 * rate))
    assert sorted(taken) == sorted(files)


def test_only_classes_of_types_that_are_wanted_have_a_way() -> None:
    one = Order(ClassFigures())
    for at in range(200):
        one.expect(candidate(f"{at % 50}/{at}.t{at % 20}", at, GIB))
    ways = [choice for choice in one.choices("t3".__eq__) if choice.sample is not None]
    has = {(top, n) for top in range(50) for n in range(20) for choice in ways
           if choice.has(FileClass(str(top), f"t{n}"))}  # fmt: skip
    assert has == {(top, 3) for top in range(50) if top % 20 % 10 == 3}


def test_a_small_run_goes_by_the_tree() -> None:
    one = Order(ClassFigures())
    for at in range(50):
        one.expect(candidate(f"{at}/file.{at}", at, 10 * MIB))
    assert [choice.sample for choice in one.choices()] == [None]


def test_while_a_restore_fills_the_volume_the_largest_files_come_first(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    sizes = {"a": 300 * KIB, "b": 20 * KIB, "c": 5 * MIB, "d": 70 * KIB, "e": 500 * KIB}
    for name, size in sizes.items():
        lab.put(name, noise(size, size))
    lab.put("of several names", noise(2 * MIB))
    os.link(lab.data / "of several names", lab.data / "other")
    lab.set_policy('min_age = "0s"\nmin_file_saving = 0\nrestore_mode = "on"\n')
    taken: list[str] = []
    with lab.opened() as volume, volume.job_lock():
        job = Optimize(volume, JobRun("optimize"))
        assert job._plan.compute()
        ((_, files),) = job._plan.turns()
        for found in files:
            if isinstance(found, FileTask):
                taken.append(found.candidate.path.decode())
            else:
                taken += [path.decode() for path, *_ in found]
    assert taken[:2] == ["c", "of several names"]
    assert sorted(taken[2:4]) == ["a", "e"]
    assert sorted(taken[4:]) == ["b", "d"]


def test_the_best_class_comes_first_and_hopeless_ones_last() -> None:
    rates = {"vm": 0.9, "text": 0.2, "mail": 0.19, "jpg": 0.001, "mp4": 0.0}
    known = {
        FileClass("x", name): Figures(1e4, 1e13, 0, 1e13 * rate) for name, rate in rates.items()
    }
    figures, left, tiers, poor = ClassFigures(known), set(known), [], []
    while left:
        best, is_poor = figures.best(left)
        left -= best
        tiers.append(best)
        poor.append(is_poor)
    assert poor == [False, True, True]
    assert [{one.type for one in tier} for tier in tiers] == [
        {"vm"},
        {"text", "mail"},
        {"jpg", "mp4"},
    ]


def test_what_compressing_takes_counts() -> None:
    """Duplicates cost less than new data that compresses as well."""
    copies = Figures(1, 1e9, 0, 5e8)
    texts = Figures(1, 1e9, 1e9, 6e8)
    assert copies.rate > texts.rate


def test_a_class_that_changes_is_known_again_soon() -> None:
    figures, one, other = ClassFigures(), FileClass("a", "iso"), FileClass("a", "txt")
    for _ in range(50):
        figures.add(one, Figures(1, 1e9, 1e9, 0))
        figures.add(other, Figures(1, 1e9, 1e9, 2e8))
    assert figures.best({one, other})[0] == {other}
    for _ in range(4):
        figures.add(one, Figures(1, 1e9, 0, 8e8))
    assert figures.best({one, other})[0] == {one}


def test_a_class_of_which_one_file_was_read_is_worth_another_look() -> None:
    images, texts = FileClass("a", "img"), FileClass("a", "txt")
    figures = ClassFigures({texts: Figures(5000, 1e9, 0, 3e8), images: Figures(1, 1e7, 0, 1e6)})
    assert figures.best({images, texts})[0] == {images}
    figures.add(images, Figures(99, 99e7, 0, 99e6))
    assert figures.best({images, texts})[0] == {texts}


def test_types_that_do_not_compress_are_not_sampled_before_the_rest() -> None:
    figures = ClassFigures(raw_types=frozenset({"mp4"}))
    one = Order(figures)
    for at in range(200):
        one.expect(candidate(f"a/{at}.mp4", at, GIB))
        one.expect(candidate(f"a/{at}.txt", at, GIB))
    films, texts = FileClass("a", "mp4"), FileClass("a", "txt")
    ways = []
    for choice in one.choices():
        ways.append((choice.has(texts), choice.has(films), choice.sample))
        figures.add(texts, Figures(50, 1e9, 0, 1e8))
    assert ways[:3] == [
        (True, False, (order.FIRST_SAMPLE, 0, True)),
        (True, False, (order.FIRST_SAMPLE, 0, False)),
        (False, True, None),
    ]


def test_what_is_known_is_kept_and_may_be_lost(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    with lab.opened() as volume:
        figures = ClassFigures()
        for at in range(order.CLASSES_MAX + 50):
            figures.add(FileClass("top", f"t{at}"), Figures(1, 1000 + at, 5, 7))
        figures.save(volume.hints)
        again = ClassFigures.load(volume.hints)
        assert (len(again.known), again.turn) == (order.CLASSES_MAX, 1)
        assert again.known[FileClass("top", "t900")] == Figures(1, 1900, 5, 7)
        wrong: Any
        for wrong in ("nonsense", {"classes": [{"top": "x"}], "turn": 1}, {"classes": 5}, []):
            volume.hints.put(HintKey.CLASSES, wrong)
            assert ClassFigures.load(volume.hints).known == {}


def fill_classes(lab: Lab) -> dict[str, bytes]:
    """Media first in the tree, texts last."""
    contents = {f"a-media/{at}.jpg": noise(300 * KIB, at) for at in range(40)}
    contents |= {f"b-odd/{at}.bin": noise(40 * KIB, 1000 + at) for at in range(40)}
    contents |= {f"z-texts/{at}.txt": prose(300 * KIB, at) for at in range(40)}
    for name, content in contents.items():
        lab.put(name, content)
    return contents


def test_a_run_takes_the_best_class_first_and_all_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "RUN_BYTES_MIN", MIB)
    asked: list[Choice] = []
    choices = Order.choices

    def noted(one: Order, *wanted):  # type: ignore[no-untyped-def]
        for choice in choices(one, *wanted):
            asked.append(choice)
            yield choice

    monkeypatch.setattr(Order, "choices", noted)
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('min_age = "0s"\nmin_file_saving = 0.05\n')
    known = {
        FileClass("a-media", "jpg"): Figures(40, 1e7, 1e7, 0),
        FileClass("b-odd", "bin"): Figures(40, 1e7, 1e7, 1e6),
        FileClass("z-texts", "txt"): Figures(40, 1e7, 1e7, 7e6),
    }
    with lab.opened() as volume:
        figures = ClassFigures(known, is_changed=True)
        figures.save(volume.hints)
    contents = fill_classes(lab)
    report = lab.optimize()
    assert report.files_optimized == 40
    assert report.sums.raw_bytes == sum(map(len, contents.values()))
    texts, media = FileClass("z-texts", "txt"), FileClass("a-media", "jpg")
    assert [(one.has(texts), one.has(media), one.sample) for one in asked] == [
        (True, False, None),
        (False, True, (8, 1, True)),
        (False, False, None),
        (False, True, (8, 1, False)),
        (False, False, None),
    ]
    assert {name: lab.read(name) for name in contents} == contents
    with lab.opened() as volume:
        again = ClassFigures.load(volume.hints)
    assert again.turn == 2
    assert again.known[FileClass("z-texts", "txt")].saved_bytes > 7e6 + 40 * 100 * KIB
    assert again.known[FileClass("a-media", "jpg")].saved_bytes == 0
    assert lab.optimize().sums.raw_bytes == 0
