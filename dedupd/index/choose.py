"""The index that the policy asks for."""

from enum import StrEnum

from dedupd.disk import Disk
from dedupd.format.container import Kind
from dedupd.index.base import StoreIndex
from dedupd.index.memory import MemoryIndex
from dedupd.index.table import SavedTable, TableIndex

SAVED_NAME = b"saved.table"
"""The table's file, in the directory of the containers that it is of."""


class IndexChoice(StrEnum):
    """Values of the policy key ``index``."""

    MEMORY = "memory"
    """Every fingerprint in RAM."""
    TABLE = "table"
    """Signatures in RAM, fingerprints in the redirection tables."""


def make_index(
    choice: IndexChoice, dir_fd: int, volume: bytes, kind: Kind, disk: Disk
) -> StoreIndex:
    """An index that nothing was loaded into, of the containers in a directory.

    ``dir_fd`` is borrowed for as long as the index is used.
    """
    if choice is IndexChoice.MEMORY:
        return MemoryIndex()
    return TableIndex(dir_fd, volume, kind, SavedTable(disk, dir_fd, SAVED_NAME))
