"""How a job divides its memory (policy ``memory``). All shares are defined here.

With the default of 256 MiB, `optimize` uses at most

    fixed         48 MiB
    index         64 MiB    a quarter
    hooks         16 MiB    a sixteenth, only with several partitions
    candidates     8 MiB    a thirty-second
    buffers       72 MiB    half of the memory without `fixed`, the index and the hooks
    notes         32 MiB    an eighth, only if many files save too little

and `reconcile`

    fixed         64 MiB
    join          96 MiB    half of the rest

and `refine`

    fixed         96 MiB
    similar       80 MiB    half of the rest

and `send`

    ahead         32 MiB    an eighth: data of the store, before it is sent

The remainder is for memory that the allocator keeps. Below 72 MiB the minimum needs of all parts
add up to more than ``memory``. Other jobs need memory in proportion to the store: a bit or more per
record (docs/design/partitions.md). The mount is not included; its cache is
``fuse_stub.mounts.mount_process.CACHE_BYTES``.
"""

from typing import NamedTuple

from dedupd_core.config.policy import IndexChoice
from dedupd_core.units import MIB

CANDIDATES_SHARE = 1 / 32
JOIN_BYTES_MIN = 8 * MIB
SIMILAR_BYTES_MIN = 8 * MIB


class OptimizeShares(NamedTuple):
    """The limits for the parts of an optimize run, in bytes."""

    fixed_bytes: int
    """The interpreter, the threads and the encoded output of batches in flight."""
    index_bytes: int
    candidates_bytes: int
    """Candidates of a walk, about 200,000 by default. With more candidates, each partition walks
    the tree again."""
    buffers_bytes: int
    """Contents of files while they are read, split into chunks and compressed."""


def optimize_shares(memory_bytes: int, index_bytes: int) -> OptimizeShares:
    """Return the shares of a run whose largest index needs ``index_bytes``."""
    fixed = 48 * MIB
    buffers = (memory_bytes - fixed - index_bytes) // 2
    return OptimizeShares(fixed, index_bytes, int(memory_bytes * CANDIDATES_SHARE), buffers)


class NotesShares(NamedTuple):
    """The limits for what an optimize run remembers of files that save too little, in rows."""

    judged: int
    """Skipped files. The next run reads any further ones again."""
    notes: int
    """Notes of chunks that are not saved yet."""
    joined: int
    """Files, and chunks, that a join reads."""


def notes_shares(memory_bytes: int) -> NotesShares:
    """Return a sixteenth for judged files, and a thirty-second each for notes and their join."""
    return NotesShares(memory_bytes // 16 // 16, memory_bytes // 32 // 16, memory_bytes // 32 // 32)


RECONCILE_FIXED_BYTES = 64 * MIB
"""The interpreter, the tables while they are read, and the pairs of a log."""

REFINE_FIXED_BYTES = 96 * MIB
"""The interpreter, batches of payloads, decoded bases, and a bit per record."""


def reconcile_join_bytes(memory_bytes: int) -> int:
    """Return the limit for the indexed chunks of a round of reconcile."""
    return max(JOIN_BYTES_MIN, (memory_bytes - RECONCILE_FIXED_BYTES) // 2)


def refine_similar_bytes(memory_bytes: int) -> int:
    """Return the limit for the features of the chunks of a round of refine."""
    return max(SIMILAR_BYTES_MIN, (memory_bytes - REFINE_FIXED_BYTES) // 2)


SEND_AHEAD_BYTES_MIN = 8 * MIB


def send_ahead_bytes(memory_bytes: int) -> int:
    """Return how much of the store `send` may read ahead."""
    return max(SEND_AHEAD_BYTES_MIN, memory_bytes // 8)


# --- the index --------------------------------------------------------------------------------

_INDEX_FIXED_BYTES = 4 * MIB
"""The cache and the write buffer."""

INDEX_ENTRY_BYTES = {IndexChoice.TABLE: 6.5, IndexChoice.BLOOM: 2.0}


def index_share(memory_bytes: int) -> int:
    """Return the limit for the index of one partition, in bytes."""
    return max(8 * MIB, memory_bytes // 4)


def hooks_share(memory_bytes: int) -> int:
    """Return the limit for the hooks: a sample of all other partitions. In bytes."""
    return index_share(memory_bytes) // 4


def index_bytes(choice: IndexChoice, entries: int) -> int:
    """Return the approximate size of an index of this number of chunks."""
    return _INDEX_FIXED_BYTES + int(entries * INDEX_ENTRY_BYTES[choice])


def capacity(choice: IndexChoice, memory_bytes: int) -> int:
    """Return the number of chunks in the index of a job with this memory."""
    return int((index_share(memory_bytes) - _INDEX_FIXED_BYTES) / INDEX_ENTRY_BYTES[choice])


def memory_for(choice: IndexChoice, entries: int) -> int:
    """Return the memory of a job whose index has this number of chunks."""
    return 4 * index_bytes(choice, entries)


def planned(choice: IndexChoice, *, rotates: bool) -> IndexChoice:
    """Return the kind of index for planning partitions: filters, except on a disk that rotates,
    where each of their reads would wait for ten milliseconds."""
    return choice if rotates else IndexChoice.BLOOM


def fitting(choice: IndexChoice, entries: int, memory_bytes: int) -> IndexChoice:
    """Return the kind of index to use instead of ``choice``: filters if a table does not fit."""
    if choice is IndexChoice.TABLE and entries > capacity(choice, memory_bytes):
        return IndexChoice.BLOOM
    return choice
