"""Recipes and chunks of a store in a cluster, through the interfaces for reading stubs.

A stub names a file version by its digest. The caches of the mount identify chunks by number. So a
process numbers the chunks of the recipes that it opens, and releases the numbers after these are
closed. The numbers have no meaning outside the process.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedChunk, DamagedRecipe
from dedupd_core.format.cluster.objects import (
    decode_frame,
    stored_in,
)
from dedupd_core.format.container import Codec, Record, RecordKind
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.volume_parameters import FINGERPRINTS
from dedupd_core.rados.reading.disk_cache import DiskCache
from dedupd_core.rados.store import RadosStore

RECIPE_NUMBER = 1
"""The number in a stub that replaces the id of a recipe."""


IDLE_NUMBERS_MAX = 100_000
"""Numbers kept for chunks of closed files, so that the mount's cache still finds them."""


def reference(version: str) -> RecipeRef:
    """Return the reference of a stub to a file version."""
    return RecipeRef(RECIPE_NUMBER, bytes.fromhex(version))


def version_in(number: int, digest: bytes) -> str | None:
    """Return the version that a stub names; None if it names a record of a container."""
    return digest.hex() if number == RECIPE_NUMBER else None


class ClusterChunks:
    """Reads chunks by their numbers, from the host's disk or the cluster, each verified.

    ``numbers`` are those of the open recipes, and of some that were open recently. A number is
    never given to another chunk: caches outlive the recipes. Native code also assigns some, for the
    recipes that it opens.

    Safe to use from several threads. After the store was opened here, native code reads stubs
    (``content``) in trains.
    """

    def __init__(
        self,
        store: Callable[[], RadosStore],
        cache: DiskCache | None = None,
        algorithm: str = FINGERPRINTS[0],
    ) -> None:
        self._store, self._cache = store, cache
        self._keep = None if cache is None else cache.put
        self.numbers = native.rados.ChunkNumbers(IDLE_NUMBERS_MAX)
        self.content = native.rados.ClusterContent(
            self.numbers, None if cache is None else cache.native, algorithm
        )
        self._is_connected = False  # _lock
        self._lock = threading.Lock()

    def fingerprint(self, number: int) -> bytes:
        """Return the fingerprint of a chunk. Raises DamagedChunk if no open recipe has it."""
        found = self.numbers.fingerprint(number)
        if found is None:
            raise DamagedChunk(f"chunk {number:x}: no open recipe refers to it", number)
        return found

    def raw(self, fingerprint: bytes) -> bytes:
        """Return the raw bytes of a chunk. Raises Damaged, StoreUnreachable, UsageError."""
        kept = self._kept(fingerprint)
        if kept is not None:
            return kept
        store = self._store()
        _raise_failure(store, self.content.take_failure([fingerprint]))
        self.connect(store)
        return store.chunks.read(fingerprint, self._keep)

    def _kept(self, fingerprint: bytes) -> bytes | None:
        """Return a chunk from this host's disk: the store need not answer."""
        if self._cache is None:
            return None
        return self._cache.verified(fingerprint, lambda frame: decode_frame(frame, fingerprint))

    def read(self, record_id: int) -> tuple[Record, bytes]:
        """Like :meth:`dedupd_core.store.reader.RecordReader.read`. Raises DamagedChunk."""
        fingerprint = self.fingerprint(record_id)
        try:
            raw = self.raw(fingerprint)
        except Damaged as error:
            raise DamagedChunk(str(error), record_id) from error
        return _record(fingerprint, len(raw)), raw

    def read_alone(self, record_id: int) -> tuple[Record, bytes]:
        """Like :meth:`dedupd_core.store.reader.RecordReader.read_alone`, and the stored payload."""
        fingerprint = self.fingerprint(record_id)
        chunks = self._store().chunks
        try:
            frame = chunks.stored(fingerprint)
            chunks.decoded(fingerprint, frame)
        except Damaged as error:
            raise DamagedChunk(str(error), record_id) from error
        codec, length, payload = stored_in(frame)
        return replace(
            _record(fingerprint, length), codec=codec, stored_length=len(payload)
        ), payload

    def describe(self, record_id: int) -> Record:
        """Like :meth:`read`, without the bytes."""
        return self.read(record_id)[0]

    def connect(self, store: RadosStore) -> bool:
        """Have native code read by its own connection. Return whether it did not do so before."""
        with self._lock:
            if self._is_connected:
                return False
            if self._cache is not None:
                self._cache.begin()
            self.content.connect(store.reads.reader)
            self._is_connected = True
            return True

    def frame_chunks(
        self,
        wanted: Sequence[tuple[int, int, int]],
        sequence: int,
        stream_seed: int,
        ahead: native.store.BlocksAhead,
        threads: int,
    ) -> tuple[bytes, bytes, native.store.Unreadable | None]:
        """As :meth:`dedupd_core.store.reader.RecordReader.frame_chunks`."""
        self.connect(self._store())
        return native.store.frame_cluster_chunks(self.content, wanted, sequence, stream_seed)

    def close(self) -> None:
        """Stop reads of native code from the cluster."""
        self.content.connect(None)


class ClusterRecipes:
    """Finds out why native code cannot read a recipe that a stub names. Safe to use from several
    threads."""

    def __init__(self, store: Callable[[], RadosStore], chunks: ClusterChunks) -> None:
        self._store, self._chunks = store, chunks

    def require(self, ref: RecipeRef, where: str) -> None:
        """Connect the store, so that native code can read a recipe. Raises DamagedRecipe,
        StoreUnreachable."""
        version = version_in(ref.recipe, ref.digest)
        if version is None or ref.direct:
            raise DamagedRecipe(
                f"{where}: the stub refers to no file version of a store in a cluster"
            )
        store = self._store()
        # It is usually requested because of a chunk.
        _raise_failure(store, self._chunks.content.recent_failure)
        if not self._chunks.connect(store) and store.recipes.read(version) is None:
            raise DamagedRecipe(
                f"{where}: the store does not have file version {version}; the stub is older than"
                " the file in the store, probably because an old copy was restored"
            )

    def record(self, node_id: int) -> tuple[Record, bytes]:
        """Return None: recipes are no records."""
        raise DamagedRecipe(f"recipe {node_id:x}: not a record of a store in a cluster")


def _raise_failure(store: RadosStore, errno: int) -> None:
    """Raise StoreUnreachable after a timeout in native code: a user must not wait twice."""
    if errno:
        raise store.cluster.error("reading", OSError(errno, os.strerror(errno)))


def _record(fingerprint: bytes, length: int) -> Record:
    return Record(
        kind=RecordKind.DATA,
        codec=Codec.RAW,
        raw_length=length,
        stored_length=length,
        fingerprint=fingerprint,
        checksum=0,
    )
