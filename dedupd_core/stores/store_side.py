"""What a volume has of its store: its own, or one that it shares; opened when first asked for."""

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
from dedupd_core.stores.shared_directory import SharedDirectory, Unshared
from dedupd_core.stub.content import Contents, StoreContent
from dedupd_core.stub.transition import AttributeSpace
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB

_UNSHARED = Unshared()

SEE_CLUSTER = "see docs/guide/cluster.md"


CACHE_BYTES = 4 * MIB
"""Of chunks that a job has read: the next part of a file begins in the last one."""


class StoreSide:
    """The part of a volume that knows where its chunks lie. ``root`` and ``base`` as in Volume.

    ``chunk_store`` has them, of whatever kind it is; ``store`` is the directory of containers, for
    the jobs that work on these: empty where the chunks are in a cluster.
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
        """Take note of a record that a reader found damaged."""

    @cached_property
    def membership(self) -> Membership | None:
        """Which shared store it is on; None where it has one of its own. Raises Damaged."""
        return membership_at(self.base_fd)

    @property
    def identity(self) -> VolumeIdentity:
        """What a shared store tells it by."""
        return VolumeIdentity(self.parameters.uuid, self.instance, self.base_fd)

    @cached_property
    def shared(self) -> SharedDirectory | None:
        """The shared store that it is on, or None. Raises StoreUnreachable, UsageError, Damaged."""
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
    def sharing(self) -> SharedDirectory | Unshared:
        """Whom it shares its store with, and what is held with that. Raises as :attr:`shared`."""
        return self.shared or _UNSHARED

    @cached_property
    def store(self) -> LocalStore:
        """Its containers. Raises what :attr:`shared` raises."""
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
        """Path of the containers of one kind."""
        return self.store.directory(kind)

    def store_room(self) -> Room:
        """How much may be written to the store. Raises PolicyError."""
        return Room(self.store.base_fd, NO_RESERVE, self.root)

    def containers(self, kind: Kind) -> ContainerDirectory:
        """The containers of a kind, to be closed by the caller."""
        return self.store.containers(kind, self.store_room)

    def containers_to_empty(self, kind: Kind) -> ContainerDirectory:
        """As :meth:`containers`, for jobs that give space back: the tables that they need for that
        may take of the reserve."""
        return self.store.containers(kind)

    def records(self, kind: Kind) -> RecordReader:
        """The reader of containers of chunks, or of recipes."""
        return self.store.chunk_records if kind is Kind.CHUNKS else self.store.recipe_records

    @cached_property
    def store_kind(self) -> StoreKind:
        return kind_at(self.base)

    def require_containers(self, job: str) -> None:
        """Raises UsageError where a job would find its work in none of the volume's containers."""
        if not self.store_kind.has_containers:
            raise self.without_work(job)

    def without_work(self, job: str, remedy: str = SEE_CLUSTER) -> UsageError:
        """Of a job that has nothing to do in the kind of store that the volume is on."""
        where = "no cluster" if self.store_kind.has_containers else self.chunk_store.where
        return UsageError(
            f"{self.root}: its chunks are in {where}, where {job} has nothing to do; {remedy}"
        )

    @property
    def chunk_store(self) -> ChunkStore:
        """Where its chunks are. Raises what :attr:`shared` raises."""
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
        """Reads what its stubs are made of, one after the other."""
        return self.contents_cached(CACHE_BYTES, threads=1)

    def contents_cached(self, cache_bytes: int, threads: int) -> Contents:
        """The same, for readers that share a cache of so many bytes; up to ``threads`` threads
        decode the chunks of one read."""
        cache = native.store.ChunkCache(cache_bytes)
        stub_bytes = self.chunk_store.stub_bytes(cache, threads)
        return Contents(stub_bytes, cache, self.chunk_records, self.recipes)

    def content(self, stub: StubAttribute, where: str) -> StoreContent:
        """The store's side of a stub. Nothing is read yet."""
        return self.contents.of(stub, where)

    def note_stubs(self) -> None:
        """Tell a shared store, durably, that this volume may have stubs from here on."""
        self.sharing.note_stubs({self.parameters.uuid: True})

    def sync(self) -> None:
        """Make everything durable that was written to the tree, and to a store that lies apart."""
        self.sharing.sync()
        self.disk.sync_file_system(self.data_fd)

    @property
    def is_half_moved(self) -> bool:
        return os.path.lexists(os.path.join(self.base, MOVING_FILE.decode()))

    def refuse_half_moved(self) -> None:
        """Raises Busy where a move to another store was interrupted: some stubs are on that one."""
        if self.is_half_moved:
            raise Busy(
                f"{self.root}: is half moved to another store; run `dedupd store move` again"
            )

    def require_same_store(self) -> None:
        """It may have been moved to another store between its opening and that of the lock."""
        before = self.__dict__.pop("membership")
        self.__dict__.pop("store_kind", None)
        if (before and before.store) != ((now := self.membership) and now.store):
            raise Busy(
                f"{self.root}: was moved to another store at the same time; run the command again"
            )
