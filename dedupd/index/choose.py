"""The index that the policy asks for."""

from enum import StrEnum

from dedupd.disk import Disk
from dedupd.format.container import Kind
from dedupd.index.base import StoreIndex
from dedupd.index.memory import MemoryIndex
from dedupd.index.table import SavedTable, TableIndex


def saved_name(partition: int) -> bytes:
    """The table's file, in the directory of the containers that it is of."""
    return b"saved-%08d.table" % partition if partition else b"saved.table"


class IndexChoice(StrEnum):
    """Values of the policy key ``index``."""

    MEMORY = "memory"
    """Every fingerprint in RAM."""
    TABLE = "table"
    """Signatures in RAM, fingerprints in the redirection tables."""


def make_index(
    choice: IndexChoice,
    dir_fd: int,
    volume: bytes,
    kind: Kind,
    disk: Disk,
    *,
    partition: int,
    entries: int,
) -> StoreIndex:
    """An index that nothing was loaded into, of one partition's containers in a directory.

    ``dir_fd`` is borrowed for as long as the index is used. ``entries`` are about to be loaded.
    """
    if choice is IndexChoice.MEMORY:
        return MemoryIndex()
    saved = SavedTable(disk, dir_fd, saved_name(partition))
    return TableIndex(dir_fd, volume, kind, saved, capacity=entries)
