"""What next-chunk hints save (RapidCDC, seed 000, chapter 3), on each code path of the chunker.

A table entry has the length of the chunk that followed. Where a chunk is a duplicate, the boundary
that this suggests is tried first; it is taken if the window there is a full match (RWT) and the
chunk up to there is known (FPT). Then the cut is the plain definition's: a chunk's bytes from
S_min to its end decide whether its end is the first full match, the known chunk has the same bytes
and was cut there, and bytes after a full match do not matter. A suggested end that is no full
match is never taken: whether the plain definition cuts there depends on the bytes after it.

    python -m benchmarks.hints [--preset 64k] [--path scalar] TREE [TREE]

The first tree is stored; the second, or the first again, is cut with and without hints, in memory,
on one core. Every cut is compared with the plain ones. Volumes of the first tree are made, too, and
runs over copies of its files measured, without hints and with them, as the code of production has
them.
"""

import argparse
import json
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from unittest import mock

from benchmarks.locality import files
from benchmarks.volumes import new_volume, optimize
from dedupd_core import native
from dedupd_core.format.volume_parameters import PRESETS, Parameters, new_parameters
from jobs.optimize import store_session

WINDOW_BYTES = 64
FILE_BYTES_MIN = 32 << 10
READ_BYTES_MAX = 1 << 30
ROUNDS = 3


@dataclass(slots=True)
class Counts:
    """What became of the suggestions."""

    chunks: int = 0
    hints: int = 0
    full_matches: int = 0
    taken: int = 0
    taken_bytes: int = 0
    wasted_bytes: int = 0


class Lab:
    """Cutting with and without hints."""

    def __init__(self, preset: str, path: str | None) -> None:
        parameters = new_parameters(preset, "blake3", "user.dedupd")
        self.chunker = parameters.chunker(path)
        self._bits = parameters.chunking.bits
        self._max_bytes = parameters.chunking.max_bytes
        self.next_bytes: dict[bytes, int] = {}
        """Known chunks, and the length of the one that followed each, or 0."""

    def plain(self, data: bytes) -> native.chunker.Chunks:
        return self.chunker.process(data, [(0, len(data), True)], 1)

    def store(self, data: bytes) -> None:
        found = self.plain(data)
        ends = [0, *memoryview(found.ends).cast("I")]
        lengths = [b - a for a, b in zip(ends[1:], [*ends[2:], ends[-1]], strict=True)]
        for at, length in enumerate(lengths):
            fingerprint = found.fingerprints[32 * at : 32 * at + 32]
            self.next_bytes.setdefault(fingerprint, length)

    def is_full_match(self, view: memoryview, end: int) -> bool:
        """Whether the window before ``end`` is a full match: the RWT of seed 000."""
        found = native.testing.candidates(self.chunker, view[end - WINDOW_BYTES : end])
        return found == array("I", [WINDOW_BYTES, self._bits]).tobytes()

    def hinted(self, data: bytes, counts: Counts) -> "array[int]":
        """The ends of the chunks of ``data``. Where no hint is taken, the plain cut is looked for
        in as many bytes as one chunk can have."""
        view, ends, at, hint = memoryview(data), array("I"), 0, 0
        while at < len(data):
            end, fingerprint = at + hint, b""
            if hint and end <= len(data):
                counts.hints += 1
                if self.is_full_match(view, end):
                    counts.full_matches += 1
                    fingerprint = native.hashing.fingerprint(view[at:end])
                    if fingerprint in self.next_bytes:
                        counts.taken += 1
                        counts.taken_bytes += hint
                    else:
                        counts.wasted_bytes += hint
                        fingerprint = b""
            if not fingerprint:
                limit = min(len(data), at + self._max_bytes)
                cuts = native.testing.cut(self.chunker, view[at:limit], limit == len(data))
                end = at + memoryview(cuts).cast("I")[0]
                fingerprint = native.hashing.fingerprint(view[at:end])
            counts.chunks += 1
            ends.append(end)
            hint = self.next_bytes.get(fingerprint, 0)
            at = end
        return ends


def read(tree: Path) -> list[bytes]:
    """The files of a tree, a gigabyte at most."""
    made, left = [], READ_BYTES_MAX
    for path in files(tree, FILE_BYTES_MIN):
        data = path.read_bytes()
        if len(data) <= left:
            made.append(data)
            left -= len(data)
    return made


def best(step: Callable[[], object]) -> float:
    """The shortest CPU time of a few."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        step()
        taken.append(time.process_time() - began)
    return min(taken)


def measure(
    preset: str, path: str | None, stored: list[bytes], asked: list[bytes]
) -> dict[str, float]:
    """Seconds for each gigabyte of each way, and what became of the hints."""
    lab = Lab(preset, path)
    for data in stored:
        lab.store(data)
    plain = [lab.plain(data).ends for data in asked]
    counts = Counts()
    for data, ends in zip(asked, plain, strict=True):
        assert lab.hinted(data, counts).tobytes() == ends, "a hint changed a cut"
    total = sum(map(len, asked))

    def fingerprint_all() -> None:
        for data, ends in zip(asked, plain, strict=True):
            native.hashing.fingerprints(data, ends, threads=1)

    plain_s = best(lambda: [lab.plain(data) for data in asked]) / total * 1e9
    cut_s = best(lambda: [native.testing.cut(lab.chunker, data) for data in asked]) / total * 1e9
    fingerprint_s = best(fingerprint_all) / total * 1e9
    taken = counts.taken_bytes / total
    ideal_s = plain_s - taken * cut_s + counts.wasted_bytes / total * fingerprint_s
    return {
        "gigabytes": round(total / 1e9, 3),
        "hints_per_chunk": round(counts.hints / counts.chunks, 3),
        "full_matches_of_hints": round(counts.full_matches / max(1, counts.hints), 3),
        "bytes_by_hint": round(taken, 3),
        "wasted_bytes": round(counts.wasted_bytes / total, 4),
        "cut_and_fingerprint_s_per_GB": round(plain_s, 3),
        "cut_s_per_GB": round(cut_s, 3),
        "fingerprint_s_per_GB": round(fingerprint_s, 3),
        "with_hints_at_best_s_per_GB": round(ideal_s, 3),
        "hinted_prototype_s_per_GB": round(
            best(lambda: [lab.hinted(data, Counts()) for data in asked]) / total * 1e9, 3
        ),
    }


@contextmanager
def cut_by(path: str | None, *, with_hints: bool) -> Iterator[None]:
    """Jobs cut by this code path, and try the ends that known chunks suggest, or do not."""
    used = new_parameters("64k", "blake3", "user.dedupd").chunker(path).path
    followed = frozenset({used} if with_hints else ())
    with (
        mock.patch.object(Parameters, "chunker", partialmethod(Parameters.chunker, path)),
        mock.patch.object(store_session, "_FOLLOWED", followed),
    ):
        yield


def whole_run(tree: Path, work: Path) -> dict[str, float]:
    """An optimize run over copies of files that are stored: its CPU time for each gigabyte."""
    with tempfile.TemporaryDirectory(dir=work, prefix="hints-") as name:
        root = Path(name)
        shutil.copytree(tree, root / "first", symlinks=True)
        data = new_volume(root, min_size="32k")
        optimize(root)
        shutil.copytree(tree, data / "again", symlinks=True)
        began = time.process_time()
        report = optimize(root)
        spent = time.process_time() - began
        gigabytes = report.sums.raw_bytes / 1e9
        assert report.sums.new_chunks == 0
        return {
            "run_cpu_s_per_GB": round(spent / gigabytes, 3),
            "of_it_cutting_wall_s_per_GB": round(report.sums.chunk_s / gigabytes, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="+", help="what is stored, and what is cut")
    parser.add_argument("--preset", default="64k", choices=PRESETS)
    parser.add_argument("--path", help="the chunker's code path, as `scalar`; else the fastest")
    parser.add_argument("--work", type=Path, default=Path("."), help="where the volume is made")
    options = parser.parse_args()
    stored = read(options.trees[0])
    asked = read(options.trees[-1])
    result = measure(options.preset, options.path, stored, asked)
    for name, with_hints in (("plain", False), ("with_hints", True)):
        with cut_by(options.path, with_hints=with_hints):
            run = whole_run(options.trees[0], options.work)
        result.update({f"{name}_{key}": value for key, value in run.items()})
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
