"""Functions for tests and benchmarks only; the product does not call them."""

from typing_extensions import Buffer

from .chunker import Chunker
from .index import BloomIndex, TableIndex

BACKGROUND_MAX: int
"""Number of requests that the kernel may send at a time without a waiting program."""
CONGESTED_FROM: int
"""With this number of requests, the kernel stops reading ahead."""

def simd_paths() -> list[str]:
    """Return the chunker code paths of this CPU, slowest first: scalar, avx2, avx512, gfni.

    A path is listed only after it reproduced the scalar path's answers in this process.
    """

def cut(chunker: Chunker, data: Buffer, final: bool = True) -> bytes:
    """Return u32 ends of the chunks of ``data``, which starts at a chunk start.

    With ``final`` the last chunk ends at the end of ``data``; without it only those chunks are
    returned whose end cannot depend on later bytes.
    """

def candidates(chunker: Chunker, data: Buffer) -> bytes:
    """Return u32 pairs (end offset, matched low bits) of all stage 1 candidates of any size."""

def incompressible(data: Buffer) -> bool:
    """A cheap test on samples: True if compression would almost surely save nothing."""

def rebuild(index: TableIndex | BloomIndex) -> None:
    """Rebuild the index from a sequential scan of the redirection tables. Raises OSError.

    Durable effect: the file of the index, by the index's door.
    """

def load_factor(index: TableIndex) -> float:
    """Return the used share of the table's slots."""
