"""One open local store: its containers, and the readers of its records."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial

from dedupd_core import native
from dedupd_core.config.room import MakeRoom
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.store_kinds import OWN, StoreKind
from dedupd_core.format.store_secret import StoreSecret
from dedupd_core.store.beside.neighbours import ALONE, Neighbours
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.reader import RecordReader
from dedupd_core.store.recipe.recipe_reader import RecipeReader
from dedupd_core.store.second_copies import CopyReader
from dedupd_core.stores.secret_files import keep_secret, made_secret, new_secret, read_secret
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import parents

STORE_DIRS = {
    Kind.CHUNKS: "store/chunks",
    Kind.RECIPES: "store/recipes",
    Kind.CHUNK_COPIES: "store/copies/chunks",
    Kind.RECIPE_COPIES: "store/copies/recipes",
}
MERGE_DIR = "store/merge"
MADE_DIRS = (
    *(b"store", b"store/chunks", b"store/recipes", b"store/merge"),
    *(b"store/copies", b"store/copies/chunks", b"store/copies/recipes"),
)
"""The directories of an empty store, each after its parent."""


def make_store_dirs(base_fd: int, disk: Disk) -> None:
    """Make the missing directories of an empty store, and its secret.

    All names except the first one are durable when this returns. Raises NoSpace, OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    for name in MADE_DIRS:
        with suppress(FileExistsError):
            disk.make_dir(base_fd, name)
    for name in (b"store/copies", b"store"):
        with opened(os.open(name, flags, dir_fd=base_fd)) as fd:
            disk.sync_dir(fd)
    keep_secret(base_fd, read_secret(base_fd) or new_secret(), disk)


NoteDamage = Callable[[Kind, int], None]
"""Records that a record could not be read."""


class LocalStore:
    """The store in the directory ``base``: the ``.dedupd`` of a volume, or a separate directory.

    Borrows ``base_fd``, a descriptor of it. ``store_id`` is in all of its files.
    """

    def __init__(
        self,
        base: str,
        base_fd: int,
        store_id: bytes,
        disk: Disk,
        note_damage: NoteDamage,
        *,
        kind: StoreKind = OWN,
        where: str = "",
        neighbours: Neighbours = ALONE,
    ) -> None:
        """``where``: its name for people, by default ``base``."""
        self.base, self.base_fd, self.store_id = base, base_fd, store_id
        self.kind, self.where = kind, where or base
        self.neighbours = neighbours
        self._disk = disk
        self._note_damage = note_damage

    def lasting_fingerprint(self, chunk: int) -> bytes:
        return b""

    def stub_bytes(self, cache: native.store.ChunkCache, threads: int) -> native.store.StubBytes:
        readers = self.chunk_records.native_reader, self.recipe_records.native_reader
        return native.store.StubBytes(*readers, cache, threads)

    def close(self) -> None:
        for name in ("chunk_records", "recipe_records"):
            reader = self.__dict__.pop(name, None)
            if reader is not None:
                reader.close()
        self.neighbours.close()

    def directory(self, kind: Kind) -> str:
        """Return the path of the containers of one kind."""
        return os.path.join(self.base, STORE_DIRS[kind])

    def open_directory(self, kind: Kind) -> int:
        """Open that directory, or create it if an older version did not have it."""
        return self._open_made(STORE_DIRS[kind])

    def containers(self, kind: Kind, make_room: MakeRoom | None = None) -> ContainerDirectory:
        """Return the containers of a kind; the caller closes them. ``make_room``: of the store's
        file system; by default all free space."""
        return ContainerDirectory(
            self.open_directory(kind),
            kind,
            self.store_id,
            self._disk,
            make_room,
            self.neighbours,
            lambda: self.secret,
        )

    @cached_property
    def secret(self) -> StoreSecret:
        """The store's secret, for a job that writes. Raises OSError."""
        return made_secret(self.base_fd, self._disk)

    def open_merge_directory(self) -> int:
        """Open the directory of merge logs, which the first reconciliation creates."""
        return self._open_made(MERGE_DIR)

    def _open_made(self, directory: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return os.open(os.path.join(self.base, directory), flags)
        except FileNotFoundError:
            for name in parents(directory):
                with suppress(FileExistsError):
                    self._disk.make_dir(self.base_fd, name.encode())
            return os.open(os.path.join(self.base, directory), flags)

    @cached_property
    def chunk_records(self) -> RecordReader:
        return self._records(Kind.CHUNKS)

    @cached_property
    def recipe_records(self) -> RecordReader:
        return self._records(Kind.RECIPES)

    def _records(self, kind: Kind) -> RecordReader:
        return RecordReader(
            self.directory(kind),
            kind,
            self.store_id,
            self.copies(kind),
            partial(self._note_damage, kind),
        )

    def copies(self, kind: Kind) -> CopyReader:
        """Return the second copies of the records of a kind."""
        of = COPIES_OF[kind]
        return CopyReader(self.directory(of), of, self.store_id)

    @cached_property
    def recipes(self) -> RecipeReader:
        return RecipeReader(self.recipe_records)
