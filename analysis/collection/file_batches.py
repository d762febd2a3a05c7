"""Buffers of content between the reader and the lanes."""

import mmap
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.collection.tree_walk import Failure
from dedupd_core.format.volume_parameters import PRESETS

HEADROOM_BYTES = max(preset.max_bytes for preset in PRESETS.values())
"""Bytes kept from the previous batch for unfinished chunks of a continued file: at least S_max."""


class Segment(NamedTuple):
    """Bytes [start, end) of a batch that belong to one file, starting at ``position`` of the file.

    A hole of ``hole`` bytes follows the segment, and ``blank`` bytes of the segment are in holes.
    ``failed``: the rest of the file is skipped.
    """

    dataset: int
    file: int
    start: int
    end: int
    position: int
    first: bool
    final: bool
    hole: int = 0
    failed: bool = False
    blank: int = 0


SegmentRows = NDArray[np.void]
"""Segments as a structured array with the fields of ``Segment``."""

_SEGMENT = np.dtype(
    [
        ("dataset", np.uint16),
        ("file", np.uint32),
        ("start", np.int64),
        ("end", np.int64),
        ("position", np.int64),
        ("first", np.bool_),
        ("final", np.bool_),
        ("hole", np.int64),
        ("failed", np.bool_),
        ("blank", np.int64),
    ]
)


def one_segment(segment: Segment) -> SegmentRows:
    return np.array([segment], _SEGMENT)


def whole_files(
    dataset: int, files: NDArray[np.uint32], sizes: NDArray[np.int64], start: int
) -> SegmentRows:
    """Return segments of files that are completely in a batch, consecutively from ``start`` on."""
    segments = np.zeros(len(files), _SEGMENT)
    ends = start + np.cumsum(sizes)
    segments["dataset"], segments["file"] = dataset, files
    segments["start"], segments["end"] = ends - sizes, ends
    segments["first"] = segments["final"] = True
    return segments


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the list of files: after all data before ``position`` of ``file``."""

    file: int
    position: int


@dataclass(slots=True)
class Batch:
    """A buffer of content. Its segments have no gaps; only the last may be unfinished, or have a
    hole after it.

    The next segment of an unfinished file is preceded by the bytes before it in the file,
    ``HEADROOM_BYTES`` of them. ``after`` is the end of the batch.
    """

    buffer: mmap.mmap
    parts: list[SegmentRows] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    after: Cursor = Cursor(0, 0)
    done_bytes: int = 0

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def segments(self) -> SegmentRows:
        """All segments, in order."""
        return np.concatenate([np.empty(0, _SEGMENT), *self.parts])
