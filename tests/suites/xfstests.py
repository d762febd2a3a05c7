"""xfstests: its ``check``, watched."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from dedupd_core.errors import UsageError
from dedupd_core.system import mount_table
from tests.suites import commands
from tests.suites.ground import Ground
from tests.suites.results import BELOW, Outcome, Result
from tests.suites.suite import commit_of, first_lines

USERS = ("fsgqa", "fsgqa2", "123456-fsgqa")

LEFT_OUT = {
    "generic/561": "it ends all processes of a name on the machine (killall)",
}

_NAME = re.compile(r"^generic/\d{3,}$")


class Xfstests:
    """Tests of ``generic`` in a group."""

    name = "xfstests"
    below_is_quick = False

    def __init__(self, sources: Path, group: str = "quick") -> None:
        self._sources = sources
        self._group = group
        if not (sources / "check").exists() or not (sources / "ltp/fsx").exists():
            raise UsageError(f"{sources}: holds no built xfstests; name the directory above them")

    @property
    def version(self) -> str:
        return commit_of(self._sources)

    def command(self, test: str) -> str:
        return f"./check {test}"

    def tests(self) -> list[str]:
        """As ``check -g`` chooses them, by the lists that the build has made."""
        listed = (self._sources / "tests/generic/group.list").read_text().splitlines()
        rows = [line.split() for line in listed if line and not line.startswith("#")]
        names = [f"generic/{name}" for name, *groups in rows if self._group in groups]
        return [name for name in names if name not in LEFT_OUT]

    def run(
        self, tests: Sequence[str], ground: Ground, limit_s: float, output: Path
    ) -> Iterator[tuple[str, Result]]:
        """By as few calls of ``check`` as possible: each takes seconds to begin."""
        assert all(_NAME.match(test) for test in tests)
        left = list(tests)
        while left:
            done = 0
            for result in self._check(left, ground, limit_s, output):
                yield left[done], result
                done += 1
            left = left[done:]

    def _check(
        self, tests: list[str], ground: Ground, limit_s: float, output: Path
    ) -> Iterator[Result]:
        """The results of the first tests, at least of one: until one's time is over, or ``check``
        gives up."""
        ground.ensure_mounted(ground.places[0])
        config = self._configure(ground, output)
        environment = {**ground.environment, "HOST_OPTIONS": str(config)}
        said, done, began = b"", 0, time.monotonic()
        running = commands.Running(["./check", *tests], self._sources, environment)
        with ExitStack() as stack:
            stack.callback(lambda: ground.note_stuck(tests[done], running.stuck))
            stack.enter_context(running)
            while done < len(tests):
                try:
                    part = running.read(began + limit_s)
                except TimeoutError:
                    yield self._note(tests[done], said, began, output, is_timeout=True)
                    return
                said += part
                # The name comes when a test starts, and the result behind it.
                following = tests[done + 1 : done + 2]
                while following and (at := start_of(following[0], said)) is not None:
                    yield self._note(tests[done], said[:at], began, output)
                    said, done, began = said[at:], done + 1, time.monotonic()
                    following = tests[done + 1 : done + 2]
                if not part:
                    yield self._note(tests[done], said, began, output)
                    return

    def _configure(self, ground: Ground, output: Path) -> Path:
        first, scratch = ground.places
        settings = {
            "FSTYP": "fuse" if ground.is_mount else BELOW,
            "FUSE_SUBTYP": mount_table.FS_TYPE.removeprefix("fuse") if ground.is_mount else "",
            "TEST_DEV": first.source,
            "TEST_DIR": first.point,
            "SCRATCH_DEV": scratch.source,
            "SCRATCH_MNT": scratch.point,
            "RESULT_BASE": output,
        }
        config = output / "local.config"
        config.write_text("".join(f"export {name}={value}\n" for name, value in settings.items()))
        return config

    def _note(
        self, test: str, said: bytes, began: float, output: Path, *, is_timeout: bool = False
    ) -> Result:
        text = said.decode(errors="replace")
        (output / f"{test.replace('/', '-')}.log").write_text(text)
        seconds = round(time.monotonic() - began, 1)
        if is_timeout:
            return Result(Outcome.TIMED_OUT, seconds)
        outcome, detail = read_check(test, text)
        return Result(outcome, seconds, detail)


def start_of(test: str, said: bytes) -> int | None:
    """Where the results of a test begin."""
    found = re.search(rb"^" + test.encode() + rb"\b", said, re.MULTILINE)
    return found.start() if found else None


def read_check(test: str, said: str) -> tuple[Outcome, str]:
    """The result of one test in what ``check`` prints: its name, then the time that it took, or
    what is wrong with it."""
    begun = re.search(rf"^{test}\b(.*)$", said, re.MULTILINE)
    if begun is None:
        return Outcome.FAILED, first_lines(said, 20)
    skipped = re.search(r"\[not run\] *(.*)", begun[1])
    if skipped:
        return Outcome.NOT_RUN, skipped[1]
    complaints, _, _ = said[begun.end() :].partition("\nRan: ")
    if re.search(r"\s\d+s\s*$", begun[1]) and not complaints.strip():
        return Outcome.PASSED, ""
    return Outcome.FAILED, first_lines(said[begun.start() :], 20)
