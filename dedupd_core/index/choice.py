"""Opens the index that the policy selects."""

from dedupd_core import native
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format.domain import FIRST, PartitionKey
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.saved_index import SavedFile
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.chunk_index import StoreIndex
from dedupd_core.store.container.directory import ContainerDirectory


def saved_name(choice: IndexChoice, partition: PartitionKey = FIRST) -> bytes:
    """Return the name of an index file, in the directory of its containers."""
    domain = b"" if partition.is_of_volume else b"-" + partition.domain.hex().encode()
    number = b"-%08d" % partition.number if partition.number else b""
    return b"saved" + domain + number + b"." + choice.encode()


_PASSING = b"beside.bloom"
"""The temporary name of a file while it is created."""


class _PassingBloomIndex(BloomIndex):
    """An index for a job whose neighbour keeps the index of the store: its file is temporary."""

    def __init__(self, directory: ContainerDirectory, *, capacity: int) -> None:
        file = SavedFile(directory.disk, directory.fd, _PASSING, lambda: directory.room)
        with directory.neighbours.turn():
            super().__init__(directory, file, capacity=capacity)
            file.remove()

    def save(self) -> None:
        pass


def make_index(
    choice: IndexChoice,
    directory: ContainerDirectory,
    *,
    partition: PartitionKey,
    entries: int,
    followers: native.chunker.Followers | None = None,
    is_kept: bool = True,
) -> StoreIndex:
    """Return an empty index of one partition's containers in a directory.

    If it is not to be kept, because a neighbour keeps one, it does not change the files of others.

    ``directory`` is borrowed as long as the index is used. ``entries`` are about to be loaded.
    ``followers`` are filled with the results of look-ups. Files that other indexes left there are
    removed. Raises NoSpace.
    """
    disk, dir_fd = directory.disk, directory.fd
    saved = {
        other: SavedFile(disk, dir_fd, saved_name(other, partition), lambda: directory.room)
        for other in IndexChoice
    }
    made: BloomIndex | TableIndex
    if not is_kept:
        is_bloom = choice is IndexChoice.BLOOM
        passing = _PassingBloomIndex if is_bloom else TableIndex
        made = passing(directory, capacity=entries)
    else:
        for other, file in saved.items():
            if other is not choice:
                file.remove()
        kind_of = BloomIndex if choice is IndexChoice.BLOOM else TableIndex
        made = kind_of(directory, saved[choice], capacity=entries)
    if followers is not None:
        made.use_followers(followers)
    return made
