"""Results of a suite on several sides, and the comparison that decides a run."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

BELOW = "ext4"
"""The side without a mount: the file system that the volumes are on."""

LISTED = Path(__file__).with_name("differences.toml")


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"

    @property
    def is_failure(self) -> bool:
        return self in (Outcome.FAILED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Result:
    """One test of a suite on one side."""

    outcome: Outcome
    seconds: float
    detail: str = ""
    """The reason of a test that was not run; the first lines of a failure."""


class Verdict(StrEnum):
    PASSED = "passed"
    NOT_RUN = "not run"
    AS_BELOW = "fails on ext4 too"
    LISTED = "listed difference"
    NEW = "new failure"


_UNREMARKABLE = (Verdict.PASSED, Verdict.NOT_RUN)


@dataclass(frozen=True)
class Difference:
    """A test that fails on a mount and passes on ext4, and the reason."""

    suite: str
    test: str
    reason: str


@dataclass(frozen=True)
class Judged:
    """A result on a mount, compared with that on ext4."""

    side: str
    test: str
    result: Result
    below: Result | None
    verdict: Verdict
    reason: str = ""


Results = dict[str, Result]
"""By the name of the test."""


def listed_differences(path: Path = LISTED) -> list[Difference]:
    """The differences that a run permits. Raises KeyError for an entry without a reason."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Difference(suite, test, " ".join(entry["reason"].split()))
        for suite, entries in table.items()
        for entry in entries
        for test in entry["tests"]
    ]


def judge(
    suite: str, sides: Mapping[str, Results], differences: Iterable[Difference]
) -> list[Judged]:
    """Compare each mount with ext4. A failure that ext4 does not have must be listed: if ext4 did
    not run the test, it does not have the failure. A test that runs on ext4, and not on a mount
    because the mount lacks a feature, must be listed too."""
    reasons = {one.test: one.reason for one in differences if one.suite == suite}
    below = sides.get(BELOW, {})
    judged = []
    for side, results in sides.items():
        if side == BELOW:
            continue
        for test, result in results.items():
            beside, reason = below.get(test), ""
            if result.outcome is Outcome.PASSED:
                verdict = Verdict.PASSED
            elif result.outcome is Outcome.NOT_RUN and not (
                beside is not None and beside.outcome is Outcome.PASSED
            ):
                verdict = Verdict.NOT_RUN
            elif beside is not None and beside.outcome.is_failure:
                verdict = Verdict.AS_BELOW
            elif test in reasons:
                verdict, reason = Verdict.LISTED, reasons[test]
            else:
                verdict = Verdict.NEW
            judged.append(Judged(side, test, result, beside, verdict, reason))
    return judged


def new_failures(judged: Iterable[Judged]) -> list[Judged]:
    return [one for one in judged if one.verdict is Verdict.NEW]


def totals(judged: Iterable[Judged]) -> dict[str, dict[Verdict, int]]:
    """Counts of tests by side and verdict."""
    counts: dict[str, dict[Verdict, int]] = {}
    for one in judged:
        of_side = counts.setdefault(one.side, dict.fromkeys(Verdict, 0))
        of_side[one.verdict] += 1
    return counts


def as_markdown(heading: str, judged: list[Judged]) -> str:
    """A table of totals and one of all tests that did not pass."""
    lines = [f"## {heading}", "", "| transport | " + " | ".join(Verdict) + " | tests |"]
    lines.append("| --- |" + " ---: |" * (len(Verdict) + 1))
    for side, counts in totals(judged).items():
        numbers = [counts[verdict] for verdict in Verdict]
        lines.append(f"| {side} | " + " | ".join(map(str, [*numbers, sum(numbers)])) + " |")
    shown = [one for one in judged if one.verdict not in _UNREMARKABLE]
    if shown:
        lines += ["", "| test | transport | mount | ext4 | verdict | reason |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
    for one in sorted(shown, key=lambda one: (one.test, one.side)):
        below = one.below.outcome if one.below else "not run"
        lines.append(
            f"| {one.test} | {one.side} | {one.result.outcome} | {below} | {one.verdict}"
            f" | {one.reason} |"
        )
    return "\n".join(lines) + "\n"


def as_json(sides: Mapping[str, Results], judged: Iterable[Judged]) -> dict[str, Any]:
    return {
        "sides": {
            side: {test: asdict(result) for test, result in results.items()}
            for side, results in sides.items()
        },
        "differences": [
            {"side": one.side, "test": one.test, "verdict": one.verdict, "reason": one.reason}
            for one in judged
            if one.verdict not in _UNREMARKABLE
        ],
    }
