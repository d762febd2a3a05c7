"""How early a run frees space: the order of classes, replayed beside other orders.

    python -m benchmarks.order [--size 50G] [--seed 1] [--json]

Files of classes that differ, as file servers have them, lie in a tree. A run goes through them in
the order of the tree, as it did before; by what it learns on its way (``jobs.optimize.order``, the
code of production), for the first time and in a later run; and in the best order, that of
hindsight. The time of a file is that of two cores for its kind (docs/figures/ingest.md), not
what the order assumes.

``--modes`` replays what a mode for each class would bring (seed 001: whole, without compression, or
noted only; the least cost, with hysteresis, one file in sixteen taken whole all the same): the time
that it saves, and the savings that it loses. All modes read, cut and fingerprint a file, and what
does not pay is written by none; so there is one thing to leave out, the compression of new bytes.
"""

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dedupd_core.config.profiles import COMPRESSED
from dedupd_core.units import GIB, KIB, MIB, format_size, parse_size
from jobs.optimize.order import SAMPLE, ClassFigures, Figures, Order
from jobs.tree.candidates import Candidate
from jobs.tree.file_classes import FileClass, class_of

READ_MBS = 1600.0
"""Reading, cutting, fingerprinting and looking up: what duplicates cost."""
COMPRESS_MBS = 400.0
"""Compressing and writing, besides, where it pays."""
TRIAL_MBS = 2500.0
"""Finding out that it does not, where the policy does not say so of the type."""
FILE_S = 45e-6

RAW_TYPES = frozenset(one for group in COMPRESSED for one in group.types)
"""Types that the policy does not have compressed."""

SAVING_MIN = 0.05
"""The policy's `min_file_saving`; and what a chunk must lose to be kept compressed."""

RUNS = 8
"""Of which the modes of a class learn from those before."""

WORTH_MBS = (1, 10, 100)
"""Savings for the time of compressing that are wanted at least: 1 MB/s takes what there is."""

HYSTERESIS = 0.1
"""A mode is left for one that costs so much less."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Files of a class. Of the bytes a part is duplicate; of what is new, a part is saved."""

    folder: str
    type: str
    share: float
    mean_bytes: int
    duplicate: float
    compressed: float


KINDS = (
    Kind("archive", "zip", 0.14, 40 * MIB, 0.02, 0.0),
    Kind("archive", "7z", 0.06, 90 * MIB, 0.0, 0.0),
    Kind("backups", "img", 0.12, 900 * MIB, 0.80, 0.45),
    Kind("homes", "docx", 0.06, 300 * KIB, 0.15, 0.02),
    Kind("homes", "jpg", 0.10, 3 * MIB, 0.05, 0.0),
    Kind("homes", "pdf", 0.08, 900 * KIB, 0.10, 0.03),
    Kind("homes", "txt", 0.02, 40 * KIB, 0.10, 0.75),
    Kind("mail", "eml", 0.06, 90 * KIB, 0.10, 0.28),
    Kind("media", "mp4", 0.20, 400 * MIB, 0.01, 0.0),
    Kind("projects", "csv", 0.06, 8 * MIB, 0.20, 0.80),
    Kind("software", "c", 0.04, 22 * KIB, 0.40, 0.78),
    Kind("software", "so", 0.06, 800 * KIB, 0.45, 0.60),
)


@dataclass(frozen=True, slots=True)
class File:
    """A file: what it saves, and how long it takes."""

    candidate: Candidate
    new_bytes: float
    saved_bytes: float
    time_s: float
    compressed: float

    @property
    def compress_s(self) -> float:
        """Of the time, what compressing its new bytes takes, or finding out that it is vain."""
        file_type = class_of(self.candidate.path).type
        return self.new_bytes / _compress_speed(file_type, self.compressed)

    @property
    def saved_raw_bytes(self) -> float:
        """What it saves where its new bytes are not compressed."""
        size = self.candidate.work_bytes
        saved = size - self.new_bytes
        return saved if saved >= SAVING_MIN * size else 0.0


def _compress_speed(file_type: str, compressed: float) -> float:
    """Bytes a second."""
    if file_type in RAW_TYPES:
        return math.inf
    return 1e6 * (COMPRESS_MBS if compressed >= SAVING_MIN else TRIAL_MBS)


def volume(size_bytes: int, seed: int) -> list[File]:
    """The files, in the order of the tree."""
    rng = random.Random(seed)
    files: list[File] = []
    for kind in KINDS:
        left = size_bytes * kind.share
        while left > 0:
            size = min(left, rng.lognormvariate(0, 1) * kind.mean_bytes / 1.65) + 4 * KIB
            left -= size
            path = f"{kind.folder}/{rng.randrange(400):03}/{len(files)}.{kind.type}".encode()
            duplicate = min(1.0, rng.gammavariate(0.7, kind.duplicate / 0.7 + 1e-9))
            compressed = min(0.95, max(0.0, rng.gauss(kind.compressed, 0.3 * kind.compressed)))
            new = size * (1 - duplicate)
            saved = size * duplicate + new * compressed
            speed = _compress_speed(kind.type, compressed)
            time_s = size / READ_MBS / 1e6 + new / speed + FILE_S
            one = Candidate.plain(path, (rng.randrange(1 << 32), int(size), 0, 0))
            pays = saved >= SAVING_MIN * size
            files.append(File(one, new, saved if pays else 0.0, time_s, compressed))
    return sorted(files, key=lambda file: file.candidate.path)


def by_classes(files: Sequence[File], figures: ClassFigures) -> list[File]:
    """In the order of production, which learns on its way."""
    order = Order(figures)
    for file in files:
        order.expect(file.candidate)
    taken = []
    for choice in order.choices():
        for file in files:
            path, identity = file.candidate.path, file.candidate.identity
            if choice.takes(path, identity.inode, identity.size):
                taken.append(file)
                seen = Figures(1, identity.size, file.new_bytes, file.saved_bytes)
                figures.add(class_of(path), seen)
    figures.turn += 1
    assert len(taken) == len(files)
    return taken


def by_known_classes(files: Sequence[File]) -> list[File]:
    """Whole classes, the best first: nobody who goes by classes can do better."""
    saved: Counter[FileClass] = Counter()
    time_ns: Counter[FileClass] = Counter()
    for file in files:
        one = class_of(file.candidate.path)
        saved[one] += int(file.saved_bytes)
        time_ns[one] += int(1e9 * file.time_s)
    rates = {one: saved[one] / time_ns[one] for one in time_ns}
    return sorted(files, key=lambda file: -rates[class_of(file.candidate.path)])


def saved_within(files: Sequence[File], share: float) -> float:
    """The part of all savings that the first part of the time brings."""
    left_s = share * sum(file.time_s for file in files)
    saved = 0.0
    for file in files:
        part = min(1.0, left_s / file.time_s)
        saved += file.saved_bytes * part
        left_s -= file.time_s * part
        if left_s <= 0:
            break
    return saved / sum(file.saved_bytes for file in files)


@dataclass(slots=True)
class Modes:
    """What a mode for each class brings over some runs: parts of all time, and of all savings."""

    vain_s: float = 0.0
    spared_s: float = 0.0
    time_s: float = 0.0
    lost_bytes: float = 0.0
    saved_bytes: float = 0.0
    switches: int = 0

    def row(self) -> dict[str, float]:
        return {
            "vain trials, of the time": self.vain_s / self.time_s,
            "time that modes spare": self.spared_s / self.time_s,
            "savings that modes lose": self.lost_bytes / self.saved_bytes,
            "switches a run": self.switches / RUNS,
        }


def modes(size_bytes: int, seed: int, rate_min: float) -> Modes:
    """Runs over new files, each class in the mode that cost least in the runs before. A byte that
    is saved is worth the time of ``rate_min``, in seconds: the least rate of savings that is
    wanted."""
    found, chosen = Modes(), dict.fromkeys((FileClass(k.folder, k.type) for k in KINDS), 0)
    learned: dict[FileClass, list[float]] = {}
    for run in range(RUNS):
        costs: dict[FileClass, list[float]] = {one: [0.0, 0.0] for one in chosen}
        for number, file in enumerate(volume(size_bytes // RUNS, seed * RUNS + run)):
            one = class_of(file.candidate.path)
            is_sample = number % SAMPLE == run % SAMPLE
            lost = file.saved_bytes - file.saved_raw_bytes
            if is_sample or not chosen[one]:
                costs[one][0] += file.compress_s
                costs[one][1] += lost * rate_min
            if chosen[one] and not is_sample:
                found.spared_s += file.compress_s
                found.lost_bytes += lost
            found.vain_s += file.compress_s if file.compressed < SAVING_MIN else 0.0
            found.time_s += file.time_s
            found.saved_bytes += file.saved_bytes
        for one, (whole, without) in costs.items():
            known = learned.setdefault(one, [0.0, 0.0])
            known[0], known[1] = known[0] / 2 + whole, known[1] / 2 + without
            own, other = known if not chosen[one] else reversed(known)
            if other < (1 - HYSTERESIS) * own:
                chosen[one] = 1 - chosen[one]
                found.switches += 1
    return found


def orders(files: Sequence[File]) -> dict[str, Callable[[], Sequence[File]]]:
    figures = ClassFigures(raw_types=RAW_TYPES)
    return {
        "tree": lambda: files,
        "classes, first run": lambda: by_classes(files, figures),
        "classes, later run": lambda: by_classes(files, figures),
        "classes, hindsight": lambda: by_known_classes(files),
        "hindsight": lambda: sorted(files, key=lambda file: -file.saved_bytes / file.time_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=parse_size, default=50 * GIB)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", action="store_true", help="what modes of classes would bring")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.modes:
        rates = {f"{mbs} MB/s": 1e-6 / mbs for mbs in WORTH_MBS}
        table = {n: modes(arguments.size, arguments.seed, r).row() for n, r in rates.items()}
        if arguments.json:
            print(json.dumps(table, indent=2))
        else:
            for name, parts_of in table.items():
                print(f"at least {name}:", *(f"{k} {v:.3f};" for k, v in parts_of.items()))
        return
    files = volume(arguments.size, arguments.seed)
    parts = (1 / 6, 1 / 3, 1 / 2, 2 / 3, 1.0)
    rows = {
        name: [saved_within(order, part) for part in parts]
        for name, make in orders(files).items()
        for order in [make()]
    }
    if arguments.json:
        print(json.dumps({"parts": parts, "orders": rows}, indent=2))
        return
    size = sum(file.candidate.work_bytes for file in files)
    saved = sum(file.saved_bytes for file in files)
    time_s = sum(file.time_s for file in files)
    print(f"{format_size(size)}, {len(files)} files: {format_size(int(saved))} in {time_s:.0f} s")
    print("savings after … of the time".ljust(30), *(f"{part:7.0%}" for part in parts))
    for name, row in rows.items():
        print(name.ljust(30), *(f"{one:7.1%}" for one in row))


if __name__ == "__main__":
    main()
