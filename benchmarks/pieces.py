"""Whether frequent pieces of chunks that do not compress would pay as records of their own.

    python -m benchmarks.pieces SET...

Frequency-based chunking (seed 002, chapter 2) cuts large chunks where a piece of one is also in
another. Each SET (a directory) is cut as an optimize run cuts it, and of the distinct chunks those
are taken that it would store as they are. Each is cut again with the preset 4k, from its first byte
on. A chunk is divided where that is a gain: pieces that are in several chunks are stored once,
neighbours that are always together as one; what lies between is a record as well; and the chunk
becomes a record of rows. Every record has its header and its table entry. The rival is the preset
8k for the same files, counted in the same way.
"""

import argparse
from array import array
from collections import defaultdict
from itertools import groupby, pairwise
from pathlib import Path

from benchmarks.measure import files_of
from dedupd_core import native
from dedupd_core.format.container import Codec, record_size
from dedupd_core.format.table import ENTRY_BYTES
from dedupd_core.format.volume_parameters import PRESETS, Parameters, new_parameters
from dedupd_core.units import KIB

ROW_BYTES = 16
PIECES = "4k"
RIVAL = "8k"
RAW_BYTES_MIN = 16 * KIB
THRESHOLDS = (2, 5)
ROUNDS = 4
"""After each, pieces are counted in those chunks alone that are divided."""

LEVEL, SAVING_MIN = 3, 0.05


def taken(stored_bytes: int) -> int:
    """What a record takes, with its entry."""
    return record_size(stored_bytes) + ENTRY_BYTES


class Chunks:
    """The distinct chunks of a set, with what each would take."""

    def __init__(self, preset: str, paths: list[str]) -> None:
        parameters = new_parameters(preset, "blake3", "user.pieces")
        self.raw: list[bytes] = []
        self.taken_bytes = self.raw_taken_bytes = 0
        self._known: set[bytes] = set()
        chunker = parameters.chunker()
        for path in paths:
            self._add(chunker, Path(path).read_bytes())

    def _add(self, chunker: native.chunker.Chunker, data: bytes) -> None:
        if not data:
            return
        found = chunker.process(data, [(0, len(data), True)])
        ends = memoryview(found.ends).cast("I")
        for at, (start, end) in enumerate(pairwise([0, *ends])):
            fingerprint = found.fingerprints[32 * at : 32 * at + 32]
            if fingerprint in self._known or found.zero[at]:
                continue
            self._known.add(fingerprint)
            self._store(data[start:end])

    def _store(self, raw: bytes) -> None:
        made = native.codec.encode(
            raw,
            array("I", [0]),
            array("I", [len(raw)]),
            level=LEVEL,
            saving_min=SAVING_MIN,
            header_bytes=0,
            align_bytes=1,
        )
        (length,) = memoryview(made.stored_lengths).cast("I")
        self.taken_bytes += taken(length)
        if made.codecs[0] == Codec.RAW and len(raw) >= RAW_BYTES_MIN:
            self.raw.append(raw)
            self.raw_taken_bytes += taken(length)


def pieces_of(chunks: list[bytes], parameters: Parameters) -> list[list[tuple[bytes, int]]]:
    """Of each chunk its pieces: key and length."""
    chunker = parameters.chunker()
    found = []
    for raw in chunks:
        cut = chunker.process(raw, [(0, len(raw), True)])
        lengths = [end - start for start, end in pairwise([0, *memoryview(cut.ends).cast("I")])]
        keys = [cut.fingerprints[32 * at : 32 * at + 8] for at in range(len(lengths))]
        found.append(list(zip(keys, lengths, strict=True)))
    return found


def gain(pieces: list[list[tuple[bytes, int]]], count_min: int) -> tuple[float, int, int]:
    """Bytes that are saved, how many chunks are divided, and into how many records more."""
    divided = set(range(len(pieces)))
    saved = records = 0.0
    for _ in range(ROUNDS):
        holders: dict[bytes, set[int]] = defaultdict(set)
        for at in divided:
            for key, _ in pieces[at]:
                holders[key].add(at)
        saved = records = 0.0
        kept = set()
        for at in divided:
            own, own_records = _gain_of(pieces[at], holders, count_min)
            if own > 0:
                kept.add(at)
                saved += own
                records += own_records
        if kept == divided:
            break
        divided = kept
    return saved, len(divided), int(records)


def _gain_of(
    pieces: list[tuple[bytes, int]], holders: dict[bytes, set[int]], count_min: int
) -> tuple[float, float]:
    """The part of one chunk in what is saved where all others are divided that have its pieces."""

    def group(piece: tuple[bytes, int]) -> frozenset[int]:
        others = holders[piece[0]]
        return frozenset(others) if len(others) >= count_min else frozenset()

    length = sum(one for _, one in pieces)
    after = records = 0.0
    rows = 0
    for others, run in groupby(pieces, group):
        joined = taken(sum(one for _, one in run))
        after += joined / max(1, len(others))
        records += 1 / max(1, len(others))
        rows += 1
    return taken(length) - after - taken(ROW_BYTES * rows), records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    arguments = parser.parse_args()
    print("| set | MB stored | as they are | threshold | saved | divided | records more | 8k |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for one in arguments.sets:
        paths = sorted(files_of(one))
        whole = Chunks(next(iter(PRESETS)), paths)
        rival = Chunks(RIVAL, paths)
        pieces = pieces_of(whole.raw, new_parameters(PIECES, "blake3", "user.pieces"))
        for count_min in THRESHOLDS:
            saved, divided, records = gain(pieces, count_min)
            share = saved / max(1, whole.raw_taken_bytes)
            print(
                f"| {one.name} | {whole.taken_bytes / 1e6:.1f}"
                f" | {whole.raw_taken_bytes / 1e6:.1f} | {count_min} | {share:.1%} | {divided:,} of"
                f" {len(whole.raw):,} | {records:,}"
                f" | {1 - rival.taken_bytes / whole.taken_bytes:.1%} of all |",
                flush=True,
            )


if __name__ == "__main__":
    main()
