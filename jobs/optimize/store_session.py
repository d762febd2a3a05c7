"""The volume's store opened for writing: writers, the index of one partition, one sync for all."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial

from dedupd_core import native
from dedupd_core.config.memory_budget import capacity, fitting, hooks_share
from dedupd_core.config.policy import IndexChoice
from dedupd_core.errors import DamagedContainer
from dedupd_core.format import container as fmt
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.ids import container_of
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.format.table import ENTRY_BYTES, TableEntry
from dedupd_core.index import hooks
from dedupd_core.index.choice import make_index
from dedupd_core.index.hooks import HookedIndex
from dedupd_core.store.chunk_index import EmptyIndex, IndexCounters, StoreIndex
from dedupd_core.store.container.files import container_numbers
from dedupd_core.store.container.recovery import recover, seen_of_theirs
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.container.table_totals import census, entries_by_partition
from dedupd_core.store.growing import SyncPoint
from dedupd_core.store.recipe.recipe_writer import RecipeWriter
from dedupd_core.store.second_copies import append_copies
from dedupd_core.store.unkept_records import Position
from dedupd_core.volume.container_numbers import ContainerNumbers
from dedupd_core.volume.volume import Volume
from jobs.optimize.partitioning import combined
from jobs.repair.quarantine import quarantine_noted
from jobs.repair.returning_records import LostRecords

_KINDS = (Kind.CHUNKS, Kind.RECIPES)
_FOLLOWED = frozenset({"scalar"})
"""Code paths of the chunker that gain from trying the ends first that known chunks suggest."""

_TARGET_WORD = 5
"""Of the u64 of an entry."""


@dataclass(frozen=True, slots=True)
class StoreSync:
    """A moment of a session: the records appended until then, those that replace lost ones, and
    the orphans met again. Files that were ready by then need no chunk behind ``finished``."""

    chunks: SyncPoint
    streams: SyncPoint
    copies: list[tuple[fmt.Record, bytes]]
    chunks_met: dict[int, TableEntry]
    streams_met: dict[int, TableEntry]
    chunk_orphans: set[int]
    stream_orphans: set[int]
    finished: Position


class StoreSession:
    """The volume's store opened for writing, with the index of one partition loaded.

    Needs the job lock, or the lock of those that append; one at a time for a ``volume``.
    """

    def __init__(
        self,
        volume: Volume,
        index: IndexChoice,
        partition: PartitionKey,
        safe_point: Callable[[], None],
    ) -> None:
        """``safe_point`` is called between two containers."""
        self._of_domain: dict[Kind, dict[bytes, set[int]]] = {kind: {} for kind in _KINDS}
        self._domain_by_number: dict[Kind, dict[int, bytes]] = {kind: {} for kind in _KINDS}
        self._counted: dict[Kind, int] = dict.fromkeys(_KINDS, 0)
        self._safe_point = safe_point
        self._choice, self._has_filters = index, False
        self._memory_bytes = volume.policy().memory_bytes
        self.partition = partition
        self._neighbours = volume.store.neighbours
        self._keeps_index = self._neighbours.claim_saved_index()
        follows = partition.is_of_volume and volume.parameters.chunker().path in _FOLLOWED
        self.followers = native.chunker.Followers() if follows else None
        """Of the chunks that are looked up, for those that cut the next ones."""
        with ExitStack() as files:
            files.callback(self._neighbours.release)
            self._directories = {
                kind: files.enter_context(volume.containers(kind)) for kind in _KINDS
            }
            quarantine_noted(volume, safe_point)
            self._numbers = ContainerNumbers(volume)
            copies_kind = COPIES_OF[Kind.RECIPES]
            self.copies = files.enter_context(closing(self._numbers.writer(copies_kind)))
            self.copies.recover(self._note_copied)
            self.chunks, self.streams = (
                files.enter_context(closing(self._numbers.writer(kind, partition)))
                for kind in _KINDS
            )
            self._lost_records = LostRecords(volume, Kind.CHUNKS), LostRecords(volume, Kind.RECIPES)
            self._take_numbers()
            self.index: StoreIndex = self._new_index(Kind.CHUNKS)
            self._recipe_index: StoreIndex = self._new_index(Kind.RECIPES)
            self._past_counters = IndexCounters()
            self.chunks.recover(partial(self._load, self.index, self._lost_records[0]))
            self.streams.recover(partial(self._load, self._recipe_index, self._lost_records[1]))
            self.note_finished()
            self._files = files.pop_all()
        self.recipes = RecipeWriter(self.streams, self._recipe_index, volume.parameters.fingerprint)

    def _take_numbers(self) -> None:
        """Note of which domains the containers are that came since the last call."""
        for kind in _KINDS:
            new = self._new_numbers(kind)
            self._counted[kind] = max(self._counted[kind], *new, 0)
            for container in census(self._directories[kind].fd, new):
                of = self._of_domain[kind].setdefault(container.key.domain, set())
                of.add(container.number)

    def _new_numbers(self, kind: Kind) -> Iterable[int]:
        counted = self._counted[kind]
        if counted and self._neighbours.is_alone:
            writer = self.chunks if kind is Kind.CHUNKS else self.streams
            return range(counted + 1, writer.last_number + 1)
        return [n for n in container_numbers(self._directories[kind].fd) if n > counted]

    def domain_of(self, kind: Kind, record_id: int) -> bytes:
        """That of a record. Raises DamagedContainer, OSError."""
        number = container_of(record_id)
        known = self._domain_by_number[kind]
        if number not in known:
            known[number] = self._directories[kind].header(number).domain
        return known[number]

    def is_apart(self, stub: StubAttribute) -> bool:
        """Whether the recipe of a stub, and so its chunks, are of another domain than the one in
        use. Raises DamagedContainer, OSError."""
        kind = Kind.CHUNKS if Flag.DIRECT in stub.flags else Kind.RECIPES
        return self.domain_of(kind, stub.recipe) != self.partition.domain

    def _of_this_domain(self, kind: Kind) -> list[int]:
        """The containers of the domain in use. Chunks of no other are ever looked up."""
        return sorted(self._of_domain[kind].get(self.partition.domain, ()))

    def _new_index(self, kind: Kind) -> StoreIndex:
        directory, partition = self._directories[kind], self.partition
        known = entries_by_partition(directory.fd, self._of_this_domain(kind))
        entries = known.pop(partition, 0)
        choice = fitting(self._choice, entries, self._memory_bytes)
        if kind is Kind.CHUNKS:
            self._has_filters |= choice is IndexChoice.BLOOM
            choice = IndexChoice.BLOOM if self._has_filters else choice
        made = make_index(
            choice,
            directory,
            partition=partition,
            entries=entries,
            followers=self.followers if kind is Kind.CHUNKS else None,
            is_kept=self._keeps_index,
        )
        others = sum(known.values())
        if kind is not Kind.CHUNKS or others < hooks.ENTRIES_MIN:
            return made
        share = hooks_share(self._memory_bytes)
        return HookedIndex(made, directory, entries=others, share_bytes=share)

    def _note_copied(self, container: Recovered) -> None:
        """Recipes that have a second copy were there, whatever has become of their container."""
        self._safe_point()
        words = memoryview(container.entries.data).cast("Q")
        named = max(words[_TARGET_WORD :: ENTRY_BYTES // words.itemsize], default=0)
        self._numbers.note({Kind.RECIPES: container_of(named)})

    def _load(self, index: StoreIndex, wanted: LostRecords, container: Recovered) -> None:
        self._safe_point()
        self._load_into(index, container)
        wanted.load(container)

    def _load_into(self, index: StoreIndex, container: Recovered) -> None:
        key = container.header.partition_key
        if key == self.partition:
            index.load(container)
        elif isinstance(index, HookedIndex) and key.domain == self.partition.domain:
            index.load_other(container)

    @property
    def entries(self) -> int:
        """How many chunks and recipes can be found."""
        return len(self.index) + len(self._recipe_index)

    def use_partition(self, partition: PartitionKey) -> None:
        """Look up, and append to, another partition from here on, perhaps of another domain.
        Raises NoSpace.

        Nothing may be on its way: every reserved record is appended, and every sync is done. The
        old index is let go of before the new one is made.
        """
        if partition == self.partition:
            return
        self._release_index()
        self.partition, self._has_filters = partition, False
        self.chunks.use_partition(partition)
        self.streams.use_partition(partition)
        self.note_finished()
        self._load_index()

    @property
    def outgrows_table(self) -> bool:
        """Whether the index is a table, and as large as one may be."""
        return not self._has_filters and self.entries >= capacity(
            IndexChoice.TABLE, self._memory_bytes
        )

    def use_filters(self) -> None:
        """Look up in filters in the place of a table, which takes a scan of the redirection tables.
        Raises NoSpace. As :meth:`use_partition` nothing may be on its way."""
        self._release_index()
        self._has_filters = True
        self.note_finished()
        self._load_index()

    def _release_index(self) -> None:
        self.finish_sync(self.begin_sync())
        self.save_index()
        self._past_counters = self.counters()
        self.index = self._recipe_index = EmptyIndex()
        self.recipes.use_index(self._recipe_index)

    def _load_index(self) -> None:
        self._take_numbers()
        self.index = self._loaded_index(Kind.CHUNKS)
        self._recipe_index = self._loaded_index(Kind.RECIPES)
        self.recipes.use_index(self._recipe_index)

    def _loaded_index(self, kind: Kind) -> StoreIndex:
        """An index of what the partition has; every container has been recovered."""
        index = self._new_index(kind)
        for container in census(self._directories[kind].fd, self._of_this_domain(kind)):
            self._safe_point()
            if container.key == self.partition or isinstance(index, HookedIndex):
                directory, number = self._directories[kind], container.number
                with suppress(DamagedContainer), self._neighbours.turn():
                    found = seen_of_theirs(directory, number) or recover(directory, number)
                    self._load_into(index, found)
        return index

    def counters(self) -> IndexCounters:
        """Those of all indexes that were used, one after the other."""
        return combined(self._past_counters, self.index.counters())

    def begin_sync(self) -> StoreSync:
        """Note the records appended until now, recipes included. Raises NoSpace."""
        self.recipes.flush()
        return StoreSync(
            self.chunks.begin_sync(),
            self.streams.begin_sync(),
            self.recipes.take_copies(),
            self._lost_records[0].returned(self.partition.domain, self.index, self.chunks),
            self._lost_records[1].returned(self.partition.domain, self._recipe_index, self.streams),
            self.index.take_found_orphans(),
            self._recipe_index.take_found_orphans(),
            self._finished,
        )

    def finish_sync(self, noted: StoreSync) -> None:
        """Make the noted records durable: chunks before the recipes that name them, and orphans
        live before anything names them."""
        self.chunks.revive(noted.chunk_orphans)
        self.chunks.finish_sync(noted.chunks)
        self._lost_records[0].settle(noted.chunks_met)
        self.streams.revive(noted.stream_orphans)
        self.streams.finish_sync(noted.streams)
        self._lost_records[1].settle(noted.streams_met)
        append_copies(self.copies, noted.copies)
        if noted.chunks_met or noted.streams_met:
            self._keep_all()  # lost records lead to them now
        self._numbers.note(
            {
                Kind.CHUNKS: self.chunks.last_number,
                Kind.RECIPES: self.streams.last_number,
                COPIES_OF[Kind.RECIPES]: self.copies.last_number,
            }
        )

    def note_finished(self) -> None:
        """Take note that chunks appended from here on are of files that are not ready yet."""
        self._finished = self.chunks.position

    def keep(self, noted: StoreSync) -> None:
        """Take note that files are about to name the noted records. May run while another thread
        appends."""
        self.chunks.keep(noted.finished)
        self.streams.keep()
        self.copies.keep()

    def _keep_all(self) -> None:
        for writer in (self.chunks, self.streams, self.copies):
            writer.keep()

    def cut_unfinished(self) -> None:
        """Take the chunks of files back that are not ready yet, to make room for the recipes of
        those that are. No chunk may be appended any more. Raises Damaged, OSError."""
        self.chunks.cut_back(self._finished)

    def cut_back(self) -> int:
        """Take all records back that no file and no saved index names; returns the bytes that this
        and :meth:`cut_unfinished` have cut.

        The last call but :meth:`close`; nothing may be on its way. Raises Damaged, OSError.
        """
        # Copies name recipes, and recipes name chunks.
        for writer in (self.copies, self.streams, self.chunks):
            writer.cut_back()
            writer.remove_emptied()
        return sum(writer.cut_bytes for writer in (self.copies, self.streams, self.chunks))

    def save_index(self) -> None:
        """Make the next job's loading of the index faster. Everything should have been synced."""
        self._keep_all()
        self.index.save()
        self._recipe_index.save()

    def close(self) -> None:
        self._files.close()
