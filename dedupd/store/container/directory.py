"""All containers of a volume opened for a job that mends them: writers, tables, states."""

import os
from collections import OrderedDict
from collections.abc import Mapping

from dedupd.errors import Damaged
from dedupd.format import container as fmt
from dedupd.format import table as tbl
from dedupd.format.ids import container_of, ordinal_of
from dedupd.format.table_columns import UncheckedEntries
from dedupd.store.container.container import Container, data_name
from dedupd.store.container.record_states import set_states
from dedupd.store.container.table_file import load_table
from dedupd.system.disk import Disk
from dedupd.system.files import opened, read_readable

CONTAINERS_OPEN_MAX = 64


class ContainerDirectory:
    """The containers of one kind: their headers, tables and states."""

    def __init__(self, fd: int, kind: fmt.Kind, volume: bytes, disk: Disk) -> None:
        """Takes ``fd`` over, a descriptor of the directory. ``volume`` is the volume's uuid."""
        self.fd = fd
        self.kind = kind
        self._volume = volume
        self._disk = disk

    def close(self) -> None:
        os.close(self.fd)

    def where(self, number: int) -> str:
        """A container's name in messages."""
        return f"{self.kind.name.lower()}/{data_name(number).decode()}"

    def header(self, number: int) -> fmt.FileHeader:
        """Raises DamagedContainer, OSError."""
        fd = os.open(data_name(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        with opened(fd):
            data = read_readable(fd, fmt.FILE_HEADER_BYTES, 0)
        return fmt.decode_file_header(data, self.where(number))

    def entries(self, number: int) -> UncheckedEntries:
        """The table's entries, by ordinal. Raises Damaged, OSError."""
        return load_table(self.fd, self.header(number))[1]

    def entry(self, record_id: int) -> tbl.Entry | None:
        """The entry of one record; None where there is no valid one."""
        try:
            entries = self.entries(container_of(record_id))
        except (Damaged, OSError):
            return None
        ordinal = ordinal_of(record_id)
        return entries[ordinal] if ordinal < len(entries) else None

    def set_states(self, changes: Mapping[int, tbl.Entry]) -> None:
        """Put entries, by id, in place of those that the tables have, durably. Raises Damaged."""
        by_container: dict[int, dict[int, tbl.Entry]] = {}
        for record_id, entry in changes.items():
            by_container.setdefault(container_of(record_id), {})[ordinal_of(record_id)] = entry
        for number, entries in sorted(by_container.items()):
            set_states(self._disk, self.fd, self.header(number), entries)


class OpenContainers:
    """Containers of one kind, some of them kept open. For one thread.

    Those that are handed out stay open for as long as somebody holds them.
    """

    def __init__(self, dir_fd: int, kind: fmt.Kind, volume: bytes) -> None:
        """``dir_fd`` is borrowed."""
        self._dir_fd = dir_fd
        self._kind = kind
        self._volume = volume
        self._open: OrderedDict[int, Container] = OrderedDict()

    def get(self, number: int) -> Container | None:
        """A container; None where it cannot be opened."""
        container = self._open.get(number)
        if container is None:
            try:
                container = Container(self._dir_fd, self._kind, number, self._volume)
            except (Damaged, OSError):
                return None
            self._open[number] = container
            if len(self._open) > CONTAINERS_OPEN_MAX:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        return container

    def entry(self, record_id: int) -> tbl.Entry | None:
        """What the table says of a record now; None where it has no valid entry."""
        container = self.get(container_of(record_id))
        return None if container is None else container.entry(ordinal_of(record_id))
