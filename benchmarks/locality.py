"""How duplicates lie in real files: the stream of look-ups that later versions of a tree give.

Each tree is walked in the order of its names and cut as an optimize run cuts it. Distinct chunks
are numbered in the order in which they are stored: neighbours in a file are neighbours in the log.

    python -m benchmarks.locality [--preset 64k] [--min-size 32k] --program TREE TREE… [--program …]

The trees of a program are its versions, in their order. ``replay`` makes of them what an optimize
run meets in a store of any size: programs in turn, each in its later versions, whose chunks were
stored long ago, those of each version in a place of their own that is anywhere in the store. A
small program comes so often that each has as many look-ups.
"""

import argparse
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.format.volume_parameters import PRESETS, new_parameters
from dedupd_core.units import parse_size

LONG_CHUNKS = 16
"""A run of so many known chunks pays for the read that its first one costs."""


class Version(NamedTuple):
    """The chunks of one tree in the order in which they are looked up, by their numbers."""

    first_new: int
    """Numbers from this one on are of chunks that no earlier version has."""
    numbers: "array[int]"


def files(tree: Path, size_min: int) -> Iterator[Path]:
    """Regular files in the order of their names."""
    for directory, names, found in os.walk(tree):
        names.sort()
        for name in sorted(found):
            path = Path(directory) / name
            if not path.is_symlink() and path.stat().st_size >= size_min:
                yield path


def versions(trees: list[Path], preset: str, size_min: int) -> list[Version]:
    """The versions of one program."""
    chunker = new_parameters(preset, "blake3", "user.dedupd").chunker()
    known: dict[bytes, int] = {}
    made = []
    for tree in trees:
        version = Version(len(known), array("Q"))
        for path in files(tree, size_min):
            data = path.read_bytes()
            packed = chunker.process(data, [(0, len(data), True)]).fingerprints
            for at in range(0, len(packed), native.hashing.HASH_BYTES):
                fingerprint = packed[at : at + native.hashing.HASH_BYTES]
                version.numbers.append(known.setdefault(fingerprint, len(known)))
        made.append(version)
    return made


def replay(programs: list[list[Version]], chunks: int, seed: int) -> Iterator["array[int]"]:
    """Chunk numbers of a store of ``chunks``, or beyond it where a chunk is new, without an end."""
    rng = Random(seed)
    new = chunks
    lookups = [sum(len(version.numbers) for version in program[1:]) for program in programs]
    turns = [
        program
        for program, count in zip(programs, lookups, strict=True)
        for _ in range(max(lookups) // count)
    ]
    while True:
        for program in turns:
            firsts = [version.first_new for version in program]
            sizes = [b - a for a, b in pairwise([*firsts, max(program[-1].numbers) + 1])]
            places = [rng.randrange(max(1, chunks - size)) for size in sizes]
            for version in program[1:]:
                stream = array("Q")
                for number in version.numbers:
                    if number < version.first_new:
                        origin = bisect_right(firsts, number) - 1
                        stream.append(places[origin] + number - firsts[origin])
                    else:
                        stream.append(new + number - version.first_new)
                new = max(new, *stream) + 1
                yield stream


def run_lengths(program: list[Version]) -> list[int]:
    """Lengths of the runs of known chunks of later versions that are neighbours in the log."""
    lengths: list[int] = []
    for version in program[1:]:
        expected = None
        for number in version.numbers:
            if number >= version.first_new:
                expected = None
                continue
            if number == expected:
                lengths[-1] += 1
            else:
                lengths.append(1)
            expected = number + 1
    return lengths


def summary(program: list[Version]) -> dict[str, float]:
    """What tells of the locality of a program's versions."""
    lengths = sorted(run_lengths(program))
    total = sum(len(version.numbers) for version in program[1:])
    in_long = sum(length for length in lengths if length >= LONG_CHUNKS)
    return {
        "lookups": total,
        "known": round(sum(lengths) / total, 3),
        "run_mean": round(mean(lengths), 1),
        "run_median": median(lengths),
        f"known_in_runs_of_{LONG_CHUNKS}": round(in_long / sum(lengths), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, nargs="+", action="append", required=True)
    parser.add_argument("--preset", default="64k", choices=PRESETS)
    parser.add_argument("--min-size", type=parse_size, default=parse_size("32k"))
    options = parser.parse_args()
    for group in options.program:
        found = summary(versions(group, options.preset, options.min_size))
        print(json.dumps({"trees": [tree.name for tree in group], **found}, indent=2))


if __name__ == "__main__":
    main()
