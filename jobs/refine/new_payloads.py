"""The records of one container on their way into its next generation, some with new payloads."""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dedupd import native
from dedupd.format import container as fmt
from dedupd.format.derived.sketch import SKETCH_BYTES
from dedupd.format.ids import make_id
from dedupd.store.container.compaction import Kept
from dedupd.units import MIB

BATCH_BYTES = 8 * MIB
"""Of payloads that are tried in one native call."""

_NONE = bytes(SKETCH_BYTES)


@dataclass(slots=True)
class Savings:
    """What new payloads have saved, and how many there are of each codec."""

    records: Counter[int] = field(default_factory=Counter)
    saved_bytes: int = 0


class NewPayloads:
    """Gives records other payloads, in batches. ``savings`` is complete at the end."""

    def __init__(
        self,
        number: int,
        sketches: bytes,
        refiner: native.upkeep.Refiner,
        safe_point: Callable[[], None],
        done: int,
    ) -> None:
        """``done``: how many records a run of the same mode has looked at. Those of them that are
        the difference to others stay as they are."""
        self._number = number
        self._sketches = sketches
        self._refiner = refiner
        self._safe_point = safe_point
        self._done = done
        self.savings = Savings()

    def given(self, kept: Kept) -> Kept:
        """The records, in order, each with the payload that it is to have from now on."""
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
            ids=array("Q", (make_id(self._number, record.ordinal) for record in batch)),
            codecs=bytes(record.codec if self._may_change(record) else 0xFF for record in batch),
            targets=array("Q", (record.base for record in batch)),
            raw_lengths=array("I", (record.raw_length for record in batch)),
            checksums=array("Q", (record.checksum for record in batch)),
            fingerprints=b"".join(record.fingerprint for record in batch),
            lengths=array("I", (record.stored_length for record in batch)),
            payloads=payloads,
            sketches=b"".join(self._sketch(record.ordinal) for record in batch),
        )
        places, others = memoryview(found.places).cast("I"), memoryview(found.leans_on).cast("Q")
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
        """Whether it is a chunk whose header has room for what it leans on: one that was repaired
        names the record that it repeats."""
        is_done = record.codec == fmt.Codec.DELTA and record.ordinal < self._done
        return record.kind == fmt.RecordKind.DATA and not is_done
