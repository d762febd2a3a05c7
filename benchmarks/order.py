"""How early a run frees space: the order of classes, replayed beside other orders.

    python -m benchmarks.order [--size 50G] [--seed 1] [--json]

Files of classes that differ, as file servers have them, lie in a tree. A run goes through them in
the order of the tree, as it did before; by what it learns on its way (``jobs.optimize.order``, the
code of production), for the first time and in a later run; and in the best order, that of
hindsight. The time of a file is that of two cores for its kind (docs/performance.md), not what the
order assumes.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dedupd.units import GIB, KIB, MIB, format_size, parse_size
from jobs.optimize.order import ClassFigures, Figures, Order
from jobs.tree.candidates import Candidate
from jobs.tree.file_classes import class_of

READ_MBS = 1600.0
"""Reading, cutting, fingerprinting and looking up: what duplicates cost."""
COMPRESS_MBS = 400.0
"""Compressing and writing, besides, where it pays."""
TRIAL_MBS = 2500.0
"""Finding out that it does not."""
FILE_S = 45e-6


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
            speed = COMPRESS_MBS if compressed >= 0.05 else TRIAL_MBS
            time_s = size / READ_MBS / 1e6 + new / speed / 1e6 + FILE_S
            one = Candidate.plain(path, (rng.randrange(1 << 32), int(size), 0, 0))
            pays = saved >= 0.05 * size
            files.append(File(one, new, saved if pays else 0.0, time_s))
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


def orders(files: Sequence[File]) -> dict[str, Callable[[], Sequence[File]]]:
    figures = ClassFigures()
    return {
        "tree": lambda: files,
        "classes, first run": lambda: by_classes(files, figures),
        "classes, later run": lambda: by_classes(files, figures),
        "hindsight": lambda: sorted(files, key=lambda file: -file.saved_bytes / file.time_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=parse_size, default=50 * GIB)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
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
