"""Rows of merged records: each leads to the next one, and the last one has the bytes."""

from collections.abc import Callable

from dedupd_core import native
from dedupd_core.format.table import State
from dedupd_core.store.container.directory import OpenContainers

FORWARDS_MAX = native.upkeep.FORWARDS_MAX
"""Steps from a merged record to the one that has its bytes; more are a loop. A merge takes one, and
so does each repair of the record at the end."""


def end_of(record_id: int, target_of: Callable[[int], int | None]) -> int:
    """Where the row of merged records ends that begins with a record; the record itself where it
    was not merged. A row that is a loop is left after :data:`FORWARDS_MAX` steps.

    ``target_of`` gives the record that a merged record leads to, and None for any other one.
    """
    for _ in range(FORWARDS_MAX):
        target = target_of(record_id)
        if target is None:
            break
        record_id = target
    return record_id


def end_in(containers: OpenContainers, record_id: int) -> int:
    """The same, as the tables of ``containers`` say now."""

    def target_of(one: int) -> int | None:
        entry = containers.entry(one)
        return entry.target if entry is not None and entry.state == State.MERGED else None

    return end_of(record_id, target_of)
