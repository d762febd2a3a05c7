"""Sets of records of one kind, in a bit for each that there is."""

from array import array
from collections.abc import Iterable, Iterator

from dedupd import native
from dedupd.format.ids import container_of, make_id, ordinal_of

STRAYS_MAX = 100


class Marks:
    """One bit for each ordinal of each container. ``strays``: some ids of no record.

    ``native`` is where the bits are.
    """

    def __init__(self, counts: dict[int, int]) -> None:
        """``counts``: container → how many ordinals it has."""
        self.native = native.MarkSet()
        for number, count in counts.items():
            self.native.add_container(number, count)
        self.strays: set[int] = set()

    def add(self, ids: Iterable[int]) -> None:
        """Mark records; holes are none."""
        self.add_packed(array("Q", ids))

    def add_packed(self, ids: "bytes | array[int]") -> None:
        """The same of an array of u64."""
        self.note_strays(self.native.add(ids))

    def note_strays(self, ids: bytes) -> None:
        """Keep some of the ids (u64) that were to be marked and are of no record."""
        for one in memoryview(ids).cast("Q"):
            if len(self.strays) < STRAYS_MAX:
                self.strays.add(one)

    def include(self, other: "Marks") -> None:
        """Mark what is marked in another set, which has no other containers."""
        for number in other.native.numbers():
            self.native.merge(number, other.bits(number))
        self.strays |= other.strays

    def discard(self, ids: Iterable[int]) -> None:
        """Take marks back."""
        self.native.discard(array("Q", ids))

    def __bool__(self) -> bool:
        """Whether there is any container."""
        return bool(self.native.numbers())

    def add_container(self, number: int, marked: Iterable[int], count: int) -> None:
        """Know one container more, with ``count`` ordinals, some of them marked."""
        self.native.add_container(number, count)
        self.add(make_id(number, ordinal) for ordinal in marked)

    def __contains__(self, record_id: int) -> bool:
        return record_id in self.native

    def knows(self, record_id: int) -> bool:
        """Whether there is such a record, marked or not."""
        return self.native.knows(record_id)

    def bits(self, container: int) -> bytes:
        """The bits of a container, the lowest ordinal in the lowest bit."""
        return self.native.bits(container)

    def digest(self) -> bytes:
        """The same for the same marks."""
        bits = self.native.bits
        parts = [b"%d:%s" % (number, bits(number)) for number in self.native.numbers()]
        return native.fingerprint(b"".join(parts))

    def count(self) -> int:
        """How many are marked."""
        return self.native.count()


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

    def lengths(self, container: int) -> "array[int]":
        """How many bytes of each node of a container are needed."""
        return self._lengths[container]

    def put(self, container: int, lengths: bytes, fresh: bytes) -> None:
        """Put lengths (u64), and the bits of nodes that are fresh, in place of a container's."""
        own = self._lengths[container]
        assert len(lengths) == 8 * len(own)
        self._lengths[container] = array("Q", lengths)
        self._fresh[container] = bytearray(fresh)
        self.native.merge(container, native.more_than(lengths, b""))

    def digest(self) -> bytes:
        parts = [b"%d:%s" % (n, self._lengths[n].tobytes()) for n in sorted(self._lengths)]
        return native.fingerprint(super().digest() + b"".join(parts))

    def fresh(self, container: int) -> bytes:
        """The bits of those nodes of which more is needed than when they were taken."""
        return bytes(self._fresh[container])

    def take_fresh(self, container: int, first: int, count: int) -> list[int]:
        """Those of ``count`` nodes from the ordinal ``first`` on, a multiple of 8, that are fresh:
        they are no longer, until more of them is needed. Returns their ordinals, ascending."""
        fresh = self._fresh[container]
        place = slice(first // 8, -(-min(first + count, 8 * len(fresh)) // 8))
        found = [first + at for at in ordinals(fresh[place])]
        fresh[place] = bytes(len(fresh[place]))
        return found


def ordinals(bits: bytes | bytearray) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    for at, byte in enumerate(bits):
        if byte:
            for bit in range(8):
                if byte >> bit & 1:
                    yield at * 8 + bit
