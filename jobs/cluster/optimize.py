"""The optimize job of a volume whose chunks are in a cluster: files of the policy become stubs.

Every selected file saves space: its blocks become free, even if the cluster has none of its chunks.
"""

import os
from contextlib import ExitStack
from typing import NamedTuple

from dedupd_core.errors import (
    Damaged,
    DedupdError,
    FileChanged,
    StoreUnreachable,
    WriterFenced,
)
from dedupd_core.native.commit import CommitRequests
from dedupd_core.rados.reading.sources import reference
from dedupd_core.rados.writer import NewFile, PreparedVersion, Writer
from dedupd_core.stub.commit_steps import Outcome
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB
from dedupd_core.volume.commit import VolumeCommitter, settle_interrupted
from dedupd_core.volume.domains import require_domains
from dedupd_core.volume.volume import Volume
from jobs.cluster.cutting import cut_file, reader_of
from jobs.cluster.reports import ClusterOptimizeReport
from jobs.cluster.session import StubVersions, writing
from jobs.frame.job import Job
from jobs.frame.run import Cancelled, JobRun
from jobs.tree.candidates import Candidate, SkippedFiles, candidates

BATCH_FILES_MAX = 256
"""Number of files stored together; each needs a descriptor, and they share notes in the cluster."""

BATCH_BYTES = 256 * MIB


class _CutFile(NamedTuple):
    """A candidate, open and split into chunks."""

    candidate: Candidate
    new: NewFile


class ClusterOptimize(Job[ClusterOptimizeReport]):
    """One run over one volume. Needs the volume's job lock."""

    needs_containers = False

    def __init__(self, volume: Volume, run: JobRun, below: bytes = b"") -> None:
        super().__init__(volume, run, ClusterOptimizeReport())
        self._below = below
        self._policy = volume.policy()
        require_domains(volume, self._policy)
        threads = min(self._policy.cores or cores(), 64)
        self._committer = VolumeCommitter(volume, threads)
        self._stubs = StubVersions(volume)

    def run(self) -> ClusterOptimizeReport:
        """Optimize every file that the policy selects. Raises Busy, StoreUnreachable, Cancelled."""
        skipped, errors = SkippedFiles(), list[str]()
        found = candidates(
            self._volume, self._policy, self._below, skipped, errors, self._run.safe_point
        )
        with writing(self._volume, self._stubs) as (writer, recovery):
            self._report.recovery = recovery
            self._run.update(phase="optimizing")
            batch, batch_bytes = list[Candidate](), 0
            for candidate in found:
                batch.append(candidate)
                batch_bytes += candidate.identity.size
                if len(batch) >= BATCH_FILES_MAX or batch_bytes >= BATCH_BYTES:
                    self._take(writer, batch)
                    batch, batch_bytes = [], 0
            self._take(writer, batch)
            for path in skipped.unsettled:
                self._settle(path)
        for message in errors:
            self._run.findings.add(message)
        self._report.files_skipped = skipped.files
        return self.report()

    def _settle(self, path: bytes) -> None:
        try:
            settle_interrupted(self._volume, path)
        except (DedupdError, OSError) as error:
            self._run.findings.add_error(path, error)

    def _take(self, writer: Writer, batch: list[Candidate]) -> None:
        """Store and commit some files."""
        self._run.safe_point()
        with ExitStack() as files:
            taken = [one for c in batch if (one := self._cut(files, c)) is not None]
            if not taken:
                return
            try:
                prepared = writer.prepare([one.new for one in taken])
            except FileChanged:
                # One file has changed; process each file alone, to skip only the changed one.
                if len(batch) > 1:
                    files.close()
                    for candidate in batch:
                        self._take(writer, [candidate])
                else:
                    self._leave("changed while it was stored")
                return
        # The files are closed now: a commit needs that no program has the file open.
        writer.commit(prepared)
        self._commit(writer, taken, prepared)

    def _cut(self, files: ExitStack, candidate: Candidate) -> _CutFile | None:
        """Open a file and split it into chunks; return None if it is skipped."""
        volume, level = self._volume, self._policy.compression_level
        try:
            fd = open_beneath(volume.data_fd, candidate.path, os.O_RDONLY | os.O_NONBLOCK)
            files.enter_context(opened(fd))
            if FileIdentity.of(os.fstat(fd)) != candidate.identity:
                raise FileChanged("it was changed since it was found")
            read, ranges = reader_of(volume, fd, show_path(candidate.path))
            new = cut_file(
                volume,
                self._stubs.file_of(fd),
                candidate.identity.size,
                read,
                ranges,
                level=level if self._policy.compresses(candidate.path) else 0,
                safe_point=self._run.safe_point,
            )
            return _CutFile(candidate, new)
        except (Cancelled, StoreUnreachable, WriterFenced):
            raise
        except FileChanged:
            self._leave("changed while it was stored")
        except FileNotFoundError:
            self._leave("gone")
        except (DedupdError, OSError) as error:
            self._run.findings.add_error(candidate.path, error)
        return None

    def _leave(self, reason: str) -> None:
        self._report.files_left[reason] = self._report.files_left.get(reason, 0) + 1

    def _commit(
        self, writer: Writer, taken: list[_CutFile], prepared: list[PreparedVersion]
    ) -> None:
        """Make the stubs name the versions, and make the store keep the named versions."""
        requests = CommitRequests()
        for (candidate, _), version in zip(taken, prepared, strict=True):
            recipe = reference(version.version)
            requests.add(candidate.path, candidate.identity, recipe, candidate.attribute)
        results = self._committer.commit(requests)
        done: list[PreparedVersion] = []
        unchanged: list[PreparedVersion] = []
        for one, version, result in zip(taken, prepared, results, strict=True):
            self._report.freed_bytes += result.freed_bytes
            if result.outcome is Outcome.DONE:
                self._report.files_optimized += 1
                self._report.logical_bytes += one.candidate.identity.size
            else:
                self._leave(result.outcome.value)
            for arrival, count in version.arrivals.items():
                name = arrival.value
                self._report.arrivals[name] = self._report.arrivals.get(name, 0) + count
            (done if self._names(version) else unchanged).append(version)
        writer.finish(done)
        writer.roll_back(unchanged)
        writer.retire()
        self._run.update(done=self._report.logical_bytes, files=self._report.files_optimized)

    def _names(self, version: PreparedVersion) -> bool:
        """Return whether the stub of a file durably names its new version. The result of the commit
        may be about a later step. Raises Damaged if the stub names neither version."""
        named = self._stubs.settle(version.file)
        if named == version.version:
            return True
        if named is not None and named != version.old:
            raise Damaged(
                f"inode {version.file.inode}: its stub refers to the unknown version {named}"
            )
        return False
