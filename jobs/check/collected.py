"""Records that a table lost its tombstones of: collected, or lost where nobody needed them."""

import os
from itertools import groupby

from dedupd.format import table as tbl
from dedupd.format.container import Kind
from dedupd.format.ids import container_of
from dedupd.store.container.container import data_name, has_hole
from dedupd.store.container.table_file import LOST
from dedupd.system.files import opened
from dedupd.volume.volume import Volume
from jobs.check.record_census import RecordCensus


def count_collected(volume: Volume, kind: Kind, known: RecordCensus) -> int:
    """How many of the quarantined records nothing refers to, and have a hole in their payload.

    References must have been counted. A table that was made again from its container cannot tell
    the punched payload of a tombstone from a lost one; the next gc makes it a tombstone again.
    """
    unneeded = sorted(one for one in known.lost if not known.references(one))
    count = 0
    with volume.containers(kind) as directory:
        for number, ids in groupby(unneeded, container_of):
            try:
                fd = os.open(data_name(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.fd)
            except OSError:
                continue
            with opened(fd):
                count += sum(_is_punched(fd, known.lost[one]) for one in ids)
    return count


def _is_punched(fd: int, entry: tbl.TableEntry) -> bool:
    return entry.fingerprint != LOST.fingerprint and has_hole(fd, entry.offset, entry.stored_length)
