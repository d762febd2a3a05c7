"""An audit of an entire store: finds missing objects that files need, and unreferenced objects.

It reads every object's keys while hosts write, so each finding is checked again before it counts.
It keeps the names of all chunks in memory, some 200 bytes each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dedupd_core.errors import DamagedRecipe, NotAVolume
from dedupd_core.format.cluster.objects import (
    FLAG_KEY,
    TAG_PREFIX,
    ChunkState,
    FileId,
    chunk_object,
    garbage_object,
    garbage_shard,
    intents_object,
    lease_object,
    recipe_object,
    tag_key,
)
from dedupd_core.rados.garbage import Retirement
from dedupd_core.rados.lease import lost_objects
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.tables import FileTable, Intents

_PINNED = (ChunkState.PINNED.value, ChunkState.PINNED_DAMAGED.value)
_DAMAGED = (ChunkState.INVALID.value, ChunkState.PINNED_DAMAGED.value)
"""States of a chunk that is damaged."""

_CHUNKS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class _Chunk:
    state: str
    versions: frozenset[str]


@dataclass
class AuditReport:
    """``dangling`` needs an administrator, or the chunk's next writer; :meth:`repair` deletes
    ``leaked``."""

    chunks: int = 0
    recipes: int = 0
    files: int = 0
    references: int = 0
    candidates: int = 0
    pinned: int = 0
    dangling: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    repaired: int = 0


class Audit:
    """One audit of a store. ``reads_chunks``: also read the content of each chunk.

    ``safe_point`` is called often. If the cluster has lost tables of a volume, nothing of it counts
    as leaked: its stubs still name their versions, which readers use.
    """

    def __init__(
        self,
        store: RadosStore,
        *,
        reads_chunks: bool = False,
        safe_point: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self.reads_chunks, self.safe_point = store, reads_chunks, safe_point
        self.cluster = store.cluster
        self.report = AuditReport()
        self._chunks: dict[bytes, _Chunk] = {}
        self._recipes: set[str] = set()
        self._live: dict[str, tuple[FileTable, FileId]] = {}
        self._known: set[str] = set()
        self._unclear: set[str] = set()
        self._leaked_tags: list[tuple[bytes, str]] = []
        self._leaked_versions: list[str] = []
        self._leaked_chunks: list[bytes] = []

    def run(self) -> AuditReport:
        """Run the audit. References are read before the files that may own them, so a reference
        that is made during the audit is recognized by its older intent."""
        self._read_objects()
        self._read_files()
        for version, (table, file) in self._live.items():
            self.safe_point()
            self._check_version(version, table, file)
        for fingerprint, chunk in self._chunks.items():
            self.safe_point()
            self._check_chunk(fingerprint, chunk)
        for version in sorted(self._recipes - self._known):
            self.safe_point()
            if not self._is_known(version):
                self._leaked_versions.append(version)
                self.report.leaked.append(f"recipe m.{version}: no file uses it")
        return self.report

    def repair(self) -> None:
        """Delete what the last :meth:`run` has found to be leaked. May be repeated."""
        chunks = self.store.chunks
        Retirement(self.store.recipes, chunks).retire(self._leaked_versions)
        for fingerprint, version in self._leaked_tags:
            self.safe_point()
            left = chunks.drop_references(fingerprint, [version])
            chunks.condemn([left] if left is not None else [])
        for fingerprint in self._leaked_chunks:
            left = chunks.drop_references(fingerprint, ())
            chunks.condemn([left] if left is not None else [])
        self.report.repaired = len(self.report.leaked)

    # --- what is there ------------------------------------------------------------------------

    def _read_objects(self) -> None:
        fingerprints = []
        for name in self.cluster.names():
            kind, _, rest = name.partition(".")
            if kind == "c":
                fingerprints.append(bytes.fromhex(rest))
            elif kind == "m":
                self._recipes.add(rest.partition(".")[0])
        for first in range(0, len(fingerprints), _CHUNKS_AT_ONCE):
            self.safe_point()
            some = fingerprints[first : first + _CHUNKS_AT_ONCE]
            found = zip(some, self.cluster.each(self._read_chunk, some), strict=True)
            self._chunks |= {own: chunk for own, chunk in found if chunk is not None}
        self.report.chunks, self.report.recipes = len(self._chunks), len(self._recipes)

    def _read_chunk(self, fingerprint: bytes) -> _Chunk | None:
        keys = dict(self.cluster.each_key(chunk_object(fingerprint)))
        if not keys and self.cluster.page(chunk_object(fingerprint), count=1) is None:
            return None
        versions = frozenset(k.removeprefix(TAG_PREFIX) for k in keys if k.startswith(TAG_PREFIX))
        state = keys.get(FLAG_KEY, "")
        if self.reads_chunks and state not in _DAMAGED:
            data = self.cluster.read(chunk_object(fingerprint))
            if data is not None and not self.store.chunks.is_good(fingerprint, data):
                self.store.chunks.mark_damaged(fingerprint)
                state = ChunkState.INVALID.value
        return _Chunk(state, versions)

    def _read_files(self) -> None:
        for volume, entry in self.store.volumes().items():
            # In the order intent, file, end: a version that moves on is found at least once.
            self._known |= Intents(self.cluster, volume).all().keys()
            table = FileTable(self.cluster, volume, entry.shards)
            for oid in lost_objects(self.cluster, volume, entry.shards):
                self._leave_alone(volume, f"the cluster has lost {oid}")
            for file, versions in table.files():
                self.report.files += 1
                self._live |= dict.fromkeys(versions.live, (table, file))
            self._known |= {version for version, _ in table.retiring()}
        self._known |= self._live.keys()

    def _leave_alone(self, volume: str, why: str) -> None:
        """Count nothing of this volume as leaked."""
        self._unclear.add(volume)
        self.report.damaged.append(
            f"volume {volume}: {why}; none of its objects is deleted. Its files are readable: copy"
            " them from its mount"
        )

    # --- what is missing ----------------------------------------------------------------------

    def _check_version(self, version: str, table: FileTable, file: FileId) -> None:
        for finding, is_damage in self._findings(version):
            # The file may have been replaced since then.
            now = table.versions(file)
            if now is not None and version in now.live:
                to = self.report.damaged if is_damage else self.report.dangling
                to.append(f"volume {table.volume} file {file.text}: {finding}")

    def _findings(self, version: str) -> Iterator[tuple[str, bool]]:
        try:
            recipe = self.store.recipes.read(version)
        except DamagedRecipe as error:
            yield str(error), True
            return
        if recipe is None:
            yield f"its recipe {recipe_object(version)} is missing", False
            return
        for fingerprint in recipe.fingerprints:
            self.report.references += 1
            chunk = self._chunks.get(fingerprint)
            if chunk is None or not self._is_held(chunk, version):
                chunk = self._read_chunk(fingerprint)  # it may be new
            if chunk is None:
                yield f"chunk {fingerprint.hex()} is missing", False
            elif not self._is_held(chunk, version):
                yield f"chunk {fingerprint.hex()} is referenced, but marked for collection", False
            elif chunk.state in _DAMAGED:
                yield f"chunk {fingerprint.hex()} is damaged", True

    @staticmethod
    def _is_held(chunk: _Chunk, version: str) -> bool:
        return version in chunk.versions or chunk.state in _PINNED

    # --- what is left over --------------------------------------------------------------------

    def _check_chunk(self, fingerprint: bytes, chunk: _Chunk) -> None:
        oid = chunk_object(fingerprint)
        for version in sorted(chunk.versions - self._known):
            if (
                not self._is_known(version)
                and self.cluster.value(oid, tag_key(version)) is not None
            ):
                self._leaked_tags.append((fingerprint, version))
                self.report.leaked.append(f"chunk {oid}: no file has version {version}")
        if chunk.state in _PINNED:
            self.report.pinned += 1
        elif not chunk.versions:
            shard = garbage_object(garbage_shard(fingerprint))
            if self.cluster.value(shard, fingerprint.hex()) is not None:
                self.report.candidates += 1
            elif self.store.chunks.drop_references(fingerprint, ()) is not None:
                self._leaked_chunks.append(fingerprint)
                self.report.leaked.append(f"chunk {oid}: is unreferenced")

    def _is_known(self, version: str) -> bool:
        """Return whether a version belongs to a file now. Its recipe, older than its references,
        names the file; without a recipe it belongs to none."""
        try:
            recipe = self.store.recipes.read(version)
        except DamagedRecipe:
            return True  # an administrator must decide
        if recipe is None:
            return bool(self._unclear) or any(
                version in Intents(self.cluster, volume).all() for volume in self.store.volumes()
            )
        if recipe.volume in self._unclear:
            return True
        try:
            table = self.store.table(recipe.volume)
        except NotAVolume:
            return self._has_remains(recipe.volume)
        intents = Intents(self.cluster, recipe.volume).all()
        found = table.versions(recipe.file)
        return (
            version in intents
            or (found is not None and version in found.live)
            or version in {old for old, _ in table.retiring()}
        )

    def _has_remains(self, volume: str) -> bool:
        """Return whether an unlisted volume has objects; a volume that has left has none."""
        objects = lease_object(volume), intents_object(volume)
        if all(self.cluster.page(oid, count=1) is None for oid in objects):
            return False
        self._leave_alone(volume, "it is no longer in the list of volumes")
        return True
