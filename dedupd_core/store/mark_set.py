"""Sets of records of one kind, in a bit for each that there is."""

from collections.abc import Callable, Iterable

from dedupd_core import native
from dedupd_core.format.ids import (
    PackedIds,
    PackedLengths,
    PackedOrdinals,
    pack_ids,
    pack_lengths,
    unpack_ids,
)

STRAYS_MAX = 100


class Marks(native.upkeep.MarkSet):
    """One bit for each ordinal of each container. ``strays``: some ids of no record."""

    def __init__(self, counts: dict[int, int]) -> None:
        """``counts``: container → how many ordinals it has."""
        self.strays: set[int] = set()

    def add(self, ids: Iterable[int]) -> None:
        """Mark records; holes are none."""
        self.add_packed(pack_ids(ids))

    def add_packed(self, ids: PackedIds) -> None:
        """As :meth:`add`."""
        self.note_strays(self.mark(ids))

    def note_strays(self, ids: PackedIds) -> None:
        """Keep some of the ids that were to be marked and are of no record."""
        for record_id in unpack_ids(ids):
            if len(self.strays) < STRAYS_MAX:
                self.strays.add(record_id)

    def include(self, other: "Marks") -> None:
        """Mark the records that are marked in another set, which has no other containers."""
        for number in other.numbers():
            self.merge(number, other.bits(number))
        self.strays |= other.strays

    def digest(self) -> bytes:
        """The same for the same marks."""
        return self._digest(self.bits)

    def _digest(self, column: Callable[[int], bytes]) -> bytes:
        """Of what ``column`` gives for each container, one in memory at a time."""
        parts = (
            b"%d:%s" % (number, native.hashing.fingerprint(column(number)))
            for number in self.numbers()
        )
        return native.hashing.fingerprint(b"".join(parts))


class Needs(Marks):
    """Marks of recipe nodes, each with how many bytes from its beginning are needed.

    A file that was cut needs only the beginning of its recipe. Eight bytes for each node.
    """

    WHOLE = (1 << 64) - 1

    def __init__(self, counts: dict[int, int]) -> None:
        super().__init__(counts)
        self._needs = native.upkeep.NeedSet(counts)

    def need(self, record_id: int, length: int) -> None:
        """Mark a node, of which the first ``length`` bytes, at least, are needed."""
        self.need_packed(pack_ids((record_id,)), pack_lengths((length,)))

    def need_packed(self, ids: PackedIds, lengths: PackedLengths) -> None:
        """As :meth:`need`."""
        self.add_packed(ids)
        self._needs.need(ids, lengths)

    def needed(self, record_id: int) -> int:
        """How many bytes of a node are needed."""
        return self._needs.needed(record_id)

    def lengths(self, container: int) -> bytes:
        """How many bytes of each node of a container are needed (u64)."""
        return self._needs.lengths(container)

    def put(self, container: int, lengths: bytes, fresh: bytes) -> None:
        """Put lengths (u64), and the bits of nodes that are fresh, in place of a container's."""
        self._needs.put(container, lengths, fresh)
        self.merge(container, native.upkeep.more_than(lengths, b""))

    def digest(self) -> bytes:
        return native.hashing.fingerprint(super().digest() + self._digest(self.lengths))

    def fresh(self, container: int) -> bytes:
        """The bits of those nodes of which more is needed than when they were taken."""
        return self._needs.fresh(container)

    def take_fresh(
        self, container: int, first: int, end: int
    ) -> tuple[PackedOrdinals, PackedLengths]:
        """The fresh nodes from one ordinal to another, multiples of 8: no longer, until more of
        them is needed. Returns their ordinals, ascending, and how much is needed."""
        return self._needs.take_fresh(container, first, end)
