"""All containers of a volume opened for a job that mends them: writers, tables, states."""

import os
from collections.abc import Mapping

from dedupd.errors import Damaged
from dedupd.format import container as fmt
from dedupd.format import table as tbl
from dedupd.format.ids import container_of, ordinal_of
from dedupd.format.packed import UncheckedEntries
from dedupd.fsutil import opened, read_at
from dedupd.store.container import data_name
from dedupd.store.recovery import load_table
from dedupd.store.states import set_states
from dedupd.volume import Volume


class Directory:
    """The containers of one kind: their headers, tables and states."""

    def __init__(self, volume: Volume, kind: fmt.Kind) -> None:
        self.kind = kind
        self.fd = volume.open_directory(kind)
        self._disk = volume.disk
        self._uuid = volume.space.volume

    def close(self) -> None:
        os.close(self.fd)

    def where(self, number: int) -> str:
        """A container's name in messages."""
        return f"{self.kind.name.lower()}/{data_name(number).decode()}"

    def header(self, number: int) -> fmt.FileHeader:
        """Raises DamagedContainer, OSError."""
        fd = os.open(data_name(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        with opened(fd):
            data = read_at(fd, fmt.FILE_HEADER_BYTES, 0)
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
