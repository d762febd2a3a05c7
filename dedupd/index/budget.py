"""How much of a job's memory its index may take, and how many chunks that is."""

from dedupd.config.index_choice import IndexChoice
from dedupd.units import MIB

SHARE = 4
"""One part in so many of a job's memory is for the index."""

_BYTES_MIN = 8 * MIB
_FIXED_BYTES = 4 * MIB
"""Cache and write buffer."""

_ENTRY_BYTES = {IndexChoice.TABLE: 6.5, IndexChoice.BLOOM: 2.0, IndexChoice.MEMORY: 60.0}


def index_bytes(choice: IndexChoice, entries: int) -> int:
    """What an index of so many chunks takes, about."""
    return _FIXED_BYTES + int(entries * _ENTRY_BYTES[choice])


def capacity(choice: IndexChoice, memory_bytes_max: int) -> int:
    """How many chunks an index may hold in a job that may take so much memory."""
    share = max(_BYTES_MIN, memory_bytes_max // SHARE)
    return int((share - _FIXED_BYTES) / _ENTRY_BYTES[choice])


def fitting(choice: IndexChoice, entries: int, memory_bytes_max: int) -> IndexChoice:
    """What to use where ``choice`` was asked for: filters where a table would not fit."""
    if choice is IndexChoice.TABLE and entries > capacity(choice, memory_bytes_max):
        return IndexChoice.BLOOM
    return choice
