"""The entries of an entire redirection table in encoded form, decoded on access.

A million entries need 65 MB in this form, and 0.4 GB as objects; and most readers need few of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.table import ENTRY_BYTES, TableEntry


class PackedEntries(Sequence[TableEntry]):
    """Entries by ordinal, all of them valid. ``states`` has a byte for each."""

    def __init__(self, data: bytes, states: bytes) -> None:
        assert len(data) == len(states) * ENTRY_BYTES
        self.data = data
        self.states = states

    @classmethod
    def checked(cls, data: bytes, seed: int) -> "PackedEntries | None":
        """Check the complete entries of ``data``; None if any of them is invalid."""
        states = native.store.table_states(data, seed)
        return None if 0 in states else cls(data[: len(states) * ENTRY_BYTES], states)

    @classmethod
    def of(cls, entries: Iterable[TableEntry], seed: int) -> "PackedEntries":
        """Encode entries for the table of a container with this seed."""
        known = list(entries)
        data = b"".join(tbl.encode_entry(entry, seed) for entry in known)
        return cls(data, bytes(entry.state for entry in known))

    def __len__(self) -> int:
        return len(self.states)

    @overload
    def __getitem__(self, at: int) -> TableEntry: ...
    @overload
    def __getitem__(self, at: slice) -> "PackedEntries": ...
    def __getitem__(self, at: int | slice) -> "TableEntry | PackedEntries":
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            assert step == 1
            data = self.data[start * ENTRY_BYTES : end * ENTRY_BYTES]
            return PackedEntries(data, self.states[start:end])
        start = range(len(self))[at] * ENTRY_BYTES
        return tbl.unpack_entry(self.data, start)

    def __iter__(self) -> Iterator[TableEntry]:
        return map(tbl.unpack_entry, [self.data] * len(self), range(0, len(self.data), ENTRY_BYTES))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedEntries) and self.data == other.data

    __hash__ = None  # type: ignore[assignment]

    def fingerprint(self, ordinal: int) -> bytes:
        """Return the fingerprint of one entry, without decoding the rest."""
        start = ordinal * ENTRY_BYTES
        return self.data[start : start + tbl.FINGERPRINT_BYTES]

    def ordinals_in(self, state: int) -> Iterator[int]:
        """Yield the ordinals of the entries in a state, ascending."""
        at = self.states.find(state)
        while at >= 0:
            yield at
            at = self.states.find(state, at + 1)


class UncheckedEntries(Sequence[TableEntry | None]):
    """Entries by ordinal, each checked and decoded on access.

    None represents an entry that is damaged, or was never written.
    """

    def __init__(self, data: bytes, seed: int) -> None:
        """``seed`` is the container's; bytes after the last complete entry are ignored."""
        self.data = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
        self.seed = seed

    def __len__(self) -> int:
        return len(self.data) // ENTRY_BYTES

    @overload
    def __getitem__(self, at: int) -> TableEntry | None: ...
    @overload
    def __getitem__(self, at: slice) -> "UncheckedEntries": ...
    def __getitem__(self, at: int | slice) -> "TableEntry | UncheckedEntries | None":
        if isinstance(at, slice):
            start, end, step = at.indices(len(self))
            assert step == 1
            return UncheckedEntries(self.data[start * ENTRY_BYTES : end * ENTRY_BYTES], self.seed)
        start = range(len(self))[at] * ENTRY_BYTES
        return tbl.decode_entry(self.data[start : start + ENTRY_BYTES], self.seed)

    def __iter__(self) -> Iterator[TableEntry | None]:
        return iter(tbl.decode_entries(self.data, self.seed))

    def resized(self, count: int) -> "UncheckedEntries":
        """Return the first ``count`` entries, with None for missing ones."""
        size = count * ENTRY_BYTES
        return UncheckedEntries(self.data[:size].ljust(size, b"\0"), self.seed)

    def damaged(self) -> list[int]:
        """Return the ordinals of entries that are None."""
        states = native.store.table_states(self.data, self.seed)
        return [at for at, state in enumerate(states) if state == 0] if 0 in states else []
