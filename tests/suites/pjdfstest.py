"""pjdfstest: each file of tests by a shell, as prove(1) does it."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp

from dedupd_core.errors import UsageError
from tests.suites import commands
from tests.suites.ground import SHOWN, Ground
from tests.suites.results import BELOW, Outcome, Result
from tests.suites.suite import commit_of, first_lines


class Pjdfstest:
    """All files of tests."""

    name = "pjdfstest"
    below_is_quick = True

    def __init__(self, sources: Path) -> None:
        self._sources = sources
        if not (sources / "pjdfstest").exists() or not (sources / "tests").exists():
            raise UsageError(f"{sources}: holds no built pjdfstest; name the directory above it")

    @property
    def version(self) -> str:
        return commit_of(self._sources)

    def command(self, test: str) -> str:
        return f"prove tests/{test}"

    def tests(self) -> list[str]:
        base = self._sources / "tests"
        return sorted(str(path.relative_to(base)) for path in base.rglob("*.t"))

    def run(
        self, tests: Sequence[str], ground: Ground, limit_s: float, output: Path
    ) -> Iterator[tuple[str, Result]]:
        for test in tests:
            yield test, self._run(test, ground, limit_s, output)

    def _run(self, test: str, ground: Ground, limit_s: float, output: Path) -> Result:
        ground.ensure_mounted(ground.places[0])
        directory = Path(mkdtemp(dir=ground.places[0].point))
        directory.chmod(0o755)
        finished = commands.run(
            ["sh", self._sources / "tests" / test],
            limit_s,
            cwd=directory,
            # It chooses tests by the type of the file system: those of ext4 run on all sides.
            environment={**ground.environment, SHOWN: BELOW},
        )
        ground.note_stuck(test, finished.stuck)
        (output / f"{test.replace('/', '-')}.log").write_text(finished.output)
        outcome, detail = read_tap(finished.status, finished.output)
        return Result(outcome, round(finished.seconds, 1), detail)


def read_tap(status: int | None, output: str) -> tuple[Outcome, str]:
    """The result of a file of tests (Test Anything Protocol), and how many tests it has."""
    if status is None:
        return Outcome.TIMED_OUT, ""
    plan = re.search(r"^1\.\.(\d+)", output, re.MULTILINE)
    if plan is None:
        return Outcome.FAILED, first_lines(output)
    if plan[1] == "0":
        return Outcome.NOT_RUN, first_lines(output, 1)
    done = re.findall(r"^(?:not )?ok\b.*$", output, re.MULTILINE)
    failed = [line for line in done if line.startswith("not ok") and "# TODO" not in line]
    if failed or len(done) != int(plan[1]):
        return Outcome.FAILED, "\n".join([f"{len(done)} of {plan[1]} tests", *failed[:20]])
    return Outcome.PASSED, f"{len(done)} tests"
