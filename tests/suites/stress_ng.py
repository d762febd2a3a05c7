"""stress-ng: each stressor of a class by itself, for some seconds, with its own verification."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp

from dedupd_core.errors import UsageError
from tests.suites import commands
from tests.suites.ground import Ground
from tests.suites.results import Outcome, Result
from tests.suites.suite import first_lines

STRESSOR_S = 3
"""How long each stressor runs."""

_SKIPPED = {3: "no resources", 4: "not implemented"}
"""Exit statuses that are no failures."""


class StressNg:
    """The stressors of ``filesystem``."""

    name = "stress-ng"
    below_is_quick = True

    def __init__(self) -> None:
        program = shutil.which("stress-ng")
        if program is None:
            raise UsageError("stress-ng: no such program; install it (apt install stress-ng)")
        self._program = program

    @property
    def version(self) -> str:
        said = self._ask("--version")
        found = re.search(r"version (\S+)", said)
        return found[1] if found else "unknown"

    def command(self, test: str) -> str:
        return f"stress-ng --{test} 1 --timeout {STRESSOR_S}s --verify --temp-path MOUNT"

    def tests(self) -> list[str]:
        return self._ask("--class", "filesystem?").rpartition("stressors:")[2].split()

    def run(
        self, tests: Sequence[str], ground: Ground, limit_s: float, output: Path
    ) -> Iterator[tuple[str, Result]]:
        for test in tests:
            yield test, self._run(test, ground, limit_s, output)

    def _run(self, test: str, ground: Ground, limit_s: float, output: Path) -> Result:
        ground.ensure_mounted(ground.places[0])
        directory = Path(mkdtemp(dir=ground.places[0].point))
        arguments = [f"--{test}", "1", "--timeout", f"{STRESSOR_S}s", "--verify"]
        finished = commands.run(
            [self._program, *arguments, "--metrics-brief", "--temp-path", directory],
            limit_s,
            cwd=directory,
            environment=ground.environment,
        )
        ground.note_stuck(test, finished.stuck)
        (output / f"{test}.log").write_text(finished.output)
        outcome, detail = read_status(finished.status, finished.output)
        return Result(outcome, round(finished.seconds, 1), detail)

    def _ask(self, *arguments: str) -> str:
        # It prints its lists to stderr, and ends with a status of its own.
        result = subprocess.run(
            [self._program, *arguments], capture_output=True, text=True, check=False
        )
        return result.stdout + result.stderr


def read_status(status: int | None, output: str) -> tuple[Outcome, str]:
    """The result of one stressor: one that skips itself ends with success, and says so."""
    if status is None:
        return Outcome.TIMED_OUT, ""
    disabled = re.search(r"\bdisabled '.*", output)
    if disabled:
        return Outcome.NOT_RUN, disabled[0]
    skipped = re.search(r"\bskipped: [1-9].*|.*\bskipping stress.*", output)
    if status in _SKIPPED or (status == 0 and skipped):
        said = [line for line in output.splitlines() if "skip" in line]
        return Outcome.NOT_RUN, first_lines("\n".join(said), 2) or _SKIPPED.get(status, "")
    return (Outcome.FAILED, first_lines(output, 20)) if status else (Outcome.PASSED, "")
