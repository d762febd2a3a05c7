"""Work that people do all day, on the mount and beside it, in turns.

    python -m benchmarks.mount_work [--directory DIR] [--rounds N] [--peer NAME=PROGRAM]...
                                    [--only ROW]... [--json FILE] TREE.tar

TREE.tar holds some thousands of source files with the folders ``fs``, ``kernel``, ``lib`` and
``scripts``, such as those of Debian's ``linux-source``. The ways: the file system of DIR itself
("below"), the mount with plain files ("plain"), the mount after everything has been optimized
("stubs", from the row after ``untar`` on), and each PROGRAM, run as ``PROGRAM SOURCE MOUNTPOINT``
and staying in the foreground. The ways take turns within each round, and begin anew in each turn.

Prints, for each row, the medians of the seconds and of the processor seconds of whatever serves the
files, and the requests that the kernel sent, which a turn of their own counts.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import drop_caches, keep, machine, processor_s
from benchmarks.mount_sides import Below, OwnMount, Peer, Side
from benchmarks.volumes import new_volume, optimize
from tests.support.fuse_requests import RequestCounter, request_counter

_SQLITE = """
import sqlite3
c = sqlite3.connect("t.db"); c.execute("create table a(x,y)"); c.commit()
for i in range(2000):
    c.execute("insert into a values(?,?)", (i, "x" * 200)); c.commit()
"""

UNTAR = "untar"

ROWS = {
    UNTAR: 'tar xf "$TREE"',
    "find, first": "find . -type f",
    "ls -lR, first": "ls -lR .",
    "ls -lR, again": "ls -lR .",
    "grep -r, first": "grep -r zzzzqq . || [ $? = 1 ]",
    "grep -r, again": "grep -r zzzzqq . || [ $? = 1 ]",
    "tar c": "tar cf - . | cat",
    "git add": "git init -q . && git add -A .",
    "git commit": "git -c user.name=a -c user.email=a@b commit -q -m x",
    "git status": "git status",
    "cp -a": "cp -a kernel copy",
    "rsync, nothing to do": "rsync -a kernel/ copy/",
    "rm -rf": "rm -rf copy",
    "sqlite, 2000 commits": f"python3 -c '{_SQLITE}'",
    "two greps at once": "grep -r zzzzqq fs & grep -r zzzzqq kernel lib scripts; wait",
    "write 512 MB, fsync": "dd if=/dev/zero of=big bs=1M count=512 conv=fsync",
    "read 512 MB again": "dd if=big of=/dev/null bs=1M",
}
"""Names of the rows, in their order: each works on what the ones before have left."""

_COLD = ("find, first",)
"""Rows before which the kernel drops what it has cached."""

_ENVIRONMENT = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


@dataclass(slots=True)
class Figures:
    """What a row took on one way, a value a round."""

    wall_s: list[float] = field(default_factory=list)
    server_s: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the files: how to begin a turn, and what happens once the tree is unpacked."""

    name: str
    begin: Callable[[Path], Side]
    after_untar: Callable[[Path], None] = lambda _base: None


def _below(base: Path) -> Side:
    return Below(_made(base / "below"))


def _own(base: Path) -> Side:
    new_volume(base / "volume", min_size="1")
    return OwnMount(base / "volume", _made(base / "view"))


def _optimize(base: Path) -> None:
    if not optimize(base / "volume").files_optimized:
        raise RuntimeError("nothing was optimized")


def _peer(name: str, program: str) -> Way:
    return Way(name, lambda base: Peer(program, _made(base / "source"), _made(base / "view")))


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


class Turns:
    """Runs the rows on every way, and keeps what they took."""

    def __init__(self, directory: Path, tree: Path, ways: list[Way], rows: list[str]) -> None:
        self._directory = directory
        self._environment = {**os.environ, **_ENVIRONMENT, "TREE": str(tree.resolve())}
        self._ways = ways
        self._rows = rows
        self.figures: dict[str, dict[str, Figures]] = defaultdict(lambda: defaultdict(Figures))

    def count(self) -> None:
        """A turn of each way whose requests are counted, and which is not timed."""
        for way in self._ways:
            self._turn(way, counted=True)

    def round(self, number: int) -> None:
        """A turn of each way; a different one begins in each round."""
        first = number % len(self._ways)
        for way in self._ways[first:] + self._ways[:first]:
            self._turn(way, counted=False)

    def _turn(self, way: Way, *, counted: bool) -> None:
        print(f"{way.name} …", file=sys.stderr, flush=True)
        with self._started(way) as (base, side), ExitStack() as stack:
            counter = None
            if counted and side.pid is not None:
                counter = stack.enter_context(request_counter(side.root))
            place = _made(side.root / "w")
            for row, command in ROWS.items():
                if row in _COLD:
                    way.after_untar(base)
                    drop_caches()
                if row in self._rows or row == UNTAR:
                    self._run(row, command, place, side, self.figures[row][way.name], counter)

    @contextmanager
    def _started(self, way: Way) -> Iterator[tuple[Path, Side]]:
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            side = way.begin(Path(name))
            side.start()
            try:
                yield Path(name), side
            finally:
                side.stop()
        os.sync()

    def _run(
        self,
        row: str,
        command: str,
        place: Path,
        side: Side,
        figures: Figures,
        counter: RequestCounter | None,
    ) -> None:
        if counter is not None:
            counter.take()
        server_s = processor_s(side.pid) if side.pid is not None else 0.0
        began = time.perf_counter()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=place,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        wall_s = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{row}: {done.stderr.decode(errors='replace')[-2000:]}")
        if counter is not None:
            figures.requests += counter.take()
            return
        figures.wall_s.append(wall_s)
        if side.pid is not None:
            figures.server_s.append(processor_s(side.pid) - server_s)


def _table(
    title: str, turns: Turns, ways: list[Way], show: Callable[[Figures], str]
) -> Iterator[str]:
    yield f"| {title} | {' | '.join(way.name for way in ways)} |"
    yield f"| --- |{' ---: |' * len(ways)}"
    for row, found in turns.figures.items():
        yield f"| {row} | {' | '.join(show(found[way.name]) for way in ways)} |"
    yield ""


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.3f}" if values else ""


def report(turns: Turns, ways: list[Way]) -> str:
    """Three Markdown tables: seconds, processor seconds, requests."""
    served = [way for way in ways if way.begin is not _below]
    return "\n".join(
        [
            *_table("seconds", turns, ways, lambda one: _median(one.wall_s)),
            *_table("server's CPU s", turns, served, lambda one: _median(one.server_s)),
            *_table("requests", turns, served, lambda one: f"{one.requests.total():,}"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, metavar="TREE.tar")
    parser.add_argument("--directory", default="/var/tmp", type=Path)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--peer", metavar="NAME=PROGRAM", action="append", default=[])
    parser.add_argument("--only", choices=list(ROWS), metavar="ROW", action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ways = [Way("below", _below), Way("plain", _own), Way("stubs", _own, _optimize)]
    ways += [_peer(*peer.split("=", 1)) for peer in options.peer]
    with tempfile.TemporaryDirectory(prefix="dedupd-bench-", dir=options.directory) as base:
        turns = Turns(Path(base), options.tree, ways, options.only or list(ROWS))
        turns.count()
        for number in range(options.rounds):
            turns.round(number)
    print(f"{machine(options.directory)}; {options.rounds} rounds\n")
    print(report(turns, ways))
    found = {
        row: {
            way: {"wall_s": one.wall_s, "server_s": one.server_s, "requests": one.requests}
            for way, one in ways_found.items()
        }
        for row, ways_found in turns.figures.items()
    }
    keep(found, options.json)


if __name__ == "__main__":
    main()
