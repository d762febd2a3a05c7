"""How much of a store is garbage, by its redirection tables, and how much a compaction frees."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format import container as fmt
from dedupd_core.store.container.container import data_name, header_of
from dedupd_core.store.container.files import container_numbers
from dedupd_core.store.container.punching import allocated_bytes
from dedupd_core.store.container.table_file import load_packed_table
from dedupd_core.system.files import open_to_read, opened

GAIN_BYTES_MIN = 4096
"""A rewrite that frees less than a block frees nothing."""


@dataclass(frozen=True, slots=True)
class Weight:
    """The size of a container on the disk, without its table, now and after a compaction.

    ``table_bytes``: of its table, which a compaction writes anew.
    ``is_dead``: nothing in it is needed. ``quarantined``: entries that scrub must deal with first.
    ``orphaned``: records whose bytes are there and that nothing needs. Of the records that are
    needed: their raw bytes, and how many of these are not stored because of their compression, or
    because they were refined.
    """

    size_bytes: int
    needed_bytes: int
    is_dead: bool
    quarantined: int
    orphaned: int
    orphaned_bytes: int
    raw_bytes: int
    compressed_away_bytes: int
    refined_away_bytes: int
    table_bytes: int

    @property
    def room_bytes(self) -> int:
        """What a compaction takes until the old container is gone."""
        return self.needed_bytes + self.table_bytes

    @property
    def gain_bytes(self) -> int:
        return self.size_bytes - self.needed_bytes

    def is_worth_it(self, dead_min: float) -> bool:
        """Whether enough of the container is garbage; ``dead_min`` is the policy's fraction."""
        return self.gain_bytes >= max(GAIN_BYTES_MIN, dead_min * self.size_bytes)


def weigh(entries: bytes, seed: int, size_bytes: int) -> Weight:
    """The weight of a container; ``entries`` as they lie in its table."""
    of = native.store.weigh_table(entries, seed)
    needed = fmt.FILE_HEADER_BYTES + of.kept_bytes
    is_dead = of.kept == 0 and len(entries) > 0
    return Weight(
        *(size_bytes, needed, is_dead, of.quarantined, of.orphaned, of.orphaned_bytes),
        *(of.raw_bytes, of.compressed_away_bytes, of.refined_away_bytes),
        of.table_bytes,
    )


@dataclass(frozen=True, slots=True)
class Garbage:
    """The garbage of a volume, as of the last gc. Bytes are those of container files.

    Rewriting every container would free ``dead_bytes``; a compaction at the policy's threshold
    frees ``compaction_frees_bytes``.
    """

    orphaned_records: int = 0
    orphaned_bytes: int = 0
    dead_bytes: int = 0
    compaction_frees_bytes: int = 0
    quarantined_records: int = 0


def garbage_of(weights: Iterator[Weight], dead_min: float) -> Garbage:
    """The sum over containers."""
    orphaned = orphaned_bytes = dead_bytes = freed_bytes = quarantined = 0
    for weight in weights:
        orphaned += weight.orphaned
        orphaned_bytes += weight.orphaned_bytes
        quarantined += weight.quarantined
        dead_bytes += max(0, weight.gain_bytes)
        if weight.is_worth_it(dead_min) and not weight.quarantined:
            freed_bytes += weight.gain_bytes
    return Garbage(orphaned, orphaned_bytes, dead_bytes, freed_bytes, quarantined)


def weights(directory: str) -> Iterator[Weight]:
    """Every container that can be read, as it is at this moment; nothing is changed.

    Containers that cannot be read are left out: scrub reports them.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # a volume from before there were second copies
    with opened(fd):
        for number in container_numbers(fd):
            try:
                yield _weight(fd, number)
            except (Damaged, OSError):
                continue


def _weight(dir_fd: int, number: int) -> Weight:
    name = data_name(number)
    with opened(open_to_read(dir_fd, name)) as fd:
        header = header_of(fd, name.decode())
        size = allocated_bytes(os.fstat(fd))
        _, entries = load_packed_table(dir_fd, header)
    return weigh(entries, fmt.seed_of(header), size)
