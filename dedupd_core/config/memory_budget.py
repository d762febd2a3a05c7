"""How a job divides the memory that the policy gives it (``memory``). Every share is here.

Of 256 MiB, the default, `optimize` takes at most

    fixed         48 MiB
    index         64 MiB    a quarter
    hooks         16 MiB    a sixteenth, only where there are several partitions
    candidates     8 MiB    a thirty-second
    buffers       72 MiB    half of the memory without `fixed`, the index and the hooks
    notes         32 MiB    an eighth, only where many files save too little

and `reconcile`

    fixed         64 MiB
    join          96 MiB    half of the rest

and `refine`

    fixed         96 MiB
    similar       80 MiB    half of the rest

and `send`

    ahead         32 MiB    an eighth: of the store, before it is sent

The remainder is for memory that the allocator keeps. Below 72 MiB the least needs of all parts add
up to more than ``memory``. Other jobs need memory by the size of the store: a bit or more for each
record (docs/design/partitions.md). The mount has no part in this; its cache is
``fuse_stub.mounts.mount_process.CACHE_BYTES``.
"""

from typing import NamedTuple

from dedupd_core.config.policy import IndexChoice
from dedupd_core.units import MIB

CANDIDATES_SHARE = 1 / 32
JOIN_BYTES_MIN = 8 * MIB
SIMILAR_BYTES_MIN = 8 * MIB


class OptimizeShares(NamedTuple):
    """What the parts of an optimize run may take, in bytes."""

    fixed_bytes: int
    """The interpreter, the threads and the encoded output of batches in flight."""
    index_bytes: int
    candidates_bytes: int
    """Candidates of a walk, about 200,000 by default. Where there are more, each partition walks
    the tree again."""
    buffers_bytes: int
    """File contents, while they are read, cut and compressed."""


def optimize_shares(memory_bytes: int, index_bytes: int) -> OptimizeShares:
    """The shares of a run whose largest index takes ``index_bytes``."""
    fixed = 48 * MIB
    buffers = (memory_bytes - fixed - index_bytes) // 2
    return OptimizeShares(fixed, index_bytes, int(memory_bytes * CANDIDATES_SHARE), buffers)


class NotesShares(NamedTuple):
    """What an optimize run remembers of files that save too little, in rows."""

    judged: int
    """Files that are left. Further ones are read again by the next run."""
    notes: int
    """Notes of chunks, before they are saved."""
    joined: int
    """Files, and chunks, that a join looks at."""


def notes_shares(memory_bytes: int) -> NotesShares:
    """A sixteenth for the judged files, and a thirty-second each for notes and their join."""
    return NotesShares(memory_bytes // 16 // 16, memory_bytes // 32 // 16, memory_bytes // 32 // 32)


RECONCILE_FIXED_BYTES = 64 * MIB
"""The interpreter, the tables as they are read, and the pairs of a log."""

REFINE_FIXED_BYTES = 96 * MIB
"""The interpreter, batches of payloads, bases that were decoded, and a bit for each record."""


def reconcile_join_bytes(memory_bytes: int) -> int:
    """What the chunks of a round of reconcile may take, indexed."""
    return max(JOIN_BYTES_MIN, (memory_bytes - RECONCILE_FIXED_BYTES) // 2)


def refine_similar_bytes(memory_bytes: int) -> int:
    """What the features of the chunks of a round of refine may take."""
    return max(SIMILAR_BYTES_MIN, (memory_bytes - REFINE_FIXED_BYTES) // 2)


SEND_AHEAD_BYTES_MIN = 8 * MIB


def send_ahead_bytes(memory_bytes: int) -> int:
    """What `send` may read ahead of the store."""
    return max(SEND_AHEAD_BYTES_MIN, memory_bytes // 8)


# --- the index --------------------------------------------------------------------------------

_INDEX_FIXED_BYTES = 4 * MIB
"""Cache and write buffer."""

INDEX_ENTRY_BYTES = {IndexChoice.TABLE: 6.5, IndexChoice.BLOOM: 2.0}


def index_share(memory_bytes: int) -> int:
    """What the index of one partition may take, in bytes."""
    return max(8 * MIB, memory_bytes // 4)


def hooks_share(memory_bytes: int) -> int:
    """What a sample of all other partitions may take beside the index of one, in bytes."""
    return index_share(memory_bytes) // 4


def index_bytes(choice: IndexChoice, entries: int) -> int:
    """What an index of so many chunks takes, about."""
    return _INDEX_FIXED_BYTES + int(entries * INDEX_ENTRY_BYTES[choice])


def capacity(choice: IndexChoice, memory_bytes: int) -> int:
    """How many chunks an index may hold in a job that may take so much memory."""
    return int((index_share(memory_bytes) - _INDEX_FIXED_BYTES) / INDEX_ENTRY_BYTES[choice])


def memory_for(choice: IndexChoice, entries: int) -> int:
    """The memory of a job in which an index of so many chunks fits."""
    return 4 * index_bytes(choice, entries)


def planned(choice: IndexChoice, *, rotates: bool) -> IndexChoice:
    """The kind of index for which partitions are made: filters where a table would not fit, as long
    as their reads do not wait for a disk to come round, ten milliseconds each."""
    return choice if rotates else IndexChoice.BLOOM


def fitting(choice: IndexChoice, entries: int, memory_bytes: int) -> IndexChoice:
    """What to use where ``choice`` was asked for: filters where a table would not fit."""
    if choice is IndexChoice.TABLE and entries > capacity(choice, memory_bytes):
        return IndexChoice.BLOOM
    return choice
