"""The report of an optimize run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from dedupd_core.native.commit import CommitRequests
from dedupd_core.store.chunk_index import IndexCounters
from dedupd_core.stub.commit_steps import Outcome, Result
from dedupd_core.volume.commit_requests import CommitRequest
from jobs.frame.job import FileReport
from jobs.tree.candidates import SAVES_LITTLE, SkippedFiles


@dataclass(slots=True)
class Sums:
    """What went through the pipeline; times are seconds of the stage, overlapping.

    ``raw_bytes`` were read. ``zero_bytes`` are all ranges of zeros, including those in holes, which
    are not read. ``incompressible_chunks`` are new ones that were to be compressed, and were not
    worth it.
    """

    raw_bytes: int = 0
    chunks: int = 0
    new_chunks: int = 0
    new_raw_bytes: int = 0
    stored_bytes: int = 0
    zero_bytes: int = 0
    duplicate_bytes: int = 0
    incompressible_chunks: int = 0
    read_s: float = 0.0
    chunk_s: float = 0.0
    lookup_s: float = 0.0
    compress_s: float = 0.0
    append_s: float = 0.0
    sync_s: float = 0.0
    commit_s: float = 0.0

    def rounded(self) -> Self:
        """As in the report: times to a millisecond."""
        return replace(self, **{k: round(v, 3) for k, v in asdict(self).items()})


@dataclass(slots=True)
class OptimizeReport(FileReport):
    """What a run did."""

    job: str = "optimize"
    files_optimized: int = 0
    files_spliced: int = 0
    files_made_plain: int = 0
    filled_bytes: int = 0
    logical_bytes: int = 0
    files_left: dict[str, int] = field(default_factory=dict)
    files_skipped: dict[str, int] = field(default_factory=dict)
    bytes_skipped: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    recipe_bytes: int = 0
    cut_bytes: int = 0
    freed_bytes: int = 0
    """Of blocks that files have given up. Of those, ``shared_taken_bytes`` at most are still held
    by snapshots, or by copies below; ``shared_left_bytes`` are in files that were left for it."""
    shared_left_bytes: int = 0
    shared_taken_bytes: int = 0
    free_bytes_before: int = 0
    free_bytes_after: int = 0
    partitions: int = 0
    files_recalled: int = 0
    """Read a second time, because others have chunks of theirs."""
    index_entries: int = 0
    index: IndexCounters = field(default_factory=IndexCounters)
    code_path: str = ""

    def count(self, requests: CommitRequests, results: Sequence[Result]) -> None:
        """Count the files of a group that have become stubs, and the blocks that they gave up."""
        self.files_optimized += len(requests)
        self.files_spliced += requests.are_plain.count(0)
        self.logical_bytes += requests.size_bytes
        for at, result in enumerate(results):
            self.freed_bytes += result.freed_bytes
            if result.outcome is not Outcome.DONE:
                request = CommitRequest.of(requests[at])
                self.files_optimized -= 1
                self.files_spliced -= request.previous is not None or request.in_parts
                self.logical_bytes -= request.identity.size

    def count_left(self, small_files: int, skipped: SkippedFiles) -> None:
        """Count files that would save too little: ``small_files`` beside those counted one by one,
        and those that were ``skipped``. What was recalled was counted twice."""
        count = self.files_left.pop(SAVES_LITTLE, 0) + skipped.files.pop(SAVES_LITTLE, 0)
        count += small_files - self.files_recalled
        if count > 0:
            self.files_left[SAVES_LITTLE] = count
