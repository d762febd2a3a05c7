"""Records that failed a check, and their return when the same bytes are stored again.

A quarantined record is not offered, so an optimize run that finds its fingerprint stores the bytes
again. When these are durable, and before a file relies on them, the old record's entry is
redirected to the new record. This repairs the files that had lost it.
"""

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id
from dedupd_core.store.chunk_index import ChunkIndex
from dedupd_core.store.container.directory import OpenContainers
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.container.table_file import LOST, Recovered
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.volume.volume import Volume


class LostRecords:
    """The quarantined records of one kind whose fingerprint is known."""

    def __init__(self, volume: Volume, kind: fmt.Kind) -> None:
        self._volume = volume
        self._kind = kind
        self._entries: dict[bytes, dict[bytes, dict[int, tbl.TableEntry]]] = {}

    def load(self, container: Recovered) -> None:
        """Add the lost records of a container."""
        for ordinal in container.entries.ordinals_in(tbl.State.QUARANTINED):
            entry = container.entries[ordinal]
            if entry.fingerprint != LOST.fingerprint:
                of_domain = self._entries.setdefault(container.header.domain, {})
                lost = of_domain.setdefault(entry.fingerprint, {})
                lost[make_id(container.header.container, ordinal)] = entry

    def returned(
        self, domain: bytes, index: ChunkIndex, writer: ContainerWriter
    ) -> dict[int, tbl.TableEntry]:
        """Return new entries for records of a domain whose bytes were appended again, each once.

        The caller passes them to :meth:`settle` after it has synced all appended data.
        """
        lost = self._entries.get(domain)
        if not lost:
            return {}
        found = index.lookup(b"".join(lost))
        changes: dict[int, tbl.TableEntry] = {}
        for fingerprint, chunk_id in zip(list(lost), found, strict=True):
            if chunk_id and writer.has(chunk_id):
                for lost_id, entry in lost.pop(fingerprint).items():
                    changes[lost_id] = entry._replace(state=tbl.State.MERGED, target=chunk_id)
        return changes

    def settle(self, changes: dict[int, tbl.TableEntry]) -> None:
        """Redirect the entries to the new records, durably. Entries that a neighbour has redirected
        before are kept. Raises DamagedTable, NoSpace."""
        if not changes:
            return
        with self._volume.containers(self._kind) as directory, directory.neighbours.turn():
            containers = OpenContainers(directory)
            still_lost = {
                lost_id: entry
                for lost_id, entry in changes.items()
                if (now := containers.entry(lost_id)) is None or now.state != tbl.State.MERGED
            }
            set_states(directory, still_lost)
