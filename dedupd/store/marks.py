"""Sets of records of one kind, in a bit for each that there is."""

from array import array
from collections.abc import Iterable, Iterator

from dedupd import native
from dedupd.format.ids import MAX_ORDINAL, container_of, make_id, ordinal_of

STRAYS_MAX = 100


class Marks:
    """One bit for each ordinal of each container. ``strays``: some ids of no record."""

    def __init__(self, counts: dict[int, int]) -> None:
        """``counts``: container → how many ordinals it has."""
        self._counts = dict(counts)
        self._bits = {number: bytearray(-(-count // 8)) for number, count in counts.items()}
        self.strays: set[int] = set()

    def add(self, ids: Iterable[int]) -> None:
        """Mark records; holes are none."""
        bits, counts = self._bits, self._counts
        for one in ids:
            ordinal = one & MAX_ORDINAL
            if ordinal < counts.get(one >> 32, 0):
                bits[one >> 32][ordinal >> 3] |= 1 << (one & 7)
            elif one and len(self.strays) < STRAYS_MAX:
                self.strays.add(one)

    def discard(self, ids: Iterable[int]) -> None:
        """Take marks back."""
        for one in ids:
            if one in self:
                self._bits[one >> 32][(one & MAX_ORDINAL) >> 3] &= ~(1 << (one & 7))

    def __bool__(self) -> bool:
        """Whether there is any container."""
        return bool(self._bits)

    def add_container(self, number: int, marked: Iterable[int], count: int) -> None:
        """Know one container more, with ``count`` ordinals, some of them marked."""
        self._bits[number] = bytearray(-(-count // 8))
        self._counts[number] = count
        self.add(make_id(number, ordinal) for ordinal in marked)

    def __contains__(self, record_id: int) -> bool:
        if not self.knows(record_id):
            return False
        ordinal = ordinal_of(record_id)
        return bool(self._bits[container_of(record_id)][ordinal >> 3] >> (ordinal & 7) & 1)

    def knows(self, record_id: int) -> bool:
        """Whether there is such a record, marked or not."""
        return ordinal_of(record_id) < self._counts.get(container_of(record_id), 0)

    def bits(self, container: int) -> bytes:
        """The bits of a container, the lowest ordinal in the lowest bit."""
        return bytes(self._bits[container])

    def digest(self) -> bytes:
        """The same for the same marks."""
        parts = [b"%d:%s" % (number, self._bits[number]) for number in sorted(self._bits)]
        return native.fingerprint(b"".join(parts))

    def count(self) -> int:
        """How many are marked."""
        return sum(int.from_bytes(own, "little").bit_count() for own in self._bits.values())


class Needs(Marks):
    """Marks of recipe nodes, each with how many bytes of what it stands for are needed.

    A file that was cut needs the beginning of its recipe only. Eight bytes for each node.
    """

    WHOLE = (1 << 64) - 1

    def __init__(self, counts: dict[int, int]) -> None:
        super().__init__(counts)
        self._lengths = {number: array("Q", bytes(8 * n)) for number, n in counts.items()}
        self._fresh = {number: bytearray(-(-count // 8)) for number, count in counts.items()}

    def need(self, record_id: int, length: int) -> None:
        """Mark a node, of which the first ``length`` bytes, at least, are needed."""
        self.add((record_id,))
        if not self.knows(record_id):
            return
        number, ordinal = container_of(record_id), ordinal_of(record_id)
        if length > self._lengths[number][ordinal]:
            self._lengths[number][ordinal] = length
            self._fresh[number][ordinal >> 3] |= 1 << (ordinal & 7)

    def needed(self, record_id: int) -> int:
        """How many bytes of a node are needed."""
        return self._lengths[container_of(record_id)][ordinal_of(record_id)]

    def digest(self) -> bytes:
        parts = [b"%d:%s" % (n, self._lengths[n].tobytes()) for n in sorted(self._lengths)]
        return native.fingerprint(super().digest() + b"".join(parts))

    def take_fresh(self, container: int) -> bytes:
        """The bits of those nodes of which more is needed since the last call."""
        fresh = bytes(self._fresh[container])
        self._fresh[container] = bytearray(len(fresh))
        return fresh


def ordinals(bits: bytes) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    for at, byte in enumerate(bits):
        if byte:
            for bit in range(8):
                if byte >> bit & 1:
                    yield at * 8 + bit
