"""Buffers of content on their way from the reader to the lanes."""

import mmap
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.collection.tree_walk import Failure
from dedupd_core.format.volume_parameters import PRESETS

HEADROOM_BYTES = max(preset.max_bytes for preset in PRESETS.values())
"""Kept from the batch before, for the unfinished chunks of a file that goes on: S_max at least."""


class Segment(NamedTuple):
    """Bytes [start, end) of a batch that belong to one file, from ``position`` of it on.

    A hole of ``hole`` bytes follows them, and ``blank`` of them lie in holes themselves.
    ``failed`` says that the file is given up.
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
"""Many segments: a structured array with the fields of ``Segment``."""

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
    """Segments of files that lie in a batch completely, one after the other from ``start`` on."""
    segments = np.zeros(len(files), _SEGMENT)
    ends = start + np.cumsum(sizes)
    segments["dataset"], segments["file"] = dataset, files
    segments["start"], segments["end"] = ends - sizes, ends
    segments["first"] = segments["final"] = True
    return segments


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the list of files: everything before ``position`` of ``file``."""

    file: int
    position: int


@dataclass(slots=True)
class Batch:
    """A buffer of content. Segments lie in it without gaps; only the last may be unfinished, or
    have a hole after it.

    In front of an unfinished file's next segment are the bytes before it in the file, as many as
    ``HEADROOM_BYTES``. ``after`` is where the batch ends.
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
        """All parts, in order."""
        return np.concatenate([np.empty(0, _SEGMENT), *self.parts])
