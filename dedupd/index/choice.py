"""The index that the policy asks for."""

from dedupd import native
from dedupd.config.policy import IndexChoice
from dedupd.index.bloom_index import BloomIndex
from dedupd.index.saved_index import SavedFile
from dedupd.index.table_index import TableIndex
from dedupd.store.chunk_index import StoreIndex
from dedupd.store.container.directory import ContainerDirectory


def saved_name(choice: IndexChoice, partition: int) -> bytes:
    """The file of an index, in the directory of the containers that it is of."""
    number = b"-%08d" % partition if partition else b""
    return b"saved" + number + b"." + choice.encode()


def make_index(
    choice: IndexChoice,
    directory: ContainerDirectory,
    *,
    partition: int,
    entries: int,
    followers: native.chunker.Followers | None = None,
) -> StoreIndex:
    """An empty index of one partition's containers in a directory.

    ``directory`` is borrowed as long as the index is used. ``entries`` are about to be loaded.
    ``followers`` are filled with what is looked up.
    Files that other indexes left there are removed. Raises NoSpace.
    """
    disk, dir_fd = directory.disk, directory.fd
    saved = {
        other: SavedFile(disk, dir_fd, saved_name(other, partition), lambda: directory.room)
        for other in IndexChoice
    }
    for other, file in saved.items():
        if other is not choice:
            file.remove()
    kind_of = BloomIndex if choice is IndexChoice.BLOOM else TableIndex
    made = kind_of(directory, saved[choice], capacity=entries)
    if followers is not None:
        made.use_followers(followers)
    return made
