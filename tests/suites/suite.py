"""What a run needs of a suite, the same for each."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.suites.ground import Ground
from tests.suites.results import Result


class Suite(Protocol):
    """A suite of another project, built."""

    name: str

    @property
    def version(self) -> str:
        """The commit or version of the sources; "unknown" if they do not say."""

    @property
    def below_is_quick(self) -> bool:
        """Whether all tests run on ext4, and not only those that fail on a mount."""

    def command(self, test: str) -> str:
        """The command that runs a test, for the report."""

    def tests(self) -> list[str]:
        """The names of all tests, in order. Raises DedupdError."""

    def run(
        self, tests: Sequence[str], ground: Ground, limit_s: float, output: Path
    ) -> Iterator[tuple[str, Result]]:
        """Run tests in order, each for a time at most. What they print goes to ``output``."""


def commit_of(sources: Path) -> str:
    """The commit that a directory of sources is at."""
    result = subprocess.run(
        ["git", "-C", str(sources), "rev-parse", "--short=8", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or "unknown"


def first_lines(text: str, count: int = 6) -> str:
    lines: Iterable[str] = (line.rstrip() for line in text.splitlines())
    return "\n".join([line for line in lines if line][:count])
