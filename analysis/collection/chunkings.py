"""The chunkings that a study compares, by their names in the log."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.format.volume_parameters import DEFAULT_PRESET, PRESETS, Chunking
from dedupd_core.units import KIB

DEFAULT = DEFAULT_PRESET
"""The product's default, and the chunking of most of the study's tables."""

FIXED = "fixed-64k"
FIXED_BYTES = 64 * KIB

BASIC_SUFFIX = "-basic"
"""Marks Rabin chunking without regression: at S_max, a cut is forced."""

SIZES = tuple(reversed(PRESETS))
"""The averages of the Rabin chunkings, smallest first."""

ALL = (*(f"{size}{suffix}" for size in reversed(SIZES) for suffix in ("", BASIC_SUFFIX)), FIXED)


@dataclass(frozen=True, slots=True)
class Segments:
    """Ranges of a buffer, each from the start of a chunk: parallel arrays.

    If ``final`` is not set, the file continues after the range.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    final: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Cuts:
    """The chunks of some segments of a buffer: parallel arrays, one element per chunk.

    ``fingerprints`` has four words of 64 bit per chunk; ``counts`` has one element per segment.
    """

    ends: NDArray[np.uint32]
    counts: NDArray[np.uint32]
    fingerprints: NDArray[np.uint64]
    zero: NDArray[np.bool_]


class RabinCutter:
    """The product's own chunker."""

    def __init__(self, chunking: Chunking) -> None:
        self.max_bytes = chunking.max_bytes
        self._chunker = native.chunker.Chunker(**asdict(chunking))

    def process(self, data: memoryview, segments: Segments) -> Cuts:
        packed = (segments.starts.tobytes(), segments.ends.tobytes(), segments.final.tobytes())
        found = self._chunker.process_packed(data, *packed)
        return Cuts(
            np.frombuffer(found.ends, np.uint32),
            np.frombuffer(found.counts, np.uint32),
            np.frombuffer(found.fingerprints, np.uint64).reshape(-1, 4),
            np.frombuffer(found.zero, np.bool_),
        )


class FixedCutter:
    """Blocks of one length, aligned to the start of the file."""

    max_bytes = FIXED_BYTES

    def __init__(self) -> None:
        zeros = native.hashing.fingerprint(bytes(FIXED_BYTES))
        self._zero_block = np.frombuffer(zeros, np.uint64)

    def process(self, data: memoryview, segments: Segments) -> Cuts:
        ends: list[int] = []
        counts = []
        tails = []
        columns = segments.starts.tolist(), segments.ends.tolist(), segments.final.tolist()
        for start, end, final in zip(*columns, strict=True):
            cuts = range(start + FIXED_BYTES, end + 1, FIXED_BYTES)
            ends += cuts
            count = len(cuts)
            if final and start + count * FIXED_BYTES < end:
                tails.append(len(ends))
                ends.append(end)
                count += 1
            counts.append(count)
        base = int(segments.starts[0])
        relative = np.array(ends, np.uint32) - np.uint32(base)
        packed = native.hashing.fingerprints(data[base:], relative.tobytes())
        fingerprints = np.frombuffer(packed, np.uint64).reshape(-1, 4)
        zero: NDArray[np.bool_] = (fingerprints == self._zero_block).all(axis=1)
        for tail in tails:
            start = ends[tail - 1] if tail else base
            zero[tail] = data[start] == 0 and native.hashing.is_zero(data[start : ends[tail]])
        return Cuts(np.array(ends, np.uint32), np.array(counts, np.uint32), fingerprints, zero)


Cutter = RabinCutter | FixedCutter
"""Splits segments of a buffer into chunks with fingerprints. Only the last may be unfinished."""


def cutter(name: str) -> Cutter:
    """Return the cutter with this name. Raises UsageError."""
    if name == FIXED:
        return FixedCutter()
    size = name.removesuffix(BASIC_SUFFIX)
    if size not in PRESETS:
        raise UsageError(f"chunking {name!r}: unknown; use one of {', '.join(ALL)}")
    chunking = PRESETS[size]
    return RabinCutter(replace(chunking, regression=0) if name.endswith(BASIC_SUFFIX) else chunking)


def lanes_of(names: Sequence[str]) -> list[list[str]]:
    """Group the names that share compressed chunks: one size with and without regression."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.removesuffix(BASIC_SUFFIX), []).append(name)
    return list(groups.values())
