"""The dictionaries of a store: selects them, and trains new ones.

A dictionary is a separate record among the chunks, found by its id like any other. It gets a second
copy immediately, is never changed, and exists as long as a record depends on it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dedupd_core import native
from dedupd_core.config.memory_budget import refine_similar_bytes
from dedupd_core.failpoint import define, reach
from dedupd_core.format.container import Kind, RecordKind, seed_of
from dedupd_core.format.table import State
from dedupd_core.store.container.table_scan import TableScan
from dedupd_core.store.encoded_records import encoded_alone
from dedupd_core.store.second_copies import append_copies
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.container_numbers import ContainerNumbers
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun

_DURABLE = define("refine.dictionaries-durable", "new dictionaries are durable, not their copies")
_COPIED = define("refine.dictionaries-copied", "new dictionaries are durable, and so are copies")
_NOTED = define("refine.dictionaries-noted", "new dictionaries are selected")

COUNT_MAX = 8
"""Maximum number of dictionaries per training: about one per type with common content."""

BYTES_MAX = 112 * KIB
"""Maximum size of a dictionary: the default of zstd."""

STORED_BYTES_MIN = 32 * KIB
"""A smaller store is not worth a container of dictionaries."""

SAMPLES_SHARE = 0.25
"""Raw bytes of samples per byte of the store, as far as memory allows."""

SAMPLES_BYTES_MIN = 4 * MIB

GAIN_SHARE = 0.5
"""Share of a container's necessary saving that dictionaries must provide, or they are not stored. A
higher level may provide the rest."""

TRAIN_AGAIN = 4
"""Train new dictionaries when this multiple of the last trained bytes was added."""


@dataclass(frozen=True, slots=True)
class DictionaryChoice:
    """Ids of the dictionaries to use, and of the new ones among them."""

    ids: list[int]
    made: list[int]


class Dictionaries:
    """The dictionaries of a volume. Needs its job lock."""

    def __init__(self, volume: Volume, run: JobRun, tables: TableScan, threads: int) -> None:
        """``tables`` have recovered."""
        policy = volume.policy()
        # Samples are freed before the search starts, but exist twice while they are used.
        self._samples_bytes_max = refine_similar_bytes(policy.memory_bytes) // 2
        self._volume = volume
        self._run = run
        self._tables = tables
        self._directory = tables.directory
        self._threads = threads
        self.in_use: set[int] = set()
        """Dictionaries that records depend on; the caller fills it."""
        self._wanted: list[int] = []

    def holders(self) -> set[int]:
        """Return the records with dictionaries, and the records that these were merged into."""
        found: set[int] = set()
        for record_id in {*self.in_use, *self._wanted}:
            at = record_id
            while at and at not in found:
                found.add(at)
                entry = self._directory.entry(at)
                is_merged = entry is not None and entry.state == State.MERGED
                at = entry.target if entry is not None and is_merged else 0
        return found

    def choose(self, sizes: Mapping[int, int], level: int, gain_min: float) -> DictionaryChoice:
        """Return the dictionaries for containers (with their sizes in bytes). If necessary, train
        new ones from these containers. ``gain_min``: the share of a container that must be saved to
        rewrite it. Raises Cancelled, NoSpace."""
        stored_bytes = sum(sizes.values())
        gain_bytes_min = GAIN_SHARE * gain_min * min(sizes.values(), default=0)
        bases = self._directory.bases.native
        trained_bytes, since, known = self._known()
        ids = [record_id for record_id in known if bases.is_live(record_id)]
        since += stored_bytes
        made: list[int] = []
        if len(ids) < len(known) or since >= TRAIN_AGAIN * trained_bytes:
            raws = [raw for raw in map(bases.raw, ids) if raw is not None]
            trained = self._trained(sizes, level, gain_bytes_min, raws)
            made = self._kept(trained) if trained else []
            trained_bytes, since = stored_bytes, 0
        ids = [*made, *ids][:COUNT_MAX]
        self._volume.hints.put(HintKey.DICTIONARIES, [trained_bytes, since, *ids])
        reach(_NOTED)
        self._wanted = ids
        return DictionaryChoice(ids, made)

    def _known(self) -> tuple[int, int, list[int]]:
        """Read the hint: the bytes of store that the dictionaries were trained for, the bytes that
        were processed since then, and their ids."""
        value = self._volume.hints.get(HintKey.DICTIONARIES)
        if isinstance(value, list) and len(value) >= 2 and all(type(n) is int for n in value):
            return value[0], value[1], value[2:]
        sizes = (self._directory.stat(number).st_size for number in self._tables.shapes)
        in_use = sorted(self.in_use)[-COUNT_MAX:]
        return sum(sizes) if in_use else 0, 0, in_use

    def _trained(
        self, sizes: Mapping[int, int], level: int, gain_bytes_min: float, known: list[bytes]
    ) -> list[bytes]:
        """Train new dictionaries that save sufficiently more than the ``known`` ones."""
        stored_bytes = sum(sizes.values())
        if stored_bytes < STORED_BYTES_MIN:
            return []
        self._run.update(phase="training dictionaries", done=0, total=0)
        wanted_bytes = max(SAMPLES_BYTES_MIN, stored_bytes * SAMPLES_SHARE)
        share = min(self._samples_bytes_max, wanted_bytes) / stored_bytes
        samples = native.upkeep.Samples()
        for number in sizes:
            self._sample(samples, number, share)
        return samples.train(
            known=known,
            gain_bytes_min=gain_bytes_min,
            count=COUNT_MAX,
            bytes_max=BYTES_MAX,
            level=level,
            threads=self._threads,
        )

    def _sample(self, samples: native.upkeep.Samples, number: int, share: float) -> None:
        with opened(self._directory.open_data(number)) as fd:
            bytes_max = os.fstat(fd).st_size * share
            count = self._tables.shapes[number].count
            for block in self._tables.blocks([self._tables.whole(number)]):
                samples.add(
                    fd,
                    block.entries,
                    self._directory.bases.native,
                    seed=seed_of(block.header),
                    first=block.first,
                    bytes_max=int(bytes_max * (block.end - block.first) / count),
                )

    def _kept(self, trained: list[bytes]) -> list[int]:
        """Store dictionaries as records, each with a second copy. Returns none if the copies do not
        fit. Raises NoSpace."""
        algorithm, numbers = self._volume.parameters.fingerprint, ContainerNumbers(self._volume)
        records = [
            encoded_alone(raw, native.hashing.fingerprint(raw, algorithm)) for raw in trained
        ]
        # In a separate container: the last container would become young again.
        with numbers.recovered(Kind.CHUNKS) as writer:
            writer.begin_container()
            first = writer.reserve(len(records), sum(map(len, trained)))
            writer.append_copies(first, records, RecordKind.DATA)
            writer.sync()
            last = {Kind.CHUNKS: writer.last_number}
        reach(_DURABLE)
        copies = [
            (replace(record, target=first + at), payload)
            for at, (record, payload) in enumerate(records)
        ]
        with numbers.recovered(Kind.CHUNK_COPIES) as writer:
            written = append_copies(writer, copies)
            numbers.note({**last, Kind.CHUNK_COPIES: writer.last_number})
        reach(_COPIED)
        return list(range(first, first + len(records))) if written else []
