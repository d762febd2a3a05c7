"""``make test-suites DIR=…``: suites of other projects on mounts and on ext4, compared.

Exit status: 0 if each failure on a mount is one of ext4 too, or a listed difference; 1 if not.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from tempfile import mkdtemp

from dedupd_core.errors import DedupdError, UsageError
from tests.suites import commands, jobs
from tests.suites.ground import Ground, ground, unmount_all
from tests.suites.mounting import LOG
from tests.suites.pjdfstest import Pjdfstest
from tests.suites.results import (
    BELOW,
    Judged,
    Outcome,
    Results,
    as_json,
    as_markdown,
    judge,
    listed_differences,
    new_failures,
)
from tests.suites.stress_ng import StressNg
from tests.suites.suite import Suite, commit_of
from tests.suites.xfstests import Xfstests
from tests.support.sources import ROOT
from tests.support.ways import DEVICE, RING, has_ring

NAMES = ("xfstests", "pjdfstest", "stress-ng")
LIMIT_S = 150


def main() -> int:
    options = _arguments().parse_args()
    try:
        if os.geteuid() != 0:
            raise UsageError("the suites need root: they mount file systems")
        return run(options)
    except (DedupdError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make test-suites", description=__doc__)
    add = parser.add_argument
    add("sources", type=Path, help="directory with the built sources: xfstests/, pjdfstest/")
    add("--suite", choices=NAMES, action="append", help="only this suite (repeatable)")
    add("--transport", choices=[DEVICE, RING], action="append", help="only mounts by this one")
    add("--tests", nargs="+", metavar="NAME", help="only these tests")
    add("--group", default="quick", help="group of xfstests (default: quick)")
    add("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for each test")
    add("--jobs", action="store_true", help="run optimize, gc and compact at the same time")
    add("--output", type=Path, default=ROOT / "build/suites", help="directory for the results")
    add("--work", type=Path, default=Path("/var/tmp"), help="directory for images of file systems")
    return parser


def run(options: argparse.Namespace) -> int:
    commands.adopt_orphans()
    output: Path = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    status = 0
    for suite in _suites(options):
        tests = [one for one in suite.tests() if not options.tests or one in options.tests]
        if not tests:
            raise UsageError(f"{suite.name}: has none of these tests; leave out --tests to run all")
        findings: list[str] = []
        sides = _sides(suite, tests, options, output, findings)
        judged = judge(suite.name, sides, listed_differences())
        _report(suite, sides, judged, output)
        for finding in findings:
            print(f"finding: {finding}")
        status |= bool(new_failures(judged) or findings)
    return status


def _suites(options: argparse.Namespace) -> list[Suite]:
    made: list[Suite] = []
    for name in options.suite or NAMES:
        match name:
            case "xfstests":
                made.append(Xfstests(options.sources.resolve() / name, options.group))
            case "pjdfstest":
                made.append(Pjdfstest(options.sources.resolve() / name))
            case _:
                made.append(StressNg())
    return made


def _sides(
    suite: Suite,
    tests: list[str],
    options: argparse.Namespace,
    output: Path,
    findings: list[str],
) -> dict[str, Results]:
    """The results on each mount, then those on ext4. ``findings``: what else is wrong."""
    ways = options.transport or [DEVICE, *([RING] if has_ring() else [])]
    sides: dict[str, Results] = {}
    for side in ways:
        sides[side] = _on_side(suite, side, tests, options, output, findings)
    failed = {
        test
        for results in sides.values()
        for test, result in results.items()
        if result.outcome.is_failure
    }
    below = tests if suite.below_is_quick else [test for test in tests if test in failed]
    if below:
        sides[BELOW] = _on_side(suite, BELOW, below, options, output, findings)
    return sides


def _on_side(
    suite: Suite,
    side: str,
    tests: list[str],
    options: argparse.Namespace,
    output: Path,
    findings: list[str],
) -> Results:
    logs = output / suite.name / side
    logs.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    state = Path(mkdtemp(prefix=f"suites-{side}-", dir=options.work)) / "run"
    state.parent.chmod(0o755)  # for the users of tests
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, state.parent, ignore_errors=True)
        here = stack.enter_context(ground(side, state, with_jobs=options.jobs))
        has_jobs = options.jobs and here.is_mount
        with jobs.beside(here, logs / "jobs.log") if has_jobs else nullcontext():
            for test, result in suite.run(tests, here, options.limit, logs):
                results[test] = result
                first, _, _ = result.detail.partition("\n")
                print(
                    f"{suite.name}, {side}, {len(results)}/{len(tests)} {test}: {result.outcome}"
                    f" ({result.seconds:.0f} s) {first[:80]}".rstrip(),
                    flush=True,
                )
                (logs / "results.json").write_text(json.dumps(as_json({side: results}, [])))
        findings += _examine(here, logs)
    return results


def _examine(here: Ground, logs: Path) -> list[str]:
    """What is wrong with the mounts and the volumes beside the results of tests."""
    text = (here.state / LOG).read_text(errors="replace")
    (logs / LOG).write_text(text)
    found = []
    if "Traceback" in text or " panicked at " in text:
        found.append(f"{here.side}: a mount has logged an error of the program; see {logs / LOG}")
    for place in here.places:
        if place.volume is not None:
            here.note_if_dead(place)
            unmount_all(place.point)
            is_well, said = jobs.verify(place)
            if not is_well:
                found.append(f"{here.side}: {place.point.name}: the volume is damaged\n{said}")
    return [*here.findings, *found]


def _report(suite: Suite, sides: dict[str, Results], judged: list[Judged], output: Path) -> None:
    about = {
        "suite": suite.name,
        "version": suite.version,
        "command": suite.command("TEST"),
        "dedupd": commit_of(ROOT),
        "kernel": platform.release(),
        "ended": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    (output / f"{suite.name}.json").write_text(
        json.dumps({**about, **as_json(sides, judged)}, indent=1)
    )
    table = as_markdown(suite.name, judged)
    (output / f"{suite.name}.md").write_text(table)
    print(f"\n{table}")
    passed = {one.test for one in judged if one.result.outcome is Outcome.PASSED}
    failed = {one.test for one in judged if one.result.outcome.is_failure}
    for difference in listed_differences():
        if difference.suite == suite.name and difference.test in passed - failed:
            print(f"{difference.test}: listed as a difference, but passed")
    for one in new_failures(judged):
        below = one.below.outcome if one.below else Outcome.NOT_RUN
        print(f"{one.test}, {one.side}: {one.result.outcome}; on ext4: {below}")
        print(one.result.detail)
    print(f"Results: {output}/{suite.name}.md, {suite.name}.json")


if __name__ == "__main__":
    sys.exit(main())
