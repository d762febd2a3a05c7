"""Sets of records of one kind, in a bit for each that there is."""

from collections.abc import Iterable, Iterator

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

    def count(self) -> int:
        """How many are marked."""
        return sum(int.from_bytes(own, "little").bit_count() for own in self._bits.values())


def ordinals(bits: bytes) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    for at, byte in enumerate(bits):
        if byte:
            for bit in range(8):
                if byte >> bit & 1:
                    yield at * 8 + bit


def without(bits: bytes, others: bytes) -> bytes:
    """The bits that are set in ``bits`` and not in ``others``, which is as long."""
    both = int.from_bytes(bits, "little") & ~int.from_bytes(others, "little")
    return both.to_bytes(len(bits), "little")
