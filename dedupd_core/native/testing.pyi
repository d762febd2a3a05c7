"""For tests and benchmarks only: what the product does not call."""

from typing_extensions import Buffer

from .chunker import Chunker
from .index import BloomIndex, TableIndex

def simd_paths() -> list[str]:
    """Chunker code paths this CPU can run, slowest first: scalar, avx2, avx512, gfni.

    A path is listed only after it reproduced the scalar path's answers in this process.
    """

def cut(chunker: Chunker, data: Buffer, final: bool = True) -> bytes:
    """u32 ends of the chunks of ``data``, which begins at a chunk start.

    With ``final`` the last chunk ends at the end of ``data``; without it only those chunks are
    returned whose end cannot depend on later bytes.
    """

def candidates(chunker: Chunker, data: Buffer) -> bytes:
    """u32 pairs (end offset, matched low bits) of all stage 1 candidates of any size."""

def incompressible(data: Buffer) -> bool:
    """A cheap test on samples: True where compression would almost surely not pay."""

def rebuild(index: TableIndex | BloomIndex) -> None:
    """Make the index again from a sequential scan of the redirection tables. Raises OSError.

    Durable effect: the file of the index, by the index's door.
    """

def load_factor(index: TableIndex) -> float:
    """The part of the table's slots that is taken."""
