"""Rules for parts of the tree: the job, the explanation and the pattern say the same."""

import os
from pathlib import Path

import pytest

from dedupd_core.config.policy import Marker, Policy
from dedupd_core.config.policy_file import keep_plain
from dedupd_core.config.rules import Rule, pattern_of
from dedupd_core.units import KIB
from jobs.tree.candidates import SkippedFiles, candidates
from jobs.tree.explanation import explain_file
from jobs.tree.marked_directories import SIGNATURE
from tests.support.lab import Lab, lab_in, noise

ALL = Policy(min_age_s=0, min_size_bytes=1)


def taken(lab: Lab, policy: Policy, below: bytes = b"") -> set[bytes]:
    """Paths that the job takes; and the explanation of each file says the same."""
    with lab.opened() as volume:
        skipped = SkippedFiles()
        paths = {one.path for one in candidates(volume, policy, below, skipped, [])}
        for directory, _, names in os.walk(lab.data / os.fsdecode(below)):
            for name in names:
                path = os.fsencode(os.path.relpath(os.path.join(directory, name), lab.data))
                told = explain_file(volume, policy, path)
                assert told is not None and told.taken is (path in paths), path
                assert told.taken or told.reason in skipped.files
    return paths


def test_a_rule_has_its_own_age_and_size(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for name in ("a/young", "b/young", "b/c/young"):
            lab.put(name, noise(40 * KIB))
        lab.put("b/small", noise(2 * KIB))
        policy = Policy(
            rules=(
                Rule(("b/",), min_age_s=0.0),
                Rule(("b/c",), min_age_s=1e6),
                Rule(("small",), min_size_bytes=1 * KIB),
            )
        )
        for file in lab.data.rglob("*"):
            os.utime(file)
        assert taken(lab, policy) == {b"b/young", b"b/small"}
        assert taken(lab, policy, b"b/c") == set()


def test_a_rule_takes_what_keys_leave_and_leaves_what_they_take(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for name in ("x.tmp", "keep/x.tmp", "keep/no/x.tmp", "y"):
            lab.put(name, noise(40 * KIB))
        rules = (Rule(("keep/",), exclude=False), Rule(("keep/no",), exclude=True))
        policy = Policy(min_age_s=0, min_size_bytes=1, exclude=("*.tmp",), rules=rules)
        assert taken(lab, policy) == {b"keep/x.tmp", b"y"}


@pytest.mark.parametrize("below", [b"", b"cache", b"cache/deep", b"cache/deep/x"])
def test_a_tag_keeps_a_directory_plain_with_all_below(tmp_path: Path, below: bytes) -> None:
    with lab_in(tmp_path) as lab:
        for name in ("y", "cache/x", "cache/deep/x", "no-cache/x"):
            lab.put(name, noise(40 * KIB))
        lab.put("cache/CACHEDIR.TAG", SIGNATURE + b"\n# of a cache")
        lab.put("no-cache/CACHEDIR.TAG", b"something else")
        expected = {b"y", b"no-cache/x", b"no-cache/CACHEDIR.TAG"} if not below else set()
        assert taken(lab, ALL, below) == expected
        everything = Policy(min_age_s=0, min_size_bytes=1, markers=())
        assert b"cache/deep/x" in taken(lab, everything)


def test_an_empty_file_of_users_keeps_a_directory_plain(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("mine/x", noise(40 * KIB))
        lab.put("mine/.nodedup", b"")
        assert taken(lab, ALL) == set()
        with lab.opened() as volume:
            told = explain_file(volume, ALL, b"mine/x")
            assert told is not None and told.excluded_by == "a marker in mine"
        caches = Policy(min_age_s=0, min_size_bytes=1, markers=(Marker.CACHEDIR_TAG,))
        assert taken(lab, caches) == {b"mine/x"}


def test_a_rule_says_whether_to_compress(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("raw/x", b"text " * 20_000)
        lab.put("y", b"other " * 20_000)
        lab.set_policy('min_age = "0s"\nmin_size = 1\n[[rule]]\npath = "raw/"\ncompress = false\n')
        stored = lab.optimize().sums.stored_bytes
        assert 90_000 < stored < 110_000


def test_what_was_made_plain_stays_so(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put(b"a/odd [1] \xff", noise(40 * KIB))
        lab.put("a/b", noise(40 * KIB, 1))
        text = keep_plain(
            'min_age = "0s"\nmin_size = 1\n', [pattern_of(b"a/odd [1] \xff")], "policy"
        )
        lab.set_policy(text)
        report = lab.optimize()
        assert (report.files_optimized, report.files_skipped) == (1, {"excluded": 1})


def test_an_explanation_names_the_rule_and_says_when_a_file_is_due(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        now_s = os.stat(lab.put("a/x", noise(40 * KIB))).st_ctime
        policy = Policy(rules=(Rule(("b",), exclude=True), Rule(("a/",), min_age_s=86400.0)))
        with lab.opened() as volume:
            told = explain_file(volume, policy, b"a/x")
        assert told is not None and not told.taken and told.reason == "too young"
        assert told.due_s is not None and abs(told.due_s - now_s - 86400) < 1
        assert told.to_json()["keys"]["min_age"] == {"value": "1d", "from": "rule 2"}
