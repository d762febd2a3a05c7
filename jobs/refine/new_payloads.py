"""The records of one container for its next generation, some with new payloads."""

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format.derived.sketch import SKETCH_BYTES
from dedupd_core.format.ids import make_id, pack_ids, unpack_ids, unpack_ordinals
from dedupd_core.store.container.compaction import Kept
from dedupd_core.units import MIB

BATCH_BYTES = 8 * MIB
"""Bytes of payloads per native call."""

_NONE = bytes(SKETCH_BYTES)


@dataclass(slots=True)
class Savings:
    """The savings of new payloads, and their number per codec."""

    records: Counter[int] = field(default_factory=Counter)
    saved_bytes: int = 0
    credit_bytes: int = 0
    """Bytes of bases that records have left, and that no record needs now."""
    left: int = 0
    """Number of records that have left their bases."""


class NewPayloads:
    """Assigns other payloads to records, in batches. ``savings`` is complete at the end."""

    def __init__(
        self,
        number: int,
        sketches: bytes,
        refiner: native.upkeep.Refiner,
        safe_point: Callable[[], None],
        done: int,
        parts: Mapping[int, int],
        domain: int,
    ) -> None:
        """``done``: number of records that a run of the same mode has processed. They keep their
        payloads, except those that may leave their bases: ``parts`` has the bytes freed elsewhere.
        ``domain``: number of the container's domain."""
        self._number = number
        self._sketches = sketches
        self._refiner = refiner
        self._safe_point = safe_point
        self._done = done
        self._parts = parts
        self._domain = domain
        self.savings = Savings()

    def given(self, kept: Kept) -> Kept:
        """Yield the records, in order, each with its new or old payload."""
        batch: list[fmt.Record] = []
        payloads = bytearray()
        for record, payload in kept:
            batch.append(record)
            payloads += payload
            if len(payloads) >= BATCH_BYTES:
                yield from self._refined(batch, payloads)
                batch, payloads = [], bytearray()
        yield from self._refined(batch, payloads)

    def _refined(self, batch: list[fmt.Record], payloads: bytearray) -> Kept:
        self._safe_point()
        found = self._refiner.refine(
            ids=pack_ids(make_id(self._number, record.ordinal) for record in batch),
            codecs=bytes(record.codec if self._may_change(record) else 0xFF for record in batch),
            settled=bytes(self._is_settled(record) for record in batch),
            targets=pack_ids(record.base for record in batch),
            raw_lengths=array("I", (record.raw_length for record in batch)),
            checksums=array("Q", (record.checksum for record in batch)),
            fingerprints=b"".join(record.fingerprint for record in batch),
            lengths=array("I", (record.stored_length for record in batch)),
            payloads=payloads,
            sketches=b"".join(self._sketch(record.ordinal) for record in batch),
            domain=self._domain,
        )
        places, others = unpack_ordinals(found.places), unpack_ids(found.leans_on)
        lengths, sums = memoryview(found.lengths).cast("I"), memoryview(found.checksums).cast("Q")
        new, old = memoryview(found.payloads), memoryview(payloads)
        next_new = at_new = at_old = 0
        for place, record in enumerate(batch):
            payload = old[at_old : at_old + record.stored_length]
            at_old += record.stored_length
            if next_new == len(places) or places[next_new] != place:
                yield record, payload
                continue
            length = lengths[next_new]
            codec = fmt.Codec(found.codecs[next_new])
            self.savings.records[codec] += 1
            self.savings.saved_bytes += fmt.record_size(record.stored_length)
            self.savings.saved_bytes -= fmt.record_size(length)
            record_id = make_id(self._number, record.ordinal)
            if record_id in self._parts and others[next_new] != record.base:
                self.savings.credit_bytes += self._parts[record_id]
                self.savings.left += 1
            changed = replace(
                record,
                codec=codec,
                stored_length=length,
                target=others[next_new],
                checksum=sums[next_new],
            )
            yield changed, new[at_new : at_new + length]
            at_new += length
            next_new += 1

    def _sketch(self, ordinal: int) -> bytes:
        start = ordinal * SKETCH_BYTES
        return self._sketches[start : start + SKETCH_BYTES] or _NONE

    def _may_change(self, record: fmt.Record) -> bool:
        """Return whether it is a chunk whose header has room for its base. A repaired chunk names
        the record that it repeats there."""
        return record.kind == fmt.RecordKind.DATA

    def _is_settled(self, record: fmt.Record) -> bool:
        is_free = make_id(self._number, record.ordinal) in self._parts
        return record.ordinal < self._done and not is_free
