"""The containers of one kind in an open directory, for jobs that change them."""

import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cached_property

from dedupd_core import native
from dedupd_core.config.room import NO_RESERVE, MakeRoom, Room
from dedupd_core.errors import Damaged, DamagedChunk
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, ordinal_of, show_id
from dedupd_core.format.store_secret import StoreSecret
from dedupd_core.format.table_columns import PackedEntries, UncheckedEntries
from dedupd_core.store.beside.neighbours import ALONE, Neighbours
from dedupd_core.store.container.bases import Bases
from dedupd_core.store.container.container import (
    Container,
    container_name,
    data_name,
    header_of,
    table_name,
)
from dedupd_core.store.container.files import container_numbers
from dedupd_core.store.container.table_file import load_table
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import open_to_read, opened
from dedupd_core.units import MIB

_REBUILT = define("recovery.table-written", "a rebuilt table is in place")

CONTAINERS_OPEN_MAX = 64

BASES_BYTES = 16 * MIB
"""Of decoded records on which others lean, kept for their neighbours."""


class ContainerDirectory:
    """The containers of one kind: which there are, their headers and their tables."""

    def __init__(
        self,
        fd: int,
        kind: fmt.Kind,
        volume_id: bytes,
        disk: Disk,
        make_room: MakeRoom | None = None,
        neighbours: Neighbours = ALONE,
        read_secret: Callable[[], StoreSecret] | None = None,
    ) -> None:
        """Takes over ``fd``, a descriptor of the directory.

        ``make_room``: of its file system; by default all free space. ``read_secret``: the secret of
        the store, needed to write containers.
        """
        self.fd = fd
        self.neighbours = neighbours
        self.kind = kind
        self.volume_id = volume_id
        self.disk = disk
        self._make_room = make_room
        self._read_secret = read_secret

    def close(self) -> None:
        if (bases := self.__dict__.pop("bases", None)) is not None:
            bases.native.close()  # a check that failed may still know it
        os.close(self.fd)

    @cached_property
    def bases(self) -> Bases:
        """Where its containers find what their records lean on."""
        return Bases(native.store.Bases(self.fd, self.volume_id, BASES_BYTES), self._read_base)

    @cached_property
    def room(self) -> Room:
        """How much may be written to it. Raises PolicyError."""
        if self._make_room is not None:
            return self._make_room()
        return Room(self.fd, NO_RESERVE, self.kind.name.lower())

    @cached_property
    def secret(self) -> StoreSecret:
        """The secret of its store. Raises OSError."""
        assert self._read_secret is not None
        return self._read_secret()

    def new_seed(self, number: int, generation: int) -> int:
        """The seed of a generation of a container that is about to be written. Raises OSError."""
        return self.secret.seed(self.kind, number, generation)

    def _read_base(self, record_id: int) -> bytes:
        raw = self.bases.native.raw(record_id)
        if raw is None:
            raise DamagedChunk(f"chunk {show_id(record_id)} is not intact", record_id)
        return raw

    def base_of(self, record_id: int, entry: tbl.TableEntry | None) -> int:
        """The id of what a record leans on, by its entry, or else by its header. Raises
        DamagedContainer, OSError."""
        if entry is not None and entry.base:
            return entry.base
        with closing(self.open(container_of(record_id))) as container:
            return container.describe_own(ordinal_of(record_id)).base

    def __enter__(self) -> "ContainerDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def numbers(self) -> list[int]:
        """Numbers of all containers, ascending."""
        return container_numbers(self.fd)

    def where(self, number: int) -> str:
        """A container's name in messages."""
        return container_name(self.kind, number)

    def owns(self, header: fmt.FileHeader, number: int) -> bool:
        """Whether a header is that of the container ``number`` of this directory."""
        return fmt.belongs_to(header, self.kind, number, self.volume_id)

    def header(self, number: int) -> fmt.FileHeader:
        """Raises DamagedContainer, OSError."""
        with opened(self.open_data(number)) as fd:
            return header_of(fd, self.where(number))

    def open_data(self, number: int) -> int:
        """A descriptor of a container's file, to read. Raises OSError."""
        return open_to_read(self.fd, data_name(number))

    def stat(self, number: int) -> os.stat_result:
        """That of a container's file. Raises OSError."""
        return os.stat(data_name(number), dir_fd=self.fd)

    def open(self, number: int) -> Container:
        """A container open for reading. Raises DamagedContainer."""
        return Container(self.fd, self.kind, number, self.volume_id, self.bases)

    def entries(self, number: int) -> UncheckedEntries:
        """The table's entries, by ordinal. Raises Damaged, OSError."""
        return load_table(self.fd, self.header(number))[1]

    def entry(self, record_id: int) -> tbl.TableEntry | None:
        """The entry of one record; None where there is no valid one."""
        try:
            entries = self.entries(container_of(record_id))
        except (Damaged, OSError):
            return None
        ordinal = ordinal_of(record_id)
        return entries[ordinal] if ordinal < len(entries) else None

    def write_table(
        self, header: fmt.FileHeader, mark: tbl.TableHeader, entries: list[tbl.TableEntry]
    ) -> PackedEntries:
        """Put a table in the place of a container's present one; returns its entries. Raises
        NoSpace."""
        packed = PackedEntries.of(entries, fmt.seed_of(header))
        data = tbl.encode_header(replace(mark, map_lines=0)) + packed.data
        self.room.require(len(data), f"the table of {self.where(header.container)}", files=1)
        self.disk.replace_file(self.fd, table_name(header.container), data)
        reach(_REBUILT)
        return packed


class OpenContainers:
    """Containers of one kind, some of them kept open. For one thread.

    A container that was handed out stays open as long as something refers to it.
    """

    def __init__(self, directory: ContainerDirectory) -> None:
        """``directory`` is borrowed."""
        self._directory = directory
        self._open: OrderedDict[int, Container] = OrderedDict()

    def get(self, number: int) -> Container | None:
        """A container; None where it cannot be opened."""
        container = self._open.get(number)
        if container is None:
            try:
                container = self._directory.open(number)
            except (Damaged, OSError):
                return None
            self._open[number] = container
            if len(self._open) > CONTAINERS_OPEN_MAX:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        return container

    def has_base(self, record_id: int) -> bool:
        """Whether the bytes of a record on which others lean can be read."""
        return self._directory.bases.native.raw(record_id) is not None

    def entry(self, record_id: int) -> tbl.TableEntry | None:
        """What the table says of a record now; None where it has no valid entry."""
        container = self.get(container_of(record_id))
        return None if container is None else container.entry(ordinal_of(record_id))
