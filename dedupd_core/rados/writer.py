"""Writes one volume's files to the store, in the volume's only writing session.

This order must be kept: intent, recipe, references, commit, stub, end of the commit; unlink before
unreference. After an interruption, something may be left over, but nothing is missing.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from dedupd_core.errors import Busy
from dedupd_core.format.cluster.objects import (
    ChunkEntry,
    FileId,
    FileRecipe,
    FileVersions,
)
from dedupd_core.rados.chunks import Chunks, NewChunk, StoreResult
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.garbage import Retirement
from dedupd_core.rados.lease import Lease
from dedupd_core.rados.recipes import Recipes
from dedupd_core.rados.recovery import Recovery, Settle
from dedupd_core.rados.tables import FileTable, Intents

VERSION_BYTES = 16


class FileChunk(NamedTuple):
    """A chunk at its place in a file."""

    offset: int
    length: int
    chunk: NewChunk


@dataclass(frozen=True, slots=True)
class NewFile:
    """The new content of a file in the store; ranges without a chunk are zeros."""

    file: FileId
    length: int
    chunks: Sequence[FileChunk]


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that is stored with all its references, and that no file names yet."""

    file: FileId
    version: str
    old: str | None
    arrivals: dict[StoreResult, int]

    @property
    def both(self) -> FileVersions:
        """The versions of the file between commit and finish."""
        return FileVersions(self.version, self.old or "-")


class Writer:
    """A session on one volume: it starts with a recovery, and has a lease until its end."""

    def __init__(self, cluster: Cluster, chunks: Chunks, lease: Lease, shards: int) -> None:
        self.cluster, self.chunks, self.lease = cluster, chunks, lease
        self.recipes = Recipes(cluster)
        self.table = FileTable(cluster, lease.volume, shards, lease.session)
        self.intents = Intents(cluster, lease.volume, lease.session)
        self.retirement = Retirement(self.recipes, chunks)
        self.counted: Counter[str] = Counter()
        self._to_retire: list[tuple[FileId, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.lease.leave()

    def recover(self, settle: Settle | None) -> Recovery:
        """Finish or roll back the work of earlier sessions; see :class:`Recovery`."""
        recovery = Recovery(self.table, self.intents, self.retirement, settle)
        recovery.run()
        return recovery

    # --- one version of each file -------------------------------------------------------------

    def prepare(self, files: Sequence[NewFile]) -> list[PreparedVersion]:
        """Store new versions of files, each file once, with their references.

        Call :meth:`commit` next. Raises Busy if an earlier commit of a file is not settled.
        Versions that are not committed are left to :meth:`recover`.
        """
        each = self.cluster.each
        olds = [
            self._settled(found) for found in each(self.table.versions, [f.file for f in files])
        ]
        versions = [os.urandom(VERSION_BYTES).hex() for _ in files]
        self.intents.set({v: new.file for v, new in zip(versions, files, strict=True)})
        recipes = [
            _recipe(version, self.lease.volume, new)
            for version, new in zip(versions, files, strict=True)
        ]
        each(self.recipes.write, recipes)
        needed: dict[bytes, tuple[NewChunk, list[str]]] = {}
        for version, new in zip(versions, files, strict=True):
            for fingerprint, chunk in {c.chunk.fingerprint: c.chunk for c in new.chunks}.items():
                needed.setdefault(fingerprint, (chunk, []))[1].append(version)
        arrivals = dict(zip(needed, self.chunks.put_all([*needed.values()]), strict=True))
        self._count(files, arrivals)
        return [
            _prepared(version, old, new, recipe, needed, arrivals)
            for version, old, new, recipe in zip(versions, olds, files, recipes, strict=True)
        ]

    def _count(self, files: Sequence[NewFile], arrivals: dict[bytes, StoreResult]) -> None:
        """Count, for people, the stored bytes, and how many of them were new to the store."""
        met: set[bytes] = set()
        for new in files:
            for chunk in new.chunks:
                fingerprint = chunk.chunk.fingerprint
                self.counted["bytes"] += 0 if new.file.is_held else chunk.length
                if fingerprint not in met:
                    met.add(fingerprint)
                    self.counted[arrivals[fingerprint].value] += 1
                    is_new = arrivals[fingerprint] is StoreResult.CREATED
                    self.counted["new_bytes"] += chunk.length if is_new else 0
        self.counted["files"] += sum(not new.file.is_held for new in files)

    def _settled(self, found: FileVersions | None) -> str | None:
        if found is None:
            return None
        if found.old is not None:
            raise Busy(
                f"{self.cluster.address}: a commit of volume {self.lease.volume} is not settled;"
                " start the job again"
            )
        return found.new

    def commit(self, prepared: Sequence[PreparedVersion]) -> None:
        """Make files name both versions. Then change the stubs, durably, and :meth:`finish`."""
        self.cluster.each(lambda one: self.table.commit(one.file, one.version, one.old), prepared)

    def finish(self, prepared: Sequence[PreparedVersion]) -> None:
        """Finish commits, when the stubs durably name the new versions."""
        self.cluster.each(lambda one: self.table.finish(one.file, one.both), prepared)
        self.intents.drop(one.version for one in prepared)
        self._to_retire += [(one.file, one.old) for one in prepared if one.old is not None]

    def roll_back(self, prepared: Sequence[PreparedVersion]) -> None:
        """Roll back after :meth:`commit`, if the stubs durably stay unchanged."""
        self.cluster.each(lambda one: self.table.roll_back(one.file, one.both), prepared)
        self._to_retire += [(one.file, one.version) for one in prepared]
        self.retire()
        self.intents.drop(one.version for one in prepared)

    # --- the end of versions ------------------------------------------------------------------

    def delete(self, files: Iterable[tuple[FileId, str]]) -> None:
        """Forget files with the versions that their stubs named, after durable unlinks."""
        deleted = list(files)
        self.cluster.each(lambda one: self.table.delete(*one), deleted)
        self._to_retire += deleted

    def retire(self) -> None:
        """Drop the references of the versions that were replaced or deleted so far."""
        retiring, self._to_retire = self._to_retire, []
        damaged = set(self.retirement.retire([version for _, version in retiring]))
        done = [one for one in retiring if one[1] not in damaged]
        self.cluster.each(lambda one: self.table.retired(*one), done)

    def close(self) -> None:
        """Retire the remaining versions, and release the lease."""
        try:
            self.retire()
        except BaseException:
            self.lease.leave()
            raise
        self.lease.close(self.counted + self.retirement.counted)


def _recipe(version: str, volume: str, new: NewFile) -> FileRecipe:
    entries = [ChunkEntry(c.offset, c.length, c.chunk.fingerprint) for c in new.chunks]
    return FileRecipe(version, volume, new.file, new.length, entries)


def _prepared(
    version: str,
    old: str | None,
    new: NewFile,
    recipe: FileRecipe,
    needed: dict[bytes, tuple[NewChunk, list[str]]],
    arrivals: dict[bytes, StoreResult],
) -> PreparedVersion:
    counts: dict[StoreResult, int] = {}
    for fingerprint in recipe.fingerprints:
        # If several files of a batch have a new chunk, it is created for the first of them.
        is_first = needed[fingerprint][1][0] == version
        found = arrivals[fingerprint] if is_first else StoreResult.REFERENCED
        counts[found] = counts.get(found, 0) + 1
    return PreparedVersion(new.file, version, old, counts)
