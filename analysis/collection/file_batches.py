"""Buffers of content on their way from the reader to the lanes."""

import mmap
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.collection.tree_walk import Failure
from dedupd.units import KIB, MIB

BATCH_BYTES = 8 * MIB
"""Large enough that Python's cost per batch vanishes, small enough for several in flight."""

HEADROOM_BYTES = 128 * KIB
"""Kept from the batch before, for the unfinished chunks of a file that goes on: S_max at least."""


class Piece(NamedTuple):
    """Bytes [start, end) of a batch that belong to one file, from ``position`` of it on.

    Behind them follows a hole of ``hole`` bytes, and ``blank`` of them lie in holes themselves.
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


Pieces = NDArray[np.void]
"""Many pieces: a structured array with the fields of ``Piece``."""

_PIECE = np.dtype(
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


def one_piece(piece: Piece) -> Pieces:
    return np.array([piece], _PIECE)


def whole_files(
    dataset: int, files: NDArray[np.uint32], sizes: NDArray[np.int64], start: int
) -> Pieces:
    """Pieces of files that lie in a batch completely, one behind the other from ``start`` on."""
    pieces = np.zeros(len(files), _PIECE)
    ends = start + np.cumsum(sizes)
    pieces["dataset"], pieces["file"] = dataset, files
    pieces["start"], pieces["end"] = ends - sizes, ends
    pieces["first"] = pieces["final"] = True
    return pieces


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the list of files: everything before ``position`` of ``file``."""

    file: int
    position: int


@dataclass(slots=True)
class Batch:
    """A buffer of content. Pieces lie in it without gaps; only the last may be unfinished, or have
    a hole behind it.

    In front of an unfinished file's next piece are the bytes that precede it in the file, as many
    as ``HEADROOM_BYTES``. ``after`` is where the batch ends.
    """

    buffer: mmap.mmap
    parts: list[Pieces] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    after: Cursor = Cursor(0, 0)
    done_bytes: int = 0

    @property
    def count(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def pieces(self) -> Pieces:
        """All parts, in order."""
        return np.concatenate([np.empty(0, _PIECE), *self.parts])
