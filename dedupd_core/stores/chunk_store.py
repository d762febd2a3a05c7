"""What a volume needs of the store that keeps its chunks, whatever kind that is of."""

from typing import Protocol

from dedupd_core import native
from dedupd_core.format.store_kinds import StoreKind
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.store.reader import ChunkSource
from dedupd_core.store.recipe.recipe_reader import RecipeSource
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk


class ChunkStore(Protocol):
    """A store, as the volume sees it that it is opened for. Safe to use from several threads."""

    @property
    def kind(self) -> StoreKind: ...
    @property
    def where(self) -> str:
        """How people name it: a path, or an address."""

    @property
    def chunk_records(self) -> ChunkSource: ...
    @property
    def recipes(self) -> RecipeSource: ...

    def lasting_fingerprint(self, chunk: int) -> bytes:
        """The fingerprint of a chunk whose id ends with this process, the chunk being that of an
        open recipe; empty where ids stay. Raises DamagedChunk."""

    def stub_bytes(self, cache: native.store.ChunkCache, threads: int) -> native.store.StubBytes:
        """What reads the bytes of stubs. Up to ``threads`` threads decode the chunks of a read."""

    def close(self) -> None: ...


class StoreToJoin(Protocol):
    """A store that a new volume is to be on."""

    @property
    def kind(self) -> StoreKind: ...
    @property
    def fingerprint(self) -> str | None:
        """The hash that volumes on it must have; None where a volume chooses."""

    @property
    def shared(self) -> SharedDirectory | None:
        """The store that the volume is enabled on; None if it first gets a ``store`` of its own."""

    def take_in(self, base_fd: int, root: str, uuid: str, disk: Disk) -> None:
        """Let a volume that has just been enabled, and has no stub yet, keep its chunks here.
        ``base_fd`` is open on its ``.dedupd``. Durable when this returns."""

    def close(self) -> None: ...


class StoreModule(Protocol):
    """The module that knows a kind of store which is opened by its address."""

    def open_of_volume(
        self, base_fd: int, where: str, parameters: Parameters, disk: Disk
    ) -> ChunkStore:
        """The store of the volume whose ``.dedupd`` is open as ``base_fd``; ``where``: its path.
        Raises Damaged."""

    def open_to_join(self, address: str) -> StoreToJoin:
        """Raises UsageError, StoreUnreachable."""
