"""The gc job of a volume whose chunks are in a cluster: forgets deleted files in the store, and
collects garbage. Also removes a volume without stubs from its store."""

from dedupd_core.errors import Busy, NotAVolume, UsageError
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.garbage import GRACE_S, Collection
from dedupd_core.rados.writer import Writer
from dedupd_core.volume.volume import Volume
from jobs.cluster.reports import ClusterGcReport
from jobs.cluster.session import StubVersions, store_of, writing
from jobs.frame.job import Job
from jobs.frame.run import JobRun

BATCH_FILES = 1024


class ClusterGc(Job[ClusterGcReport]):
    """One run over one volume. Needs the volume's job lock."""

    needs_containers = False

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        *,
        full: bool = False,
        dry_run: bool = False,
        all_garbage: bool = False,
    ) -> None:
        """``full`` changes nothing: each run checks all files. ``all_garbage``: collect garbage of
        any age. Raises UsageError for a ``dry_run``."""
        super().__init__(volume, run, ClusterGcReport())
        if dry_run:
            raise UsageError(
                f"{volume.root}: `dedupd cluster status` shows the garbage of its store"
            )
        self._grace_s = 0.0 if all_garbage else GRACE_S
        self._stubs = StubVersions(volume)

    def run(self) -> ClusterGcReport:
        """Forget deleted files, and collect. Raises Busy, StoreUnreachable, Cancelled."""
        with writing(self._volume, self._stubs) as (writer, recovery):
            self._report.recovery = recovery
            self._run.update(phase="checking for deleted files")
            self.forget(writer)
            self._run.update(phase="collecting")
            collection = Collection(writer.chunks, self._grace_s)
            collection.run()
            self._report.candidates = collection.candidates
            self._report.chunks_removed = collection.removed
            self._report.chunks_waiting = collection.waiting
        return self.report()

    def forget(self, writer: Writer) -> None:
        """Forget the files whose stubs are deleted, durably: unlink before unreference."""
        gone: list[tuple[FileId, str]] = []
        for file, versions in writer.table.files():
            self._run.safe_point()
            self._report.files += 1
            try:
                named = self._stubs.settle(file)
            except Busy:
                continue  # the file exists; its state does not matter here
            if named is None:
                gone.append((file, versions.new))
            elif named not in versions.live:
                self._run.findings.add(
                    f"inode {file.inode}: its stub refers to version {named}, but the store has"
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


def leave_store(volume: Volume, run: JobRun) -> None:
    """Make the store forget a volume that has no stubs left. May be repeated.

    Needs the volume's job lock. Raises Busy, StoreUnreachable.
    """
    side = store_of(volume)
    job = ClusterGc(volume, run)
    try:
        with writing(volume, StubVersions(volume)) as (writer, _):
            job.forget(writer)
        side.open().leave(side.volume)
    except NotAVolume:
        return  # an earlier call was interrupted after this step
