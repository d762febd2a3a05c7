"""Reading records by id, over all containers of one kind."""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from dedupd_core import native
from dedupd_core.errors import DamagedChunk, DamagedContainer
from dedupd_core.format.container import LEANING, Kind, Record, RecordKind
from dedupd_core.format.ids import container_of, ordinal_of, show_id
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.table import RANK_MAX, State, TableEntry
from dedupd_core.store.container.bases import Bases
from dedupd_core.store.container.container import Container
from dedupd_core.store.encoded_records import encoded_alone
from dedupd_core.store.forwards import FORWARDS_MAX
from dedupd_core.store.second_copies import CopyReader
from dedupd_core.units import MIB

CONTAINERS_OPEN_MAX = 256
"""Two descriptors each: well below the usual limit of 1,024."""

BASES_BYTES = 32 * MIB
"""Of decoded records on which others lean, kept for their neighbours."""

_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about the record that was to be read."""

T = TypeVar("T")


class _RecordQuery(NamedTuple, Generic[T]):
    """What is asked of a record: of the one in force, of itself whatever its state, and of its
    second copy; and the record in an answer."""

    get: Callable[[Container, int], T]
    get_own: Callable[[Container, int], T]
    get_copy: Callable[[CopyReader, int], T | None]
    record_of: Callable[[T], Record]


_BYTES = _RecordQuery(Container.read, Container.read_own, CopyReader.read, lambda found: found[0])
_HEADER = _RecordQuery(
    Container.describe, Container.describe_own, CopyReader.describe, lambda found: found
)


class ChunkSource(Protocol):
    """Reads chunks by their ids: of containers, or of a store in a cluster. Methods are those of
    :class:`RecordReader`. Safe to use from several threads."""

    def read(self, record_id: int) -> tuple[Record, bytes]: ...
    def read_alone(self, record_id: int) -> tuple[Record, bytes]: ...
    def frame_chunks(
        self,
        wanted: Sequence[tuple[int, int, int]],
        sequence: int,
        stream_seed: int,
        ahead: native.store.BlocksAhead,
        threads: int,
    ) -> tuple[bytes, bytes, native.store.Unreadable | None]: ...
    def describe(self, record_id: int) -> Record: ...


class RecordReader:
    """Reads records of one kind of container. Safe to use from several threads.

    A record that cannot be read is read from its second copy, if it has one in ``copies``; either
    way ``on_damage`` is told its id. A lack of descriptors or of memory in this process is no
    damage, but an OSError.
    """

    def __init__(
        self,
        directory: str,
        kind: Kind,
        volume_id: bytes,
        copies: CopyReader | None = None,
        on_damage: Callable[[int], None] | None = None,
    ) -> None:
        self._dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._kind = kind
        self._volume_id = volume_id
        self._open: OrderedDict[int, Container] = OrderedDict()
        self._lock = threading.Lock()
        self._copies = copies
        self._on_damage = on_damage
        self._bases = Bases(
            native.store.Bases(self._dir_fd, volume_id, BASES_BYTES), self._read_base
        )
        self._base = threading.local()

    @property
    def native_reader(self) -> native.store.Bases:
        """Where native code finds records of these containers by their ids."""
        return self._bases.native

    def close(self) -> None:
        with self._lock:
            for container in self._open.values():
                container.close()
            self._open.clear()
        self._bases.native.close()
        os.close(self._dir_fd)

    def read(self, record_id: int) -> tuple[Record, bytes]:
        """The record and its raw bytes, verified and forwarded. Raises DamagedContainer."""
        return self._forwarded(record_id, _BYTES)

    def frame_chunks(
        self,
        wanted: Sequence[tuple[int, int, int]],
        sequence: int,
        stream_seed: int,
        ahead: native.store.BlocksAhead,
        threads: int,
    ) -> tuple[bytes, bytes, native.store.Unreadable | None]:
        """Chunks, by id, length and check of the fingerprint of each, as frames of a stream.

        Returns the frames, the fingerprints, and the chunk after them if it cannot be read. All
        chunks should be in one container.
        """
        options = sequence, stream_seed, ahead, threads
        return native.store.frame_chunks(self.native_reader, wanted, *options)

    def describe(self, record_id: int) -> Record:
        """The record's header, forwarded, without its bytes. Raises DamagedContainer."""
        return self._forwarded(record_id, _HEADER)

    def domain_of(self, record_id: int) -> bytes:
        """The domain of a record's container. Raises DamagedContainer, OSError."""
        return self._acquire(container_of(record_id)).header.domain

    def is_live(self, record_id: int) -> bool:
        """Whether the table says that a record is there and needed. Raises DamagedContainer."""
        entry = self._entry(record_id)
        return entry is not None and entry.state == State.LIVE

    def _entry(self, record_id: int) -> TableEntry | None:
        return self._acquire(container_of(record_id)).entry(ordinal_of(record_id))

    def _read_base(self, record_id: int) -> bytes:
        """The raw bytes of a record that others lean on. Raises DamagedContainer, OSError."""
        raw = self._bases.native.raw(record_id)
        if raw is not None:
            return raw
        depth = getattr(self._base, "depth", 0)
        if depth == RANK_MAX:
            raise DamagedChunk(f"record {show_id(record_id)} is the base of a base", record_id)
        self._base.depth = depth + 1
        try:
            return self.read(record_id)[1]
        finally:
            self._base.depth = depth

    def read_itself(self, record_id: int) -> tuple[Record, bytes]:
        """The record itself, whatever its state, and its raw bytes, with the fingerprint compared.

        Raises DamagedContainer, OSError.
        """
        return self._get(record_id, Container.read_own)

    def read_alone(self, record_id: int) -> tuple[Record, bytes]:
        """The record itself, with a payload that leans on no other record, verified with its
        fingerprint: as it is stored, if it is like that.

        Raises DamagedContainer, OSError.
        """
        record, payload = self._get(record_id, Container.read_stored)
        if record.codec not in LEANING:
            return record, payload
        return encoded_alone(self.read_itself(record_id)[1], record.fingerprint)

    def offers(self, record_id: int, length: int, check: int) -> bool:
        """Whether the table offers a record, of this length and check, to more files.

        As far as tables can tell, like the index that is loaded from them; but an orphan, which
        the index offers too, must be revived first. Raises DamagedContainer.
        """
        entry = self._entry(record_id)
        is_same = entry is not None and (
            (entry.raw_length, fingerprint_check(entry.fingerprint)) == (length, check)
        )
        return is_same and self._is_offered(entry)

    def offers_all(self, record_id: int, fingerprint: bytes) -> bool:
        """As :meth:`offers`, with the whole fingerprint. Raises DamagedContainer."""
        entry = self._entry(record_id)
        is_same = entry is not None and entry.fingerprint == fingerprint
        return is_same and self._is_offered(entry)

    def _is_offered(self, entry: TableEntry | None) -> bool:
        """Whether a record is live, and what it leans on is, too."""
        if entry is None or entry.state != State.LIVE:
            return False
        return not entry.leans or (entry.base > 0 and self._bases.native.is_live(entry.base))

    def _forwarded(self, record_id: int, asked: _RecordQuery[T]) -> T:
        """The answer at the end of a chain of forwards.

        Where the chain leads to nothing, the record's own bytes: a record that was merged keeps
        them until it is compacted, and an entry may be wrong.
        """
        try:
            return self._follow(record_id, asked)
        except DamagedContainer:
            if not self._is_merged(record_id):
                raise
            try:
                own = self._get(record_id, asked.get_own)
            except (DamagedContainer, OSError):
                own = None
            kind = None if own is None else asked.record_of(own).kind
            if kind in (None, RecordKind.FORWARD, RecordKind.TOMBSTONE):
                # Its second copy is older than the merge, and is kept as long as it is referred to.
                own = None if self._copies is None else asked.get_copy(self._copies, record_id)
            if own is None:
                raise
            return own

    def _is_merged(self, record_id: int) -> bool:
        try:
            entry = self._entry(record_id)
        except (DamagedContainer, OSError):
            return False
        return entry is not None and entry.state == State.MERGED

    def _follow(self, record_id: int, asked: _RecordQuery[T]) -> T:
        target = record_id
        for _ in range(FORWARDS_MAX + 1):
            try:
                found = self._get(target, asked.get)
            except (DamagedContainer, OSError) as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_PROCESS:
                    raise
                copy = self._second(target, asked.get_copy)
                if copy is not None:
                    return copy
                if isinstance(error, DamagedContainer):
                    raise
                raise DamagedChunk(
                    f"record {show_id(target)}: the disk reports {error.strerror}", record_id
                ) from error
            record = asked.record_of(found)
            if record.kind == RecordKind.TOMBSTONE:
                raise DamagedChunk(f"record {show_id(target)} was collected", record_id)
            if record.kind != RecordKind.FORWARD:
                return found
            target = record.target
        raise DamagedChunk(f"record {show_id(record_id)} is forwarded in a circle", record_id)

    def _second(self, record_id: int, get_copy: Callable[[CopyReader, int], T | None]) -> T | None:
        """The second copy of a record that cannot be read, if there is one."""
        if self._on_damage is not None:
            self._on_damage(record_id)
        return None if self._copies is None else get_copy(self._copies, record_id)

    def _get(self, record_id: int, get: Callable[[Container, int], T]) -> T:
        """The result of ``get`` in the container as it is now.

        An open container stays readable after a compaction has put another one in its place. But
        records appended since, and the entries of a new table, are found only in the new one.
        """
        number, ordinal = container_of(record_id), ordinal_of(record_id)
        container = self._acquire(number)
        try:
            return get(container, ordinal)
        except DamagedChunk:
            if not container.is_stale(self._dir_fd):
                raise
        self.drop([number])
        return get(self._acquire(number), ordinal)

    def drop(self, numbers: Iterable[int]) -> None:
        """Let go of containers, so that the space of those that were replaced comes back.

        A reader that is in the middle of one goes on with it to the end.
        """
        with self._lock:
            numbers = list(numbers)
            dropped = [self._open.pop(number, None) for number in numbers]
        self._bases.native.drop(numbers)
        # Closing a file of a gigabyte that has no name any more takes a while: not under the lock.
        dropped.clear()

    def _acquire(self, number: int) -> Container:
        with self._lock:
            container = self._open.get(number)
            if container is None:
                container = Container(
                    self._dir_fd, self._kind, number, self._volume_id, self._bases
                )
                self._open[number] = container
                if len(self._open) > CONTAINERS_OPEN_MAX:
                    # Dropped, not closed: another thread may be reading it.
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
            return container
