"""A volume's access to its store: its own, or a shared one. Opened on first use."""

import os
from functools import cached_property

from dedupd_core import native
from dedupd_core.config.room import NO_RESERVE, Room
from dedupd_core.errors import Busy, StoreUnreachable, UsageError
from dedupd_core.format.container import Kind
from dedupd_core.format.instance import Instance
from dedupd_core.format.store_kinds import SHARED, StoreKind
from dedupd_core.format.stub import StubAttribute
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.reader import ChunkSource, RecordReader
from dedupd_core.store.recipe.recipe_reader import RecipeSource
from dedupd_core.stores.chunk_store import ChunkStore
from dedupd_core.stores.local_store import LocalStore
from dedupd_core.stores.membership import MOVING_FILE, Membership, VolumeIdentity, membership_at
from dedupd_core.stores.registry import cluster_module, kind_at
from dedupd_core.stores.shared_directory import OwnStore, SharedDirectory
from dedupd_core.stub.content import Contents, StoreContent
from dedupd_core.stub.transition import AttributeSpace
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB

_UNSHARED = OwnStore()

SEE_CLUSTER = "see docs/guide/cluster.md"


CACHE_BYTES = 4 * MIB
"""The cache for chunks of a job: the next part of a file often starts in the last chunk."""


class StoreSide:
    """The part of a volume that gives access to its chunks. ``root`` and ``base`` as in Volume.

    ``chunk_store`` is the store, of any kind. ``store`` is the directory of containers, for jobs
    that work on containers; it is empty if the chunks are in a cluster.
    """

    root: str
    base: str
    base_fd: int
    data_fd: int
    disk: Disk
    parameters: Parameters
    instance: Instance
    space: AttributeSpace

    def close_store(self) -> None:
        self.__dict__.pop("contents", None)
        for name in ("store", "shared", "_cluster_store"):
            opened_once = self.__dict__.pop(name, None)
            if opened_once is not None:
                opened_once.close()

    def note_damage(self, kind: Kind, record_id: int) -> None:
        """Record that a reader found a record damaged."""

    @cached_property
    def membership(self) -> Membership | None:
        """The shared store of the volume; None if it has its own store. Raises Damaged."""
        return membership_at(self.base_fd)

    @property
    def identity(self) -> VolumeIdentity:
        """The identity of the volume for a shared store."""
        return VolumeIdentity(self.parameters.uuid, self.instance, self.base_fd)

    @cached_property
    def shared(self) -> SharedDirectory | None:
        """The open shared store, or None. Raises StoreUnreachable, UsageError, Damaged."""
        membership = self.membership
        if membership is None:
            return None
        found = SharedDirectory(membership.name, self.disk)
        if found.parameters.uuid != membership.store:
            found.close()
            raise StoreUnreachable(
                f"{membership.name}: not the store of {self.root}; put the right store back there"
            )
        return found

    @property
    def sharing(self) -> SharedDirectory | OwnStore:
        """The shared store, or a substitute without other volumes. Raises like :attr:`shared`."""
        return self.shared or _UNSHARED

    @cached_property
    def store(self) -> LocalStore:
        """Its containers. Raises like :attr:`shared`."""
        shared, store_id, note = self.shared, self.space.volume_id, self.note_damage
        if shared is None:
            return LocalStore(self.base, self.base_fd, store_id, self.disk, note, where=self.root)
        return LocalStore(
            shared.base,
            shared.fd,
            store_id,
            self.disk,
            note,
            kind=SHARED,
            where=shared.path,
            neighbours=shared.neighbours(),
        )

    def directory(self, kind: Kind) -> str:
        """Return the path of the containers of one kind."""
        return self.store.directory(kind)

    def store_room(self) -> Room:
        """Return the room of the store. Raises PolicyError."""
        return Room(self.store.base_fd, NO_RESERVE, self.root)

    def containers(self, kind: Kind) -> ContainerDirectory:
        """Return the containers of a kind; the caller closes them."""
        return self.store.containers(kind, self.store_room)

    def containers_to_empty(self, kind: Kind) -> ContainerDirectory:
        """Like :meth:`containers`, for jobs that free space: the tables that they need may use the
        reserve."""
        return self.store.containers(kind)

    def records(self, kind: Kind) -> RecordReader:
        """Return the reader of containers of chunks, or of recipes."""
        return self.store.chunk_records if kind is Kind.CHUNKS else self.store.recipe_records

    @cached_property
    def store_kind(self) -> StoreKind:
        return kind_at(self.base)

    def require_containers(self, job: str) -> None:
        """Raise UsageError if a job needs containers and the volume has none."""
        if not self.store_kind.has_containers:
            raise self.without_work(job)

    def without_work(self, job: str, remedy: str = SEE_CLUSTER) -> UsageError:
        """Return the error for a job without work in the volume's kind of store."""
        where = "no cluster" if self.store_kind.has_containers else self.chunk_store.where
        return UsageError(
            f"{self.root}: its chunks are in {where}, where {job} has nothing to do; {remedy}"
        )

    @property
    def chunk_store(self) -> ChunkStore:
        """The store of its chunks. Raises like :attr:`shared`."""
        return self.store if self.store_kind.has_containers else self._cluster_store

    @cached_property
    def _cluster_store(self) -> ChunkStore:
        where = f"{self.root}/.dedupd"
        return cluster_module().open_of_volume(self.base_fd, where, self.parameters, self.disk)

    @property
    def chunk_records(self) -> ChunkSource:
        return self.chunk_store.chunk_records

    @property
    def recipe_records(self) -> RecordReader:
        return self.store.recipe_records

    @property
    def recipes(self) -> RecipeSource:
        return self.chunk_store.recipes

    @cached_property
    def contents(self) -> Contents:
        """Reads the contents of its stubs, one after the other."""
        return self.contents_cached(CACHE_BYTES, threads=1)

    def contents_cached(self, cache_bytes: int, threads: int) -> Contents:
        """Return the same, for readers that share a cache; up to ``threads`` threads decode the
        chunks of one read."""
        cache = native.store.ChunkCache(cache_bytes)
        stub_bytes = self.chunk_store.stub_bytes(cache, threads)
        return Contents(stub_bytes, cache, self.chunk_records, self.recipes)

    def content(self, stub: StubAttribute, where: str) -> StoreContent:
        """Return the content of a stub in the store. This reads nothing yet."""
        return self.contents.of(stub, where)

    def note_stubs(self) -> None:
        """Record in a shared store, durably, that this volume may have stubs from now on."""
        self.sharing.note_stubs({self.parameters.uuid: True})

    def sync(self) -> None:
        """Make all writes to the tree durable, and those to a separate store."""
        self.sharing.sync()
        self.disk.sync_file_system(self.data_fd)

    @property
    def is_half_moved(self) -> bool:
        return os.path.lexists(os.path.join(self.base, MOVING_FILE.decode()))

    def refuse_half_moved(self) -> None:
        """Raise Busy after an interrupted move to another store, which has some of the stubs."""
        if self.is_half_moved:
            raise Busy(
                f"{self.root}: is half moved to another store; run `dedupd store move` again"
            )

    def require_same_store(self) -> None:
        """Raise Busy if the volume was moved to another store before it was locked."""
        before = self.__dict__.pop("membership")
        self.__dict__.pop("store_kind", None)
        if (before and before.store) != ((now := self.membership) and now.store):
            raise Busy(
                f"{self.root}: was moved to another store at the same time; run the command again"
            )
