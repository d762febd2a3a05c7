"""Weeks of edits and jobs, and what the store has then beside one that was made at once.

    python -m benchmarks.refine_churn [--work DIR] [--weeks 16] [--mode full] [--megabytes 60] SET

Of the files of SET (a directory of text) two thirds are there in the beginning. Each week some get
other lines, some are deleted, some come in, and some are copied; then reconcile, gc, compact,
scrub, optimize and refine run, each its whole way, in the order of the service. At the end the same
files are put into a new volume, and the same jobs run once. Both are counted, and once more after
the gc and the compaction that come next; then they are verified and taken apart, side by side:
chunks that files name, those that stay for others that lean on them, garbage, and what tables,
headers and sketches take. Sizes are those of the files of the whole store.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import files_of, machine
from benchmarks.volumes import new_volume
from dedupd_core.config.policy import RefineMode
from dedupd_core.format.container import FILE_HEADER_BYTES, Codec, Kind, record_size
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import COLLECTED, ENTRY_BYTES, HEADER_BYTES, State, TableEntry
from dedupd_core.shared.fellows import all_held
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.system.files import opened
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.check.verify import Verify
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.optimize.optimize_job import Optimize
from jobs.reconcile.reconcile_job import Reconcile, Strategy
from jobs.refine.refine_job import Refine
from jobs.scrub.scrub_job import Depth, Scrub

EDITED, DELETED, NEW, COPIED = 0.06, 0.02, 0.03, 0.01
"""Of the files, each week."""

FILE_BYTES_MIN = 8 << 10


class Tree:
    """The files of a volume, and what becomes of them."""

    def __init__(self, contents: list[bytes], seed: int) -> None:
        self._random = random.Random(seed)
        self._random.shuffle(contents)
        cut = len(contents) * 2 // 3
        self._to_come = contents[cut:]
        self._lines = b"".join(contents[:200]).splitlines(keepends=True)
        self.files = {f"{number % 50}/{number}": one for number, one in enumerate(contents[:cut])}
        self._next = cut
        self.changed = set(self.files)

    def week(self) -> None:
        names = sorted(self.files)
        count = len(names)
        for name in self._random.sample(names, int(count * EDITED)):
            self._put(name, self._edited(self.files[name]))
        for name in self._random.sample(names, int(count * DELETED)):
            del self.files[name]
            self.changed.add(name)
        for _ in range(min(len(self._to_come), int(count * NEW))):
            self._put(self._new_name(), self._to_come.pop())
        for name in self._random.sample(sorted(self.files), int(count * COPIED)):
            self._put(self._new_name(), self._edited(self.files[name]))

    def _new_name(self) -> str:
        self._next += 1
        return f"{self._next % 50}/{self._next}"

    def _put(self, name: str, content: bytes) -> None:
        self.files[name] = content
        self.changed.add(name)

    def _edited(self, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        for _ in range(self._random.randrange(1, 5)):
            at = self._random.randrange(len(lines) + 1)
            gone = self._random.randrange(3)
            come = self._random.choices(self._lines, k=self._random.randrange(1, 6))
            lines[at : at + gone] = come
        return b"".join(lines)

    def write(self, data: Path) -> None:
        """Write what has changed since the last time."""
        for name in sorted(self.changed):
            path = data / name
            path.unlink(missing_ok=True)
            if name in self.files:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.files[name])
        self.changed.clear()


def contents_of(dataset: Path, megabytes: int, seed: int) -> list[bytes]:
    """Files of a set, up to so many bytes, chosen evenly."""
    paths = sorted(files_of(dataset))
    random.Random(seed).shuffle(paths)
    found: dict[bytes, None] = {}
    left = megabytes * MIB
    for path in paths:
        if os.path.islink(path) or not FILE_BYTES_MIN <= os.path.getsize(path) <= left:
            continue
        content = Path(path).read_bytes()
        left -= len(content)
        found[content] = None
    return list(found)


def volume_in(root: Path, mode: str) -> Path:
    values = {"min_size": "1", "min_file_saving": "0", "keep_deleted": "0s", "refine": mode}
    values |= {"refine_age": "0s", "partitions": "2", "compaction_min_dead": "0"}
    return new_volume(root, **values)


def run_jobs(root: Path) -> str:
    """Every job once, in the order of the service; what refine took and did."""
    with Volume.open(str(root)) as volume, all_held(volume):
        Reconcile(volume, JobRun("reconcile"), Strategy.ALL).run()
        _collect(volume)
        assert Scrub(volume, JobRun("scrub"), Depth.QUICK, 0).run().losses == []
        Optimize(volume, JobRun("optimize")).run()
        began = time.process_time()
        refined = Refine(volume, JobRun("refine")).run()
        took = time.process_time() - began
    return f"refine {took:.1f} s, {refined.rewritten} rewritten, {refined.new_deltas} new deltas"


def _collect(volume: Volume) -> None:
    Gc(volume, JobRun("gc")).run()
    Compact(volume, JobRun("compact")).run()


def ended(root: Path) -> tuple[int, "Parts"]:
    """What a store takes after its last job, and its parts after it was collected once more."""
    after_jobs = sum(path.stat().st_size for path in files_of_store(root))
    with Volume.open(str(root)) as volume, all_held(volume):
        _collect(volume)
    verify(root)
    return after_jobs, parts(root)


def files_of_store(root: Path) -> list[Path]:
    return [path for path in (root / ".dedupd/store").rglob("*") if path.is_file()]


def verify(root: Path) -> None:
    with Volume.open(str(root)) as volume, all_held(volume), volume.mount_lock():
        found = Verify(volume, JobRun("verify")).run().findings
    assert found == [], found


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what a store has."""

    count: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Part") -> "Part":
        return Part(self.count + other.count, self.size_bytes + other.size_bytes)


class Parts(defaultdict[str, Part]):
    """A store, taken apart by what its bytes are there for."""

    def __init__(self) -> None:
        super().__init__(Part)

    def take(self, name: str, size_bytes: int, count: int = 1) -> None:
        self[name] += Part(count, size_bytes)


def parts(root: Path) -> Parts:
    """The parts of a store; their bytes are those of its files."""
    found = Parts()
    with Volume.open(str(root)) as volume:
        for kind in Kind:
            with volume.containers(kind) as directory:
                count = len(directory.numbers())
            found.take("headers of files", count * (FILE_HEADER_BYTES + HEADER_BYTES), 2 * count)
        with volume.containers(Kind.CHUNKS) as directory:
            _take_chunks(found, _entries(directory), _named(root, volume))
        with volume.containers(Kind.RECIPES) as directory:
            for entry in _entries(directory).values():
                name = "recipes" if entry.state == State.LIVE else "recipes, dead"
                if entry != COLLECTED:
                    found.take(name, record_size(entry.stored_length) + ENTRY_BYTES)
    files = files_of_store(root)
    for path in files:
        if path.suffix not in (".dat", ".dir"):
            found.take(f"files {path.suffix}", path.stat().st_size)
    counted = sum(one.size_bytes for one in found.values())
    found.take("other", sum(path.stat().st_size for path in files) - counted)
    return found


def _take_chunks(found: Parts, entries: dict[int, TableEntry], named: set[int]) -> None:
    for one in list(named):
        while (entry := entries.get(one)) is not None and entry.state == State.MERGED:
            one = entry.target
            named.add(one)
    held = {entry.base for entry in entries.values() if entry.base}
    by_codec = [entry for entry in entries.values() if entry.codec == Codec.DICTIONARY]
    dictionaries = {entry.base for entry in by_codec}
    before: int = State.LIVE
    for one, entry in sorted(entries.items()):
        if entry == COLLECTED:
            continue
        is_live, size = entry.state == State.LIVE, record_size(entry.stored_length)
        found.take("entries of chunks" if is_live else "entries of dead chunks", ENTRY_BYTES)
        if entry.state == State.TOMBSTONE and not entry.stored_length:
            if before != State.TOMBSTONE:  # a row of them has one
                found.take("chunks, tombstones", size)
        elif not is_live:
            found.take(f"chunks, {State(entry.state).name.lower()}", size)
        elif one in dictionaries:
            found.take("dictionaries", size)
        elif one in named:
            base = "base, " if one in held else ""
            found.take(f"chunks, named, {base}{Codec(entry.codec).name.lower()}", size)
        else:
            found.take(f"chunks, {'held alone' if one in held else 'not needed'}", size)
        before = entry.state


def _entries(directory: ContainerDirectory) -> dict[int, TableEntry]:
    return {
        make_id(number, ordinal): entry
        for number in directory.numbers()
        for ordinal, entry in enumerate(directory.entries(number))
        if entry is not None
    }


def _named(root: Path, volume: Volume) -> set[int]:
    """The chunks that stubs name."""
    found = set[int]()
    for path in (root / ".dedupd/data").rglob("*"):
        if not path.is_file():
            continue
        with opened(os.open(path, os.O_RDONLY)) as fd:
            stub = volume.space.read(fd, str(path))
        if stub is not None:
            content = volume.content(stub, str(path))
            found |= {one.chunk for one in content.recipe.spans(0, stub.covered)}
    return found


def show(old: Parts, new: Parts) -> None:
    """Both stores side by side, and what of the difference each part has."""
    total = sum(one.size_bytes for one in new.values())
    print(f"{'':32} {'after the weeks':>24} {'at once':>24}   more")
    for name in sorted({*old, *new}):
        was, is_ = old[name], new[name]
        more = (was.size_bytes - is_.size_bytes) / total
        print(
            f"{name:32} {was.count:10,} {was.size_bytes:13,}"
            f" {is_.count:10,} {is_.size_bytes:13,} {more:+6.2%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--weeks", type=int, default=16)
    parser.add_argument("--mode", choices=[one.value for one in RefineMode], default="full")
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave both volumes")
    parser.add_argument("set", type=Path, metavar="SET")
    arguments = parser.parse_args()
    print(machine(arguments.work))
    tree = Tree(contents_of(arguments.set, arguments.megabytes, arguments.seed), arguments.seed)
    work = Path(tempfile.mkdtemp(dir=arguments.work, prefix="churn-"))
    try:
        old = work / "old"
        data = volume_in(old, arguments.mode)
        for week in range(arguments.weeks):
            tree.write(data)
            print(f"week {week + 1}: {len(tree.files)} files; {run_jobs(old)}", flush=True)
            if week + 1 < arguments.weeks:
                tree.week()
        old_bytes, old_parts = ended(old)
        new = work / "new"
        data = volume_in(new, arguments.mode)
        tree.changed = set(tree.files)
        tree.write(data)
        print(f"at once: {run_jobs(new)}")
        new_bytes, new_parts = ended(new)
        show(old_parts, new_parts)
        sizes = [sum(one.size_bytes for one in found.values()) for found in (old_parts, new_parts)]
        what = f"{arguments.weeks} weeks, {arguments.mode}, seed {arguments.seed}"
        print(f"{what}: {old_bytes / new_bytes - 1:+.2%} after the last refine run,")
        print(f"{sizes[0] / sizes[1] - 1:+.2%} after the next collection")
    finally:
        if arguments.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
