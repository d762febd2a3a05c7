"""The files that are not optimized, named with the reason, page by page."""

from itertools import islice
from pathlib import Path

import pytest

from jobs.frame.run import Findings
from jobs.optimize.outcomes import NAMED_MAX, LeftFiles, named_left
from jobs.tree.candidates import EXCLUDED, SAVES_LITTLE, SMALL, YOUNG, SkippedFiles, candidates
from jobs.tree.explanation import WAITS, LeftFile, left_files
from tests.support.lab import Lab, lab_in, noise


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    with lab_in(tmp_path) as lab:
        lab.set_policy(
            'min_age = "0s"\nmin_file_saving = 0.05\nmin_size = "1k"\nexclude = ["*.tmp"]\n'
        )
        for name in (b"b/one", b"b/two"):
            lab.put(name, noise(100_000, 1))
        lab.optimize()
        lab.put(b"alone", noise(100_000, 2))
        lab.put(b"a/small", b"few")
        lab.put(b"a/deep/odd \xff\n", noise(100_000, 3))
        lab.put(b"c/x.tmp", noise(100_000, 4))
        lab.put(b"empty", b"")
    return lab


def listed(lab: Lab, after: bytes = b"", count: int | None = None) -> list[LeftFile]:
    with lab.opened() as volume:
        return list(islice(left_files(volume, volume.policy(), after, lambda: None), count))


def test_each_file_that_is_not_optimized_is_named_with_its_reason(lab: Lab) -> None:
    assert [(file.path, file.reason) for file in listed(lab)] == [
        (b"alone", WAITS),
        (b"a/small", SMALL),
        (b"a/deep/odd \xff\n", WAITS),
        (b"c/x.tmp", EXCLUDED),
    ]
    lab.optimize()
    assert {file.path: file.reason for file in listed(lab)} == {
        b"alone": SAVES_LITTLE,
        b"a/small": SMALL,
        b"a/deep/odd \xff\n": SAVES_LITTLE,
        b"c/x.tmp": EXCLUDED,
    }


def test_pages_make_up_the_whole_wherever_they_are_cut(lab: Lab) -> None:
    whole = listed(lab)
    for size in (1, 2, 3):
        pages: list[LeftFile] = []
        while page := listed(lab, pages[-1].path if pages else b"", size):
            pages += page
        assert pages == whole


def test_what_a_page_goes_on_behind_may_be_gone(lab: Lab) -> None:
    whole = listed(lab)
    assert listed(lab, b"a/deep/never there")[0] == whole[2]
    assert listed(lab, b"a/zzz/gone/too") == whole[3:]


def test_the_reasons_are_those_that_a_run_counts(lab: Lab) -> None:
    lab.set_policy('min_age = "3d"\nmin_size = "1k"\nexclude = ["*.tmp"]\n')
    counts: dict[str, int] = {}
    for file in listed(lab):
        counts[file.reason] = counts.get(file.reason, 0) + 1
    skipped = SkippedFiles()
    with lab.opened() as volume:
        assert list(candidates(volume, volume.policy(), b"", skipped, [])) == []
    assert counts[YOUNG] > 0
    known = {reason: count for reason, count in skipped.files.items() if reason in counts}
    assert counts == known


def test_what_a_run_came_to_and_left_is_named_until_the_next_one(lab: Lab) -> None:
    findings = Findings()
    counts = dict[str, int]()
    left = LeftFiles(counts, findings)
    left.add(b"in \xff use", "in use")
    left.add(b"broken", "cannot be read", "cannot be read: I/O error")
    left.add(b"little", SAVES_LITTLE)
    for number in range(NAMED_MAX):
        left.add(b"%d" % number, "changed")
    assert counts == {"in use": 1, "cannot be read": 1, SAVES_LITTLE: 1, "changed": NAMED_MAX}
    assert findings.count == 1
    with lab.opened() as volume:
        left.save(volume, 12.5)
        named = named_left(volume, 12.5)
        assert (named[b"in \xff use"], named[b"broken"]) == ("in use", "cannot be read: I/O error")
        assert b"little" not in named and len(named) == NAMED_MAX
        assert named_left(volume, 13.5) == {}
