"""The outcomes of the files of an optimize run: stubs, and skipped files by their reasons."""

import os

from dedupd_core.stub.commit_steps import Outcome
from dedupd_core.system.paths import show_path
from dedupd_core.volume.commit_requests import CommitRequest
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.unfinished_files import Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Findings
from jobs.optimize.admission import BY_PARTS, NO_ROOM
from jobs.optimize.buffers import FileTask
from jobs.optimize.busy_files import BusyFiles
from jobs.optimize.group_commit import GroupResult
from jobs.optimize.judgements import Judgements
from jobs.optimize.optimize_report import OptimizeReport, Sums
from jobs.tree.candidates import SAVES_LITTLE, SHARED_BELOW

NAMED_MAX = 1000
"""Names that are kept, of the last run: some 100 KB. The counts have all."""


class LeftFiles:
    """Those of one run. People hear of failures at once, in its findings."""

    def __init__(self, counts: dict[str, int], findings: Findings) -> None:
        self._counts = counts
        self._findings = findings
        self._named: list[tuple[str, str]] = []

    def add(self, path: bytes, reason: str, failure: str | None = None) -> None:
        """Note a skipped file. ``failure`` is the error, if there was one."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        if failure is not None:
            self._findings.add(f"{show_path(path)}: {failure}")
        # Files that save too little are in the ledger, and may be recalled by the same run.
        if reason != SAVES_LITTLE and len(self._named) < NAMED_MAX:
            self._named.append((os.fsdecode(path), failure or reason))

    def add_unread(self, path: bytes, reason: str) -> None:
        """Note a file that was skipped before its commit."""
        if reason in (NO_ROOM, BY_PARTS):
            return  # that was said when it was to begin, or will be of its parts
        if reason.startswith("cannot"):
            self.add(path, "cannot be read", failure=reason)
        else:
            self.add(path, reason)

    def save(self, volume: Volume, started_s: float) -> None:
        """Keep the names of the run that began then."""
        volume.hints.put(HintKey.LEFT, {"started_s": started_s, "files": self._named})


def named_left(volume: Volume, started_s: float) -> dict[bytes, str]:
    """Return the skipped files of the run that started then; empty unless it was the last."""
    kept = volume.hints.get(HintKey.LEFT)
    if not isinstance(kept, dict) or kept.get("started_s") != started_s:
        return {}
    return {os.fsencode(path): reason for path, reason in kept["files"]}


class Outcomes:
    """Notes the outcome of each file: in the report, for the next run, and for a mount that offered
    the file."""

    def __init__(
        self,
        report: OptimizeReport,
        judgements: Judgements,
        busy: BusyFiles,
        left_files: LeftFiles,
        checkpoints: Checkpoints,
    ) -> None:
        self._report = report
        self._judgements = judgements
        self._busy = busy
        self._left_files = left_files
        self._checkpoints = checkpoints

    def add_group(self, sums: Sums, group: GroupResult) -> None:
        """A group was committed."""
        sums.sync_s += group.sync_s
        sums.commit_s += group.commit_s
        if group.checkpoint is not None:
            self._checkpoints.save(group.checkpoint)
        self._report.count(group.requests, group.results)
        for at, result in enumerate(group.results):
            if result.outcome is not Outcome.DONE:
                failure = result.reason if result.outcome is Outcome.FAILED else None
                request = CommitRequest.of(group.requests[at])
                self._left_files.add(request.path, result.outcome.value, failure)
                if result.outcome is Outcome.FULL:
                    self._judgements.leave_full(request.identity)

    def add_left(self, task: FileTask) -> None:
        """A file did not get as far as its commit."""
        reason = task.failure or "was empty when it was read"
        if task.busy is not None:
            is_promising = self._judgements.is_promising(task.identity.inode)
            self._busy.decline(task.candidate, reason, is_promising)
        if reason == SHARED_BELOW:
            self._report.shared_left_bytes += task.source.shared_bytes
        self._left_files.add_unread(task.candidate.path, reason)
