"""The numbers that containers have had, in the catalogue.

A container tells that its number was given out, and so does its table. Where both are lost, its ids
would come to name other records: second copies of the lost ones could not be found any more, and
there would be no place for repaired ones. Without this hint, ids are told apart by the parts of
fingerprints that recipes keep.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from dedupd_core.format.container import Kind
from dedupd_core.format.domain import FIRST, PartitionKey
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume

NUMBER_BELIEVED_MAX = 1 << 31
"""Half of the numbers that an id has room for. A higher one is taken for damage: LMDB keeps no
checksums, and tables short ones."""


class ContainerNumbers:
    """The highest number that each kind of container has had, as far as it is known."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._known = self._load()

    def last(self, kind: Kind) -> int:
        """0 where none is known."""
        return self._known.get(kind, 0)

    def writer(self, kind: Kind, partition: PartitionKey = FIRST) -> ContainerWriter:
        """A writer whose new containers get numbers that none has had, and which leaves users the
        reserve."""
        return ContainerWriter(
            self._volume.containers(kind),
            partition=partition,
            given_number=self.last(kind),
        )

    @contextmanager
    def recovered(self, kind: Kind) -> Iterator[ContainerWriter]:
        """Such a writer, once it has put every container in order; closed at the end. Raises
        NoSpace."""
        with closing(self.writer(kind)) as writer:
            writer.recover(lambda _: None)
            yield writer

    def note(self, given: Mapping[Kind, int]) -> None:
        """Keep these numbers where they are higher than the known ones."""
        if all(self._with(given, kind) == self.last(kind) for kind in Kind):
            return
        with self._volume.store.neighbours.turn():
            for kind, number in self._load().items():
                self._known[kind] = max(self.last(kind), number)  # of neighbours
            self._known = {kind: self._with(given, kind) for kind in Kind}
            value = {kind.name.lower(): number for kind, number in self._known.items()}
            self._volume.store_hints.put(HintKey.CONTAINER_NUMBERS, value)

    def _with(self, given: Mapping[Kind, int], kind: Kind) -> int:
        number = given.get(kind, 0)
        return max(self.last(kind), number if number <= NUMBER_BELIEVED_MAX else 0)

    def _load(self) -> dict[Kind, int]:
        value = self._volume.store_hints.get(HintKey.CONTAINER_NUMBERS)
        if not isinstance(value, dict):
            return {}
        found = {kind: value.get(kind.name.lower()) for kind in Kind}
        return {
            kind: number
            for kind, number in found.items()
            if type(number) is int and 0 < number <= NUMBER_BELIEVED_MAX
        }
