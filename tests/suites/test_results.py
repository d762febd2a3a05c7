"""The comparison of a run, and how results of suites are read."""

import pytest

from tests.suites import xfstests
from tests.suites.pjdfstest import read_tap
from tests.suites.results import (
    BELOW,
    Difference,
    Outcome,
    Result,
    Verdict,
    as_markdown,
    judge,
    new_failures,
)
from tests.suites.stress_ng import read_status
from tests.suites.xfstests import read_check

PASSED, FAILED, TIMED_OUT, NOT_RUN = (Result(outcome, 1.0) for outcome in Outcome)
LISTED = [Difference("suite", "a", "a reason")]


@pytest.mark.parametrize(
    ("mount", "below", "verdict"),
    [
        (PASSED, None, Verdict.PASSED),
        (NOT_RUN, None, Verdict.NOT_RUN),
        (FAILED, PASSED, Verdict.NEW),
        (TIMED_OUT, PASSED, Verdict.NEW),
        (FAILED, None, Verdict.NEW),
        (FAILED, NOT_RUN, Verdict.NEW),
        (NOT_RUN, PASSED, Verdict.NEW),
        (NOT_RUN, FAILED, Verdict.NOT_RUN),
        (NOT_RUN, NOT_RUN, Verdict.NOT_RUN),
        (FAILED, FAILED, Verdict.AS_BELOW),
        (TIMED_OUT, FAILED, Verdict.AS_BELOW),
    ],
)
def test_a_failure_counts_if_ext4_does_not_have_it(
    mount: Result, below: Result | None, verdict: Verdict
) -> None:
    sides = {"device": {"b": mount}, BELOW: {"b": below} if below else {}}
    (judged,) = judge("suite", sides, LISTED)
    assert judged.verdict is verdict
    assert new_failures([judged]) == ([judged] if verdict is Verdict.NEW else [])


def test_a_listed_difference_is_permitted_in_its_own_suite_alone() -> None:
    sides = {"ring": {"a": FAILED}, BELOW: {"a": PASSED}}
    (judged,) = judge("suite", sides, LISTED)
    assert (judged.verdict, judged.reason) == (Verdict.LISTED, "a reason")
    (judged,) = judge("other", sides, LISTED)
    assert judged.verdict is Verdict.NEW


def test_the_table_names_what_did_not_pass() -> None:
    sides = {"device": {"a": FAILED, "b": PASSED, "c": FAILED}, BELOW: {"c": FAILED}}
    table = as_markdown("suite", judge("suite", sides, LISTED))
    assert "| device | 1 | 0 | 1 | 1 | 0 | 3 |" in table
    assert "| a | device | failed | not run | listed difference | a reason |" in table
    assert "| b |" not in table


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("generic/004        4s\n", Outcome.PASSED),
        ("generic/004 4s ...  5s\n\n", Outcome.PASSED),
        ("generic/004        4s\nRan: generic/004\nPassed all 1 tests\n", Outcome.PASSED),
        ("generic/004        [not run] no reason\n", Outcome.NOT_RUN),
        ("generic/004        - output mismatch (see x)\n    --- a\n", Outcome.FAILED),
        ("generic/004        [failed, exit status 1]\n", Outcome.FAILED),
        ("generic/004        4s\n_check_dmesg: something found in dmesg\n", Outcome.FAILED),
        ("mount: no such volume\n", Outcome.FAILED),
    ],
)
def test_what_check_prints_is_read(said: str, outcome: Outcome) -> None:
    assert read_check("generic/004", said)[0] is outcome


def test_the_next_test_starts_at_its_name() -> None:
    said = b"generic/004        4s\n    generic/005 in a line\ngeneric/005 "
    at = xfstests.start_of("generic/005", said)
    assert at is not None and said[at:] == b"generic/005 "
    assert xfstests.start_of("generic/006", said) is None


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("1..2\nok 1\nok 2\n", Outcome.PASSED),
        ("1..2\nok 1\nnot ok 2 - tried 'x'\n", Outcome.FAILED),
        ("1..2\nok 1\nnot ok 2 # TODO later\n", Outcome.PASSED),
        ("1..2\nok 1\n", Outcome.FAILED),
        ("1..0 # skipped\n", Outcome.NOT_RUN),
        ("sh: not found\n", Outcome.FAILED),
    ],
)
def test_tap_is_read(output: str, outcome: Outcome) -> None:
    assert read_tap(0, output)[0] is outcome


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        (0, "passed: 1: dup (1)\nskipped: 0\n", Outcome.PASSED),
        (0, "skipped: 1: verity (1)\n", Outcome.NOT_RUN),
        (0, "skipping stressor, no such file system\n", Outcome.NOT_RUN),
        (0, "verity is not supported by the kernel, skipping stress test\n", Outcome.NOT_RUN),
        (1, "disabled 'bind-mount' as it may hang\nerror: no workers\n", Outcome.NOT_RUN),
        (2, "fail: x\n", Outcome.FAILED),
        (3, "", Outcome.NOT_RUN),
        (4, "", Outcome.NOT_RUN),
        (None, "", Outcome.TIMED_OUT),
    ],
)
def test_the_status_of_a_stressor_is_read(
    status: int | None, output: str, outcome: Outcome
) -> None:
    assert read_status(status, output)[0] is outcome
