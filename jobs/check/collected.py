"""Records that a table lost its tombstones of: collected, or lost where nobody needed them."""

from collections.abc import Mapping
from itertools import groupby

from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import container_of
from dedupd_core.store.container.container import has_hole
from dedupd_core.store.container.table_file import LOST
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.check.record_census import RecordCensus


def count_collected(volume: Volume, known: Mapping[Kind, RecordCensus]) -> int:
    """How many of the quarantined records nothing refers to, and have a hole in their payload;
    second copies aside.

    References must have been counted. A table that was made again from its container cannot tell
    the punched payload of a tombstone from a lost one; the next gc makes it a tombstone again.
    """
    count = 0
    for kind in COPIES_OF:
        lost, references = known[kind].lost, known[kind].references
        unneeded = sorted(one for one in lost if not references(one))
        with volume.containers(kind) as directory:
            for number, ids in groupby(unneeded, container_of):
                try:
                    fd = directory.open_data(number)
                except OSError:
                    continue
                with opened(fd):
                    count += sum(_is_punched(fd, lost[one]) for one in ids)
    return count


def _is_punched(fd: int, entry: tbl.TableEntry) -> bool:
    return entry.fingerprint != LOST.fingerprint and has_hole(fd, entry.offset, entry.stored_length)
