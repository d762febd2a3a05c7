"""The records of one container compared with its redirection table.

Native code compares, and reports each difference. This module gives each one its invariant and its
text.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.units import MIB
from jobs.check.invariants import Invariant

PORTION_BYTES = 128 * MIB
"""Read by one call: at its end, the cores wait for a moment."""

_TEXTS = {
    "order": (
        Invariant.CONTAINER_RECORDS,
        "ordinal {0.ordinal} at {0.start}; expected {0.end}",
    ),
    "entry": (Invariant.TABLE_AGREES, "entry {0.ordinal} differs from the record"),
    "payload": (
        Invariant.RECORD_PAYLOAD,
        "the payload has a wrong checksum, or cannot be decoded",
    ),
    "fingerprint": (Invariant.RECORD_FINGERPRINT, "the raw bytes have a different fingerprint"),
    "unknown": (Invariant.TABLE_AGREES, "record {0.ordinal} is missing"),
    "missing": (Invariant.CONTAINER_RECORDS, "record {0.ordinal} is missing"),
    "gap": (Invariant.CONTAINER_RECORDS, "bytes {0.start} to {0.end} contain no record"),
}
"""Invariant and text of a difference, by :attr:`native.store.Difference.what`."""

_WITHOUT_RECORD = frozenset(("order", "gap"))
"""Differences at a place, and not of a record that the table has."""


class CheckedTable:
    """The entries of a container's table, and those that a check found to be another one, or none.

    ``changed`` are the latter, by ordinal.
    """

    def __init__(
        self, directory: ContainerDirectory, number: int, entries: UncheckedEntries
    ) -> None:
        self.directory = directory
        self.number = number
        self.entries = entries
        self.changed: dict[int, tbl.TableEntry | None] = {}

    def __getitem__(self, ordinal: int) -> tbl.TableEntry | None:
        if ordinal in self.changed or ordinal >= len(self.entries):
            return self.changed.get(ordinal)
        return self.entries[ordinal]

    @property
    def where(self) -> str:
        """The container's name in messages."""
        return self.directory.where(self.number)

    def of_state(self, state: tbl.State) -> Iterator[tbl.TableEntry]:
        """The entries in a state."""
        count = max([len(self.entries), *(ordinal + 1 for ordinal in self.changed)])
        for ordinal in range(count):
            entry = self[ordinal]
            if entry is not None and entry.state == state:
                yield entry


@dataclass(frozen=True, slots=True)
class Problem:
    """A violated invariant at one record, or at a place where none is (``ordinal`` -1).

    ``entry`` is what the table should say, where the record itself tells.
    """

    invariant: Invariant
    detail: str
    ordinal: int = -1
    entry: tbl.TableEntry | None = None


def problems(found: list[native.store.Difference], seed: int) -> list[Problem]:
    """The problems that these differences are, in a container with this seed."""
    return [_problem(one, seed) for one in found]


def _problem(found: native.store.Difference, seed: int) -> Problem:
    invariant, text = _TEXTS[found.what]
    detail = text.format(found)
    if found.what in _WITHOUT_RECORD:
        return Problem(invariant, detail)
    entry = None if found.entry is None else tbl.decode_entry(found.entry, seed)
    return Problem(invariant, detail, found.ordinal, entry)


def check_all(
    check: native.store.ContainerCheck,
    seed: int,
    end: int,
    bytes_max: int,
    pace: Callable[[int], None],
) -> Iterator[list[Problem]]:
    """Check a container up to an offset, ``bytes_max`` at a time; yields the problems of each step.

    ``pace`` is called before each read with the number of bytes. It may wait, or raise to stop.
    Raises OSError.
    """
    while (before := check.reached).offset < end:
        planned = min(bytes_max, end - before.offset)
        pace(planned)
        found = check.step(planned)
        pace(check.reached.read_bytes - before.read_bytes - planned)
        yield problems(found, seed)
