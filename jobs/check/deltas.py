"""Chunks that lean on others: which these are, and whether they are there."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Codec, Kind
from dedupd_core.format.ids import container_of, make_id, ordinal_of, unpack_ids, unpack_ordinals
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.volume.hints import HintKey, Hints
from dedupd_core.volume.volume import Volume
from jobs.check.record_census import RecordCensus
from jobs.frame.run import JobRun, checked


class Delta(NamedTuple):
    """A chunk that leans on another, its base or a dictionary. ``base`` is the id of that one, or 0
    where nothing tells any more which one."""

    record_id: int
    base: int
    entry: tbl.TableEntry


def deltas(
    directory: ContainerDirectory, numbers: list[int], safe_point: Callable[[], None]
) -> Iterator[Delta]:
    """The chunks of some containers that lean on others, and are not collected, by the tables."""
    for number in numbers:
        safe_point()
        try:
            entries = directory.entries(number)
        except (Damaged, OSError):
            continue
        places, bases = native.upkeep.deltas(entries.data, entries.seed)
        rows = zip(unpack_ordinals(places), unpack_ids(bases), strict=True)
        for ordinal, base in checked(rows, safe_point):
            entry = entries[ordinal]
            if entry is not None:
                record_id = make_id(number, ordinal)
                yield Delta(record_id, base or _base_in_header(directory, record_id, entry), entry)


class RetainedBases:
    """The records that are needed for others alone which lean on them, as the last gc has noted."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self._bits: dict[int, bytes] = {}

    def __contains__(self, record_id: int) -> bool:
        number, ordinal = container_of(record_id), ordinal_of(record_id)
        bits = self._bits.get(number)
        if bits is None:
            bits = self._bits[number] = _bits(self._hints.get(_held_key(number)))
        return ordinal // 8 < len(bits) and bool(bits[ordinal // 8] >> ordinal % 8 & 1)


def note_retained(hints: Hints, bits: Mapping[int, bytes]) -> None:
    """Note which records of each container are held, in a bit for each ordinal."""
    for number, found in bits.items():
        key, value = _held_key(number), found.rstrip(b"\0").hex()
        if (hints.get(key) or "") != value:
            if value:
                hints.put(key, value)
            else:
                hints.delete([key])


def _held_key(number: int) -> str:
    return HintKey.HELD.of(f"{number:08d}")


def _bits(value: object) -> bytes:
    try:
        return bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        return b""


def _base_in_header(directory: ContainerDirectory, record_id: int, entry: tbl.TableEntry) -> int:
    try:
        return directory.base_of(record_id, entry)
    except (Damaged, OSError):
        return 0


def without_base(volume: Volume, run: JobRun, known: RecordCensus) -> Iterator[Delta]:
    """The chunks whose bytes cannot be had because those that they lean on are not there. The
    caller takes each out of ``known``: others may lean on it.

    Orphans are left out: the bases of these may be gone. Raises Cancelled.
    """
    with volume.containers(Kind.CHUNKS) as directory:
        for codec in (Codec.DICTIONARY, Codec.DELTA):
            for delta in deltas(directory, known.numbers(), run.safe_point):
                is_wanted = delta.entry.state in (tbl.State.LIVE, tbl.State.QUARANTINED)
                is_wanted &= delta.entry.codec == codec
                if is_wanted and not (delta.base and known.is_there(delta.base)):
                    yield delta


def needs_copy(directory: ContainerDirectory, known: RecordCensus, record_id: int) -> bool:
    """Whether what a chunk leans on, or what that one leans on, is there as a second copy alone:
    readers get its bytes by that."""
    entry = directory.entry(record_id)
    for _ in range(tbl.RANK_MAX):
        if entry is None or not entry.leans:
            return False
        base = known.end_of(_base_in_header(directory, record_id, entry))
        if not known.is_primary(base):
            return known.is_there(base)
        record_id, entry = base, directory.entry(base)
    return False


def count_dependants(volume: Volume, run: JobRun, known: RecordCensus) -> set[int]:
    """Count the references to chunks that lean on others for these as well. Returns the
    dictionaries among these. Raises Cancelled."""
    dictionaries: set[int] = set()
    with volume.containers(Kind.CHUNKS) as directory:
        for codec in (Codec.DELTA, Codec.DICTIONARY):
            for delta in deltas(directory, known.numbers(), run.safe_point):
                references = known.references(delta.record_id)
                if references and delta.base and delta.entry.codec == codec:
                    base = known.end_of(delta.base)
                    known.add_references(base, references)
                    if codec == Codec.DICTIONARY:
                        dictionaries.add(base)
    return dictionaries
