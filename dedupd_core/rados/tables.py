"""The tables of a volume: live versions of files, versions to retire, and unfinished versions.

Only the current session makes changes: the condition of each change is that the object accepts this
session. So a process that was considered dead can commit nothing later.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dedupd_core.errors import FileChanged, WriterFenced
from dedupd_core.format.cluster.objects import (
    FILE_PREFIX,
    NO_VERSION,
    OLD_PREFIX,
    SESSION_KEY,
    FileId,
    FileVersions,
    file_shard,
    files_object,
    intents_object,
    parse_versions,
)
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import Cluster


@dataclass(frozen=True, slots=True)
class FileTable:
    """The files of one volume, in ``shards`` objects."""

    cluster: Cluster
    volume: str
    shards: int
    session: str = ""
    """The session that writes."""

    @property
    def objects(self) -> list[str]:
        return [files_object(self.volume, shard) for shard in range(self.shards)]

    def _object(self, file: FileId) -> str:
        return files_object(self.volume, file_shard(file, self.shards))

    def versions(self, file: FileId) -> FileVersions | None:
        """Return the versions of a file; None if the store does not know the file."""
        value = self.cluster.value(self._object(file), file.key)
        return None if value is None else parse_versions(value)

    def files(self) -> Iterator[tuple[FileId, FileVersions]]:
        """Yield all files, even while files are added or removed."""
        for oid in self.objects:
            for key, value in self.cluster.each_key(oid, FILE_PREFIX):
                yield FileId.parse(key.removeprefix(FILE_PREFIX)), parse_versions(value)

    def retiring(self) -> Iterator[tuple[str, FileId]]:
        """Yield the versions to retire, each with its file."""
        for oid in self.objects:
            for key, value in self.cluster.each_key(oid, OLD_PREFIX):
                yield key.removeprefix(OLD_PREFIX), FileId.parse(value)

    # --- changes ------------------------------------------------------------------------------

    def commit(self, file: FileId, new: str, old: str | None) -> None:
        """Make both versions live; all references of ``new`` must be acknowledged.

        Raises FileChanged if the file's version is not ``old``, WriterFenced.
        """
        before = None if old is None else FileVersions(old)
        self._change(points.COMMITTED, file, before, FileVersions(new, old or NO_VERSION))

    def finish(self, file: FileId, both: FileVersions) -> None:
        """Make the new version the only one, when the stub durably names it."""
        retired = {} if both.old in (None, NO_VERSION) else {f"{OLD_PREFIX}{both.old}": file.text}
        self._change(points.FINISHED, file, both, FileVersions(both.new), retired)

    def roll_back(self, file: FileId, both: FileVersions) -> None:
        """Make the old version the only one, when the stub durably names that."""
        left = None if both.old in (None, NO_VERSION) else FileVersions(both.old or "")
        retired = {f"{OLD_PREFIX}{both.new}": file.text}
        self._change(points.ROLLED_BACK, file, both, left, retired)

    def delete(self, file: FileId, version: str) -> None:
        """Forget a file, when its stub is durably removed."""
        retired = {f"{OLD_PREFIX}{version}": file.text}
        self._change(points.FILE_DELETED, file, FileVersions(version), None, retired)

    def retired(self, file: FileId, version: str) -> None:
        """Record that nothing is left of a version."""
        change = AtomicChange(
            points.VERSION_RETIRED,
            self._object(file),
            equal={SESSION_KEY: self.session},
            drop=(f"{OLD_PREFIX}{version}",),
        )
        if self.cluster.apply(change) is not Outcome.DONE:
            raise _fenced(self.volume)

    def _change(
        self,
        point: str,
        file: FileId,
        before: FileVersions | None,
        after: FileVersions | None,
        retired: dict[str, str] | None = None,
    ) -> None:
        put = dict(retired or {})
        if after is not None:
            put[file.key] = after.value
        change = AtomicChange(
            point,
            self._object(file),
            equal={SESSION_KEY: self.session, file.key: None if before is None else before.value},
            put=put,
            drop=(file.key,) if after is None else (),
        )
        if self.cluster.apply(change) is Outcome.DONE:
            return
        # Its acknowledgement may have been lost: then it is already in its new state.
        if self.cluster.value(change.oid, SESSION_KEY) != self.session:
            raise _fenced(self.volume)
        found = self.versions(file)
        if found != after:
            raise FileChanged(
                f"file {file.text} of volume {self.volume}: the store has it as"
                f" {found.value if found else 'unknown'}; run the job again"
            )


@dataclass(frozen=True, slots=True)
class Intents:
    """The unfinished file versions of one volume. They are recorded before they are stored, so that
    their remains can be found after a crash."""

    cluster: Cluster
    volume: str
    session: str = ""

    @property
    def object(self) -> str:
        return intents_object(self.volume)

    def all(self) -> dict[str, FileId]:
        """Return each version with its file."""
        return {
            key: FileId.parse(value)
            for key, value in self.cluster.each_key(self.object)
            if key != SESSION_KEY
        }

    def set(self, versions: Mapping[str, FileId]) -> None:
        """Raises WriterFenced."""
        put = {version: file.text for version, file in versions.items()}
        self._apply(
            AtomicChange(points.INTENT_SET, self.object, equal={SESSION_KEY: self.session}, put=put)
        )

    def drop(self, versions: Iterable[str]) -> None:
        """Raises WriterFenced."""
        self._apply(
            AtomicChange(
                points.INTENT_DROPPED,
                self.object,
                equal={SESSION_KEY: self.session},
                drop=tuple(versions),
            )
        )

    def _apply(self, change: AtomicChange) -> None:
        if not change.put and not change.drop:
            return
        if self.cluster.apply(change) is not Outcome.DONE:
            raise _fenced(self.volume)


def _fenced(volume: str) -> WriterFenced:
    return WriterFenced(
        f"volume {volume}: another session now writes this volume; start the job again"
    )
