"""The gc job of a volume whose chunks are in a cluster: files that are gone are forgotten there,
and what nothing needs is collected."""

from dataclasses import dataclass, field
from typing import Any

from dedupd_core.errors import Busy
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.collection import GRACE_S, Collection
from dedupd_core.rados.writer import Writer
from dedupd_core.volume.volume import Volume
from jobs.cluster.session import writing
from jobs.cluster.stub_versions import StubVersions
from jobs.frame.report import FileReport, Job
from jobs.frame.run import JobRun

BATCH_FILES = 1024


@dataclass(slots=True)
class ClusterGcReport(FileReport):
    """What a run did. ``candidates`` and the next ones are of the whole store."""

    job: str = "gc"
    files: int = 0
    files_forgotten: int = 0
    candidates: int = 0
    chunks_removed: int = 0
    chunks_waiting: int = 0
    recovery: dict[str, Any] = field(default_factory=dict)


class ClusterGc(Job[ClusterGcReport]):
    """One run over one volume. Needs the volume's job lock."""

    knows_clusters = True

    def __init__(self, volume: Volume, run: JobRun, grace_s: float = GRACE_S) -> None:
        super().__init__(volume, run, ClusterGcReport())
        self._grace_s = grace_s
        self._stubs = StubVersions(volume)

    def run(self) -> ClusterGcReport:
        """Raises Busy, StoreUnreachable, Cancelled."""
        with writing(self._volume, self._stubs) as (writer, recovery):
            self._report.recovery = recovery
            self._run.update(phase="looking for files that are gone")
            self.forget(writer)
            self._run.update(phase="collecting")
            collection = Collection(writer.chunks, self._grace_s)
            collection.run()
            self._report.candidates = collection.candidates
            self._report.chunks_removed = collection.removed
            self._report.chunks_waiting = collection.waiting
        return self.report()

    def forget(self, writer: Writer) -> None:
        """Forget the files whose stubs are gone, durably: unlink before unreference."""
        gone: list[tuple[FileId, str]] = []
        for file, versions in writer.table.files():
            self._run.safe_point()
            self._report.files += 1
            try:
                named = self._stubs.settle(file)
            except Busy:
                continue  # it is there, which is all that matters here
            if named is None:
                gone.append((file, versions.new))
            elif named not in versions.live:
                self._run.findings.add(
                    f"inode {file.inode}: its stub names version {named}, and the store has"
                    f" {versions.value}"
                )
            if len(gone) == BATCH_FILES:
                self._drop(writer, gone)
                gone = []
        self._drop(writer, gone)

    def _drop(self, writer: Writer, gone: list[tuple[FileId, str]]) -> None:
        if gone:
            self._volume.disk.sync_file_system(self._volume.data_fd)
            writer.delete(gone)
            writer.retire()
            self._report.files_forgotten += len(gone)
