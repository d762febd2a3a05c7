"""Two volumes are optimized side by side, and either run is killed: against a model of their files.

One run is stopped before some step. Beside it the other one runs, to its end or to its death; then
the first one goes on, or dies where it is. Whatever happens, users keep what they have, and the
next runs find all in order.
"""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dedupd_core.units import KIB
from tests.crash.exploring import file_system_for_states
from tests.support import crash
from tests.support.lab import Lab, noise
from tests.support.service import eventually
from tests.support.shared import SharedLab, one_waits_for_another, optimize_beside

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

FILES = tuple(f"f{at}" for at in range(5))
CONTENTS = tuple(noise(20 * KIB * at, at % 4) + noise(60 * KIB, 9) for at in range(1, 9))
"""Some begin alike, and all end alike: nearly every file shares chunks with others."""

STEPS_MAX = 120
"""More than a run has, with two files."""


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with file_system_for_states(tmp_path_factory.mktemp("kill beside")) as point:
        yield point


class Run:
    """An optimize run in a process of its own, that stops, or dies, before its n-th step."""

    def __init__(self, lab: Lab, step: int, *, dies: bool) -> None:
        self._status: int | None = None
        self._told, there = os.pipe()
        self._goes_on, go_on = os.pipe()

        def at_step() -> None:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(there, b".")
            os.read(self._goes_on, 1)

        disk = crash.SteppingDisk(step, at_step)
        self.pid = crash.fork(lambda: optimize_beside(Lab(lab.root, disk)))
        os.close(there)
        self._go_on = go_on

    def wait_until_there(self) -> None:
        """It is before its step, or over."""
        os.read(self._told, 1)

    def go_on(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._go_on, b".")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    @property
    def is_over(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def end(self, *, may_be_killed: bool) -> None:
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        for fd in (self._told, self._goes_on, self._go_on):
            os.close(fd)
        was_killed = os.WIFSIGNALED(self._status) and os.WTERMSIG(self._status) == signal.SIGKILL
        assert self._status == 0 or (may_be_killed and was_killed)


class Pair:
    """Two volumes on one store, and what users have in them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shared = SharedLab(directory)
        self.labs = self.shared.volume("a"), self.shared.volume("b")
        self.files: tuple[dict[str, bytes], ...] = ({}, {})
        self.done: list[str] = []

    def live_through(self, *, kills: bool) -> None:
        rng = self.rng
        for lab, files in zip(self.labs, self.files, strict=True):
            for name in rng.sample(FILES, 2):
                files[name] = rng.choice(CONTENTS)
                lab.put(name, files[name])
        if rng.random() < 0.3:
            self.labs[0].collect(all_garbage=True)  # what both may come to need again
        steps = rng.randrange(STEPS_MAX), rng.randrange(STEPS_MAX)
        ends = (rng.random() < 0.7, rng.random() < 0.4) if kills else (False, False)
        self.done.append(f"steps {steps}, killed {ends}")
        beside = Run(self.labs[1], steps[1], dies=False)
        beside.wait_until_there()
        run = Run(self.labs[0], steps[0] if ends[0] else STEPS_MAX * 100, dies=ends[0])
        try:
            # It may have to wait for a turn that the other one has taken.
            eventually(lambda: run.is_over or one_waits_for_another(), "one run beside another")
        finally:
            beside.kill() if ends[1] else beside.go_on()
        run.end(may_be_killed=ends[0])
        beside.end(may_be_killed=ends[1])
        self.check()

    def check(self) -> None:
        for lab, files in zip(self.labs, self.files, strict=True):
            assert {name: lab.read(name) for name in files} == files, self.done[-3:]

    def bring_in_order(self) -> None:
        """All is stored, what nothing needs goes, and nothing else."""
        for lab in self.labs:
            lab.optimize()
        self.labs[0].verify_clean()
        assert self.labs[1].collect(all_garbage=True).messages == []
        self.labs[0].compact()
        self.check()
        self.labs[0].verify_clean()


def live_through(directory: Path, seed: int, rounds: int, *, kills: bool) -> None:
    directory.mkdir()
    pair = Pair(directory, seed)
    for _ in range(rounds):
        pair.live_through(kills=kills)
        pair.bring_in_order()
    crash.remove(directory)


@pytest.mark.parametrize("kills", [False, True])
def test_volumes_keep_what_users_have(fast: Path, kills: bool) -> None:
    live_through(fast / f"few {kills}", 1, 3, kills=kills)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_volumes_keep_what_users_have_for_long(fast: Path, seed: int) -> None:
    live_through(fast / f"long {seed}", seed, 40, kills=True)
