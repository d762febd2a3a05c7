"""Work on a volume in a cluster that is broken off after each of its steps, and what has to hold
then: one driver for exceptions, for processes that are killed, and for power that fails."""

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dedupd_core import failpoint
from tests.support.cluster_lab import ClusterLab, collect, crash_after, optimize
from tests.support.crash import DyingDisk
from tests.support.dying_mounts import dies_at
from tests.support.forks import CONTEXT
from tests.support.lab import Lab, noise
from tests.support.rados_hosts import Site

COMMON = noise(20_000, 1)

PROCESS_S_MAX = 240

Act = Callable[[Lab], object]
"""What is broken off. Of a module, so that another process can do it."""

Turn = Callable[[int], Iterator[Act]]
"""Makes its files, gives its act, and goes on once that was broken off. The number tells the turns
apart: files of each have contents that no other ones have."""

Death = Callable[[int, Act], bool]
"""Whether the act got to its step of this number, and ended there."""


def break_off_at_each_step(
    site: Site,
    turn: Turn,
    death: Death,
    *,
    recover: Callable[[], None] = lambda: None,
    stride: int = 1,
    deaths_min: int,
) -> int:
    """Turn by turn, until an act gets to its end. Whoever ``recover`` is comes before the owner."""
    deaths = 0
    for at in itertools.count(stride, stride):
        steps = turn(at)
        has_died = death(at, next(steps))
        assert site.audit().dangling == [], at
        recover()
        assert site.audit().dangling == [], at
        assert next(steps, None) is None
        if not has_died:
            break
        deaths += 1
    assert deaths >= deaths_min
    return deaths


# --- deaths -----------------------------------------------------------------------------------


def by_exception(here: ClusterLab) -> Death:
    """At each fail point: after each operation on the store, too."""
    return lambda at, act: crash_after(at, lambda: act(here.lab))


def by_kill(here: ClusterLab) -> Death:
    """Of a process, by SIGKILL: at each fail point, and before each durable effect on the disk."""

    def death(at: int, act: Act) -> bool:
        process = CONTEXT.Process(target=_act_until, args=(str(here.lab.root), act, at))
        process.start()
        process.join(PROCESS_S_MAX)
        assert process.exitcode in (0, -signal.SIGKILL), (at, process.exitcode)
        return process.exitcode != 0

    return death


def by_kill_of_its_mount(here: ClusterLab, view: Path) -> Death:
    """While the act has it do what is to be done to files: before each durable effect it has."""
    return lambda at, act: dies_at(here.lab.root, view, at - 1, lambda _: act(here.lab))


class _PassingDisk(DyingDisk):
    """Fail points are steps, too. An effect right behind one is the same step: nothing becomes
    durable between the two."""

    has_passed = False

    def pass_point(self, name: str) -> None:
        super().step()
        self.has_passed = True

    def step(self) -> None:
        if not self.has_passed:
            super().step()
        self.has_passed = False


def _act_until(root: str, act: Act, at: int) -> None:
    disk = _PassingDisk(at - 1)
    failpoint.hook = disk.pass_point
    act(Lab(Path(root), disk))


# --- turns ------------------------------------------------------------------------------------


def sync(point: Path) -> None:
    subprocess.run(["sync", "-f", str(point)], check=True)


def unoptimize(lab: Lab) -> None:
    assert lab.unoptimize().messages == []


class Turns(NamedTuple):
    """What is done to the files of a volume."""

    here: ClusterLab

    def run(self, at: int) -> Iterator[Act]:
        """Files that are new, and a stub that was written to."""
        here = self.here
        contents = self._new_files(at, 2)
        changed = bytearray(noise(40_000, at) + COMMON)
        here.lab.put("changed", changed)
        here.optimize()
        for name, content in contents.items():
            here.lab.put(name, content[::-1])
            contents[name] = content[::-1]
        here.lab.let_write("changed")
        with (here.lab.data / "changed").open("r+b") as file:
            os.pwrite(file.fileno(), b"n" * 4096, 8192)
        os.utime(here.lab.data / "changed", ns=(1, 1))
        changed[8192 : 8192 + 4096] = b"n" * 4096
        contents["changed"] = bytes(changed)
        yield from self._read_before_and_after(optimize, contents, at)

    def plain(self, at: int) -> Iterator[Act]:
        """Stubs become plain files."""
        contents = self._new_files(at, 2)
        self.here.optimize()
        yield from self._read_before_and_after(unoptimize, contents, at)

    def collection(self, at: int) -> Iterator[Act]:
        """Files are removed. They may be there again, where that was not synced: then they read."""
        here = self.here
        here.lab.put("kept", COMMON)
        contents = self._new_files(at, 3)
        here.optimize()
        sync(here.lab.root)
        for name in contents:
            (here.lab.data / name).unlink()
        yield collect
        for name, content in contents.items():
            if (here.lab.data / name).exists():
                assert here.lab.read(name) == content, (at, name)
                (here.lab.data / name).unlink()
        assert here.lab.read("kept") == COMMON
        here.collect()
        assert here.lab.read("kept") == COMMON
        assert here.site.assert_whole().candidates == 0

    def _new_files(self, at: int, count: int) -> dict[str, bytes]:
        contents = {f"file{n}": noise(20_000, at * 10 + n) + COMMON for n in range(count)}
        for name, content in contents.items():
            self.here.lab.put(name, content)
        return contents

    def _read_before_and_after(
        self, act: Act, contents: dict[str, bytes], at: int
    ) -> Iterator[Act]:
        """What is synced reads after the act was broken off, and once it has been done again."""
        sync(self.here.lab.root)
        yield act
        self._assert_reads(contents, at)
        act(self.here.lab)
        self._assert_reads(contents, at)
        self.here.collect()
        assert self.here.site.assert_whole().candidates == 0

    def _assert_reads(self, contents: dict[str, bytes], at: int) -> None:
        for name, content in contents.items():
            assert self.here.lab.read(name) == content, (at, name)
