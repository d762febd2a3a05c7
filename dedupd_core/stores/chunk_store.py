"""The interface of a volume to the store with its chunks, for any kind of store."""

from typing import Protocol

from dedupd_core import native
from dedupd_core.format.store_kinds import StoreKind
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.store.reader import ChunkSource
from dedupd_core.store.recipe.recipe_reader import RecipeSource
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk


class ChunkStore(Protocol):
    """A store, opened for a volume. Safe to use from several threads."""

    @property
    def kind(self) -> StoreKind: ...
    @property
    def where(self) -> str:
        """The name of the store for people: a path, or an address."""

    @property
    def chunk_records(self) -> ChunkSource: ...
    @property
    def recipes(self) -> RecipeSource: ...

    def lasting_fingerprint(self, chunk: int) -> bytes:
        """Return the fingerprint of a chunk whose id ends with this process; empty if ids stay. The
        chunk must be that of an open recipe. Raises DamagedChunk."""

    def stub_bytes(self, cache: native.store.ChunkCache, threads: int) -> native.store.StubBytes:
        """Return the reader of stubs' bytes. Up to ``threads`` threads decode each read."""

    def close(self) -> None: ...


class StoreToJoin(Protocol):
    """A store for a new volume."""

    @property
    def kind(self) -> StoreKind: ...
    @property
    def fingerprint(self) -> str | None:
        """The hash that its volumes must use; None if a volume chooses."""

    @property
    def shared(self) -> SharedDirectory | None:
        """The store that the volume is enabled on; None if it first gets a ``store`` of its own."""

    def take_in(self, base_fd: int, root: str, uuid: str, disk: Disk) -> None:
        """Let a newly enabled volume without stubs keep its chunks here. ``base_fd`` is its open
        ``.dedupd``. Durable when this returns."""

    def close(self) -> None: ...


class StoreModule(Protocol):
    """The module for a kind of store that is opened by its address."""

    def open_of_volume(
        self, base_fd: int, where: str, parameters: Parameters, disk: Disk
    ) -> ChunkStore:
        """Open the store of the volume whose ``.dedupd`` is open as ``base_fd``; ``where``: its
        path. Raises Damaged."""

    def open_to_join(self, address: str) -> StoreToJoin:
        """Raises UsageError, StoreUnreachable."""
