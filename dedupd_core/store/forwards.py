"""Rows of merged records: each leads to the next one, and the last one has the bytes."""

from dedupd_core import native
from dedupd_core.format.table import State
from dedupd_core.store.container.directory import OpenContainers

FORWARDS_MAX = native.upkeep.FORWARDS_MAX
"""Steps from a merged record to the one that has its bytes; more are a loop. A merge takes one, and
so does each repair of the record at the end."""


def end_in(containers: OpenContainers, record_id: int) -> int:
    """Where the row of merged records ends that begins with a record, as the tables of
    ``containers`` say now; the record itself if it was not merged. A row that is a loop is left
    after :data:`FORWARDS_MAX` steps."""
    for _ in range(FORWARDS_MAX):
        entry = containers.entry(record_id)
        if entry is None or entry.state != State.MERGED:
            break
        record_id = entry.target
    return record_id
