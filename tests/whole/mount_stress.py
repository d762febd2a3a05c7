"""Writers, jobs and deaths of the mount, all at once and for long.

    python -m tests.whole.mount_stress DIRECTORY [--minutes N] [--seed N] [--exercisers N]

Each exerciser changes a file of its own at random, in the manner of fsx, and compares it with what
it has in memory; fio writes with verification beside them; the optimize job runs all the time and
the unoptimize job now and then; the process that serves the mount is killed at random moments.
Prints what was done, and ends with status 1 at the first byte that is wrong.
"""

import argparse
import errno
import json
import mmap
import multiprocessing
import os
import random
import subprocess
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from dedupd_core.errors import DedupdError
from tests.support.mounts import MountedLab, mounted_lab

SIZE_MAX = 3 << 20
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What the parts of a run share."""

    view: Path
    end: float
    stop: Event
    deaths: Any
    """Twice the deaths of the mount, and one more while it is dead."""
    results: Any

    def is_over(self) -> bool:
        return time.time() >= self.end or self.stop.is_set()


class Exerciser:
    """One file, and what it should hold. A change that a death interrupts may show or not."""

    def __init__(self, path: Path, seed: int, deaths: Any) -> None:
        """``deaths``: as in :class:`Plan`."""
        self.path = path
        self.deaths = deaths
        self.rng = random.Random(seed)
        self.model = bytearray()
        self.counts: Counter[str] = Counter()
        self.past: deque[str] = deque(maxlen=12)
        """The last changes, for whoever looks for what went wrong."""

    def step(self) -> None:
        rng = self.rng
        kind = rng.choices(
            ["write", "append", "truncate", "map", "read", "check", "sync", "replace"],
            [30, 5, 5, 10, 30, 4, 5, 1],
        )[0]
        offset, length = rng.randrange(SIZE_MAX), rng.choice([1, 100, 4096, 5000, 70_000, 300_000])
        self.counts[kind] += 1
        if kind == "read":
            data = self.read(offset, length)
            self.expect(data, bytes(self.model[offset : offset + length]), offset)
        elif kind == "check":
            self.expect(self.path.read_bytes(), bytes(self.model), 0)
        elif kind == "sync":
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())
        else:
            self.change(kind, offset, length)

    def read(self, offset: int, length: int) -> bytes:
        """All of a range: where the mount dies during a call, that returns what it has."""
        found = b""
        with open(self.path, "rb", buffering=0) as file:
            while more := os.pread(file.fileno(), length - len(found), offset + len(found)):
                found += more
        return found

    def change(self, kind: str, offset: int, length: int) -> None:
        """A change, which is in the model only once it has succeeded."""
        after = bytearray(self.model)
        data = self.rng.randbytes(length) if self.rng.random() < 0.8 else bytes(length)
        if kind == "append":
            offset = len(after)
        if kind == "truncate":
            del after[offset:]
            after.extend(bytes(offset - len(after)))
        elif kind == "map":
            length = max(0, min(length, len(after) - offset))
            after[offset : offset + length] = data[:length]
        elif kind == "replace":
            after = bytearray(data)
        else:
            after.extend(bytes(max(0, offset - len(after))))
            after[offset : offset + length] = data
        self.past.append(f"{kind} at {offset} of {length}, {len(self.model)} to {len(after)}")
        try:
            self.carry_out(kind, offset, data[:length])
        except OSError as error:
            self.past.append(f"which ended with {error}")
            self.adopt(after)
            raise
        self.model = after

    def carry_out(self, kind: str, offset: int, data: bytes) -> None:
        if kind == "truncate":
            os.truncate(self.path, offset)
        elif kind == "replace":
            fresh = self.path.with_suffix(".new")
            fresh.write_bytes(data)
            os.replace(fresh, self.path)
        elif kind == "map":
            if not data:
                return
            self.write_mapped(offset, data)
        else:
            with open(self.path, "r+b", buffering=0) as file:
                done = 0
                while done < len(data):
                    done += os.pwrite(file.fileno(), data[done:], offset + done)

    def write_mapped(self, offset: int, data: bytes) -> None:
        """In a child: touching the mapping of a mount that has died ends a process (SIGBUS)."""
        child = os.fork()
        if child == 0:
            try:
                with (
                    open(self.path, "r+b") as file,
                    mmap.mmap(file.fileno(), len(self.model)) as mapping,
                ):
                    mapping[offset : offset + len(data)] = data
                    mapping.flush()
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError(errno.EIO, "the mapping was lost")

    def adopt(self, after: bytearray) -> None:
        """The mount died during a change: wait for it, and see how far the change came.

        Each byte must be the old one or the new one, and so must the length.
        """
        found = self.read_when_back()
        shortest, longest = sorted((len(self.model), len(after)))
        if not shortest <= len(found) <= longest:
            raise AssertionError(
                f"{self.path}: {len(found)} bytes, {shortest} to {longest} expected"
            )
        old, new = bytes(self.model), bytes(after)
        if found not in (old, new):
            old, new = old.ljust(longest, b"\0"), new.ljust(longest, b"\0")
            wrong = [n for n, byte in enumerate(found) if byte not in (old[n], new[n])]
            if wrong:
                self.keep(old=old, new=new, found=found)
                raise AssertionError(
                    f"{self.path}: {len(wrong)} bytes are neither old nor new, "
                    f"from {wrong[0]} to {wrong[-1]}; {list(self.past)}"
                )
        self.model = bytearray(found)

    def keep(self, **contents: bytes) -> None:
        """Beside the mount: what it was, and what it should have been."""
        for what, content in contents.items():
            (self.path.parent.parent / f"{self.path.name}.{what}").write_bytes(content)

    def read_when_back(self) -> bytes:
        """What a mount gives that lives. The pages of a dead one can still be read without it, and
        may hold what a mapping has changed and nobody will ever write."""
        while True:
            deaths = self.deaths.value
            if deaths % 2 == 0:
                with suppress(OSError):
                    found = self.path.read_bytes()
                    if self.deaths.value == deaths:
                        return found
            time.sleep(POLL_S)

    def create(self) -> None:
        while True:
            try:
                return self.path.touch()
            except OSError:
                time.sleep(POLL_S)

    def expect(self, found: bytes, expected: bytes, offset: int) -> None:
        if found == expected:
            return
        at = next(
            (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
            min(len(found), len(expected)),
        )
        self.keep(found=found, expected=expected)
        raise AssertionError(
            f"{self.path}: differs at {offset + at} ({len(found)} and {len(expected)} "
            f"bytes); {list(self.past)}"
        )


def exercise(plan: Plan, number: int, seed: int) -> None:
    one = Exerciser(plan.view / f"exercised-{number}", seed, plan.deaths)
    one.create()
    while not plan.is_over():
        try:
            one.step()
        except OSError:
            one.counts["interrupted"] += 1
            one.expect(one.read_when_back(), bytes(one.model), 0)
    one.expect(one.read_when_back(), bytes(one.model), 0)
    plan.results.put(("exerciser", dict(one.counts)))


def verify_with_fio(plan: Plan, seed: int) -> None:
    """fio writes and verifies, again and again; a run in which the mount died proves nothing."""
    counts: Counter[str] = Counter()
    while not plan.is_over():
        deaths = plan.deaths.value
        command = [
            "fio",
            "--name=verify",
            f"--filename={plan.view}/verified",
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--size=16M",
            "--ioengine=psync",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            f"--randseed={seed + counts['runs']}",
            "--fallocate=none",
            "--verify_state_save=0",  # a file in the directory that this runs in
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        counts["runs"] += 1
        if result.returncode and deaths % 2 == 0 and plan.deaths.value == deaths:
            raise AssertionError(f"fio: {result.stdout[-2000:]}{result.stderr[-2000:]}")
        counts["verified" if result.returncode == 0 else "interrupted"] += 1
    plan.results.put(("fio", dict(counts)))


def run_jobs(plan: Plan, lab: MountedLab, seed: int) -> None:
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    while not plan.is_over():
        try:
            if rng.random() < 0.05:
                counts["restored"] += lab.unoptimize().files_restored
            else:
                report = lab.optimize()
                counts["optimized"] += report.files_optimized
                for message in report.messages:
                    counts[message.partition(": ")[2]] += 1
                for reason, number in report.files_left.items():
                    counts[f"left: {reason}"] += number
            counts["runs"] += 1
        except DedupdError:
            counts["interrupted"] += 1
        time.sleep(POLL_S)
    plan.results.put(("jobs", dict(counts)))


def guarded(plan: Plan, function: Callable[..., None], *arguments: object) -> None:
    try:
        function(plan, *arguments)
    except BaseException:
        plan.results.put(("failure", traceback.format_exc()))
        plan.stop.set()
        raise


def kill_at_random(plan: Plan, lab: MountedLab, seed: int) -> None:
    rng = random.Random(seed)
    while not plan.is_over():
        if plan.stop.wait(min(rng.uniform(2, 20), max(0, plan.end - time.time()))):
            return
        with plan.deaths.get_lock():
            plan.deaths.value += 1
        lab.kill()
        lab.mount()
        with plan.deaths.get_lock():
            plan.deaths.value += 1


def run(directory: Path, minutes: float, seed: int, exercisers: int) -> dict[str, Any]:
    """A run in a new volume below ``directory``; what was done, or AssertionError."""
    with mounted_lab(directory) as lab:
        plan = Plan(
            lab.view,
            time.time() + 60 * minutes,
            multiprocessing.Event(),
            multiprocessing.Value("i", 0),
            multiprocessing.SimpleQueue(),
        )
        work: list[tuple[Any, ...]] = [
            (exercise, number, seed + number) for number in range(exercisers)
        ]
        work += [(verify_with_fio, seed), (run_jobs, lab, seed)]
        processes = [multiprocessing.Process(target=guarded, args=(plan, *part)) for part in work]
        for process in processes:
            process.start()
        kill_at_random(plan, lab, seed)
        found: dict[str, Any] = {"deaths": plan.deaths.value // 2}
        for process in processes:
            process.join()
            if process.exitcode:
                found["died"] = process.exitcode
        while not plan.results.empty():
            what, value = plan.results.get()
            if what == "failure":
                raise AssertionError(value)
            found[what] = Counter(found.get(what, {})) + Counter(value)
        assert "died" not in found, found
        lab.unmount()
        lab.verify_clean()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exercisers", type=int, default=3)
    options = parser.parse_args()
    try:
        found = run(options.directory, options.minutes, options.seed, options.exercisers)
    except AssertionError as error:
        print(error)
        sys.exit(1)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
