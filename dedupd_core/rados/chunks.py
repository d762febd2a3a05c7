"""The chunks of a store: stored once, referenced by exact tags, repaired when they arrive again.

A chunk's object has its content, its flag and one key per file version that needs it. So one atomic
change does the work of GRATE's separate row and data (seed 004, 2.3). A chunk is valid as soon as
it exists. GRATE stores the row first, and changes its flag after the data (2.5): here that would be
a second replicated write per chunk, without a benefit.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged, StoreUnreachable
from dedupd_core.format.cluster.objects import (
    FLAG_KEY,
    TAG_PREFIX,
    ChunkState,
    chunk_object,
    decode_frame,
    garbage_object,
    garbage_shard,
    tag_key,
)
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import Cluster, required
from dedupd_core.rados.damage import DamageList

Keep = Callable[[bytes, bytes], None]
"""Gets the fingerprint of a chunk, and the frame that it was read from."""

ROUNDS_MAX = 20
"""The limit for conflicts of arrivals, retirements and collections of a chunk; more is an error."""

TAGS_MAX = 100_000
"""References per chunk: half of the number at which an OSD warns
(``osd_deep_scrub_large_omap_object_key_threshold``)."""

PIN_SAMPLE = 1024
"""For one in this number of references, the tags are counted: some microseconds for each."""


TRAINS = 2
"""Threads that store chunks: more could compress at a time, but fewer wait for each other."""


class StoreResult(Enum):
    """The result of an arrival of a chunk."""

    CREATED = "created"
    REFERENCED = "referenced"
    CHECKED = "checked"
    REPAIRED = "repaired"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk of a file. ``frame`` is called at most once per attempt to store it. ``is_expected``:
    it is probably in the store, so that its bytes need not be sent at first."""

    fingerprint: bytes
    frame: Callable[[], bytes]
    is_expected: bool = False


def _creation(chunk: NewChunk, tags: Mapping[str, str]) -> AtomicChange:
    return AtomicChange(
        points.CHUNK_CREATED,
        chunk_object(chunk.fingerprint),
        exclusive=True,
        data=chunk.frame(),
        # Not I, with a later change of the flag: data and flag are stored in one step here.
        put={FLAG_KEY: ChunkState.VALID.value, **tags},
    )


def _reference(chunk: NewChunk, tags: Mapping[str, str]) -> AtomicChange:
    valid = {FLAG_KEY: ChunkState.VALID.value}
    oid = chunk_object(chunk.fingerprint)
    return AtomicChange(points.CHUNK_REFERENCED, oid, equal=valid, put=tags)


class UnreferencedChunk(NamedTuple):
    """A chunk that had no reference at this version of its object."""

    fingerprint: bytes
    version: int
    state: str


class _Row(NamedTuple):
    """The state of a chunk: its flag, whether it has a tag, and the version of its object."""

    version: int
    state: str
    has_tags: bool

    @property
    def is_kept(self) -> bool:
        return self.has_tags or self.state in _PINNED


_PINNED = (ChunkState.PINNED.value, ChunkState.PINNED_DAMAGED.value)
_DAMAGED_STATES = {
    ChunkState.VALID.value: ChunkState.INVALID.value,
    ChunkState.PINNED.value: ChunkState.PINNED_DAMAGED.value,
}
_WHOLE = {damaged: whole for whole, damaged in _DAMAGED_STATES.items()}


class Chunks:
    """The chunks of one store: the operations that do not depend on a volume."""

    def __init__(self, cluster: Cluster, algorithm: str) -> None:
        self.cluster, self.algorithm = cluster, algorithm
        self.tags_max, self.pin_sample = TAGS_MAX, PIN_SAMPLE
        self._pinned: set[bytes] = set()
        """Fingerprints of chunks that were pinned at the last check."""

    # --- arrival ------------------------------------------------------------------------------

    def put(self, chunk: NewChunk, versions: Sequence[str]) -> StoreResult:
        """Store the chunk, referenced by these file versions, durably.

        Their recipes must be written and their intents set. May be repeated.
        """
        tags = {tag_key(version): "" for version in versions}
        steps = [self._refer, self._create] if chunk.is_expected else [self._create, self._refer]
        if chunk.fingerprint in self._pinned:
            steps = []  # it takes no tag, and is not new
        for _ in range(ROUNDS_MAX):
            for step in (*steps, self._check):
                arrival = step(chunk, tags)
                if arrival is not None:
                    return arrival
            steps = [self._refer, self._create]
        raise StoreUnreachable(
            f"{self.cluster.address}: chunk {chunk.fingerprint.hex()} keeps changing; run the job"
            " again"
        )

    def put_all(self, items: Sequence[tuple[NewChunk, Sequence[str]]]) -> list[StoreResult]:
        """Like :meth:`put` for each item, in order. The first steps are sent in trains."""
        cluster = self.cluster
        if cluster.operations_at_once == 1:
            return [self.put(*item) for item in items]
        arrivals: list[StoreResult | None] = [None] * len(items)
        taking = [at for at, (one, _) in enumerate(items) if one.fingerprint not in self._pinned]

        def run_train(first: int) -> None:
            mine = taking[first::TRAINS]
            outcomes = cluster.apply_train(self._first_change(*items[at]) for at in mine)
            for at, outcome in zip(mine, outcomes, strict=True):
                if outcome is Outcome.DONE:
                    arrivals[at] = self._first_arrival(*items[at])

        cluster.each(run_train, range(min(TRAINS, len(taking))))
        left = [at for at, arrival in enumerate(arrivals) if arrival is None]

        def put(at: int) -> StoreResult:
            chunk, versions = items[at]
            # The expectation was wrong.
            return self.put(replace(chunk, is_expected=not chunk.is_expected), versions)

        for at, arrival in zip(left, cluster.each(put, left), strict=True):
            arrivals[at] = arrival
        return [arrival for arrival in arrivals if arrival is not None]

    def _first_change(self, chunk: NewChunk, versions: Sequence[str]) -> AtomicChange:
        tags = {tag_key(version): "" for version in versions}
        return _reference(chunk, tags) if chunk.is_expected else _creation(chunk, tags)

    def _first_arrival(self, chunk: NewChunk, versions: Sequence[str]) -> StoreResult:
        if not chunk.is_expected:
            return StoreResult.CREATED
        self._referenced(chunk, [tag_key(version) for version in versions])
        return StoreResult.REFERENCED

    def _create(self, chunk: NewChunk, tags: Mapping[str, str]) -> StoreResult | None:
        outcome = self.cluster.apply(_creation(chunk, tags))
        return StoreResult.CREATED if outcome is Outcome.DONE else None

    def _refer(self, chunk: NewChunk, tags: Mapping[str, str]) -> StoreResult | None:
        if self.cluster.apply(_reference(chunk, tags)) is not Outcome.DONE:
            return None
        self._referenced(chunk, tags)
        return StoreResult.REFERENCED

    def _referenced(self, chunk: NewChunk, tags: Iterable[str]) -> None:
        if any(self._is_sample(chunk.fingerprint, tag) for tag in tags):
            self._pin_if_hot(chunk_object(chunk.fingerprint))

    def _check(self, chunk: NewChunk, tags: Mapping[str, str]) -> StoreResult | None:
        """Check the content of a chunk whose flag is not V, and store it again if it is damaged.

        The content, not its existence as in GRATE's check: hosts may compress differently, so the
        bytes are compared by their fingerprint.
        """
        oid = chunk_object(chunk.fingerprint)
        page = self.cluster.page(oid, FLAG_KEY, count=1)
        if page is None:
            return None
        state = page.items.get(FLAG_KEY)
        if state == ChunkState.PINNED.value:
            self._pinned.add(chunk.fingerprint)
            return StoreResult.PINNED
        self._pinned.discard(chunk.fingerprint)
        if state == ChunkState.VALID.value:
            return None
        is_good = self.is_good(chunk.fingerprint, self.cluster.read(oid))
        flag = ChunkState.PINNED if state == ChunkState.PINNED_DAMAGED.value else ChunkState.VALID
        outcome = self.cluster.apply(
            AtomicChange(
                points.CHUNK_CHECKED if is_good else points.CHUNK_REPAIRED,
                oid,
                equal={FLAG_KEY: state},
                data=None if is_good else chunk.frame(),
                put={FLAG_KEY: flag.value, **tags},
            )
        )
        if outcome is not Outcome.DONE:
            return None
        return StoreResult.CHECKED if is_good else StoreResult.REPAIRED

    def is_held(self, fingerprint: bytes) -> bool:
        """Return whether a chunk exists, is not known to be damaged, and is referenced. Then it
        stays at least for the grace period."""
        row = self._row(chunk_object(fingerprint))
        return row is not None and row.is_kept and row.state in _DAMAGED_STATES

    def is_good(self, fingerprint: bytes, data: bytes | None) -> bool:
        """Return whether the content of a chunk's object matches the chunk."""
        try:
            self.decoded(fingerprint, required(data, chunk_object(fingerprint)))
        except Damaged:
            return False
        return True

    # --- very many references -----------------------------------------------------------------

    def _is_sample(self, fingerprint: bytes, tag: str) -> bool:
        return native.hashing.xxh3_64(fingerprint + tag.encode()) % self.pin_sample == 0

    def _pin_if_hot(self, oid: str) -> None:
        tags = sum(1 for _ in self.cluster.each_key(oid, TAG_PREFIX))
        if tags > self.tags_max:
            self.cluster.apply(
                AtomicChange(
                    points.CHUNK_PINNED,
                    oid,
                    equal={FLAG_KEY: ChunkState.VALID.value},
                    put={FLAG_KEY: ChunkState.PINNED.value},
                )
            )

    # --- reading ------------------------------------------------------------------------------

    def stored(self, fingerprint: bytes) -> bytes:
        """Return the frame of a chunk. Raises Damaged if it is missing."""
        oid = chunk_object(fingerprint)
        return required(self.cluster.read(oid), oid)

    def read(self, fingerprint: bytes, keep: Keep | None = None) -> bytes:
        """Return the verified raw bytes of a chunk; pass good frames to ``keep``.

        Raises Damaged, after marking the chunk as damaged.
        """
        frame = self.stored(fingerprint)
        try:
            raw = self.decoded(fingerprint, frame)
        except Damaged:
            self.mark_damaged(fingerprint)
            raise
        if keep is not None:
            keep(fingerprint, frame)
        return raw

    def decoded(self, fingerprint: bytes, data: bytes) -> bytes:
        """Return the raw bytes of a frame, verified by their fingerprint. Raises Damaged."""
        raw = decode_frame(data, fingerprint)
        if native.hashing.fingerprint(raw, self.algorithm) != fingerprint:
            raise Damaged(f"{chunk_object(fingerprint)}: its bytes have a different fingerprint")
        return raw

    def mark_damaged(self, fingerprint: bytes) -> None:
        """Mark a chunk as damaged: its next arrival stores it again before it is trusted."""
        oid = chunk_object(fingerprint)
        for _ in range(ROUNDS_MAX):
            state = self.cluster.value(oid, FLAG_KEY)
            damaged = _DAMAGED_STATES.get(state or "")
            if damaged is None:
                return
            DamageList(self.cluster).add(fingerprint)
            change = AtomicChange(
                points.CHUNK_MARKED, oid, equal={FLAG_KEY: state}, put={FLAG_KEY: damaged}
            )
            if self.cluster.apply(change) is not Outcome.REFUSED:
                return

    def mend(self, fingerprint: bytes, find: Callable[[], bytes | None]) -> bool:
        """Repair a chunk that was marked as damaged; return False if it stays damaged.

        ``find`` returns its frame. It is only called if the content is really damaged.
        """
        oid = chunk_object(fingerprint)
        for _ in range(ROUNDS_MAX):
            state = self.cluster.value(oid, FLAG_KEY)
            if state not in _WHOLE:
                return state is not None or self.cluster.page(oid, count=1) is None
            data = None
            if not self.is_good(fingerprint, self.cluster.read(oid)):
                data = find()
                if data is None or not self.is_good(fingerprint, data):
                    return False
            change = AtomicChange(
                points.CHUNK_MENDED,
                oid,
                equal={FLAG_KEY: state},
                data=data,
                put={FLAG_KEY: _WHOLE[state]},
            )
            if self.cluster.apply(change) is Outcome.DONE:
                return True
        return False

    # --- retirement and collection ------------------------------------------------------------

    def _row(self, oid: str) -> _Row | None:
        # The flag's key sorts before all tags, so two keys are enough.
        page = self.cluster.page(oid, count=2)
        if page is None:
            return None
        has_tags = any(key.startswith(TAG_PREFIX) for key in page.items)
        return _Row(page.version, page.items.get(FLAG_KEY, ""), has_tags)

    def drop_references(
        self, fingerprint: bytes, versions: Iterable[str]
    ) -> UnreferencedChunk | None:
        """Drop references of a chunk. Return it if it has none left, for :meth:`condemn`."""
        drop = tuple(tag_key(version) for version in versions)
        oid = chunk_object(fingerprint)
        if drop:
            change = AtomicChange(points.REFERENCE_DROPPED, oid, drop=drop)
            if self.cluster.apply(change) is Outcome.MISSING:
                return None
        row = self._row(oid)
        if row is None or row.is_kept:
            return None
        return UnreferencedChunk(fingerprint, row.version, row.state)

    def condemn(self, chunks: Sequence[UnreferencedChunk]) -> None:
        """Make chunks candidates, except those that get a reference in between.

        The candidate is added before the flag: a chunk with neither tag nor candidate would stay
        forever.
        """
        shards: dict[int, list[bytes]] = {}
        for one in chunks:
            shards.setdefault(garbage_shard(one.fingerprint), []).append(one.fingerprint)
        self.cluster.each(self._add_candidates, shards.items())
        self.cluster.each(self._invalidate, chunks)

    def _add_candidates(self, item: tuple[int, list[bytes]]) -> None:
        shard, fingerprints = item
        # The value is always different, so a collection drops only the candidate that it read.
        value = f"{time.time_ns():020d}.{uuid.uuid4().hex[:8]}"
        put = {fingerprint.hex(): value for fingerprint in fingerprints}
        self.cluster.apply(AtomicChange(points.CANDIDATE_ADDED, garbage_object(shard), put=put))

    def _invalidate(self, chunk: UnreferencedChunk) -> None:
        """Set the flag to INVALID. If the chunk has changed since the check, do nothing: an arrival
        or a later retirement is responsible for it."""
        if chunk.state != ChunkState.VALID.value:
            return  # its next arrival checks it anyway
        change = AtomicChange(
            points.CHUNK_INVALIDATED,
            chunk_object(chunk.fingerprint),
            version=chunk.version,
            put={FLAG_KEY: ChunkState.INVALID.value},
        )
        self.cluster.apply(change)

    def remove_unreferenced(self, fingerprint: bytes) -> bool | None:
        """Remove a candidate's chunk if it has no reference; return whether it was removed.

        None: it changed, and is checked again another time. The flag is ignored: a retirement may
        have added its candidate but not yet its flag, and the chunk would stay forever.
        """
        oid = chunk_object(fingerprint)
        row = self._row(oid)
        if row is None or row.is_kept:
            return False
        change = AtomicChange(points.CHUNK_REMOVED, oid, version=row.version, remove=True)
        outcome = self.cluster.apply(change)
        return None if outcome is Outcome.STALE else outcome is Outcome.DONE
