"""The files that optimize still has to process, and those that the current policy skips."""

from dataclasses import dataclass, field

from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.tree.candidates import (
    EXCLUDED,
    OPTIMIZED,
    SAVES_LITTLE,
    SMALL,
    YOUNG,
    Candidate,
    JudgedFiles,
    SkippedFiles,
    found_candidates,
)
from jobs.tree.judged_files import load_ledger

_KINDS = {
    YOUNG: "young",
    SMALL: "small",
    EXCLUDED: "excluded",
    SAVES_LITTLE: "saves_little",
}
"""Reasons with a figure of their own; all others are ``other``."""

OLDEST_OF_MAX = 1_000_000
"""The largest number of pending files among which the oldest is searched, one by one."""


@dataclass(frozen=True, slots=True)
class FileCount:
    """Some files, and bytes of them."""

    files: int
    bytes: int


@dataclass(slots=True)
class Backlog:
    """Plain files, and bytes of them. ``waiting``: the next optimize processes them. ``young``:
    they wait for min_age. ``saves_little``, ``small``, ``excluded``, ``other``: skipped.

    ``oldest_waiting_s``: the last change of the oldest pending file, since 1970; 0: none pending.
    """

    files: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    oldest_waiting_s: float = 0.0

    def add(self, kind: str, files: int, size_bytes: int) -> None:
        self.files[kind] = self.files.get(kind, 0) + files
        self.size_bytes[kind] = self.size_bytes.get(kind, 0) + size_bytes

    def count(self, kind: str) -> FileCount:
        """The files of a kind."""
        return FileCount(self.files.get(kind, 0), self.size_bytes.get(kind, 0))

    def to_json(self) -> dict[str, float]:
        """Return a flat row: a figure for each kind."""
        row: dict[str, float] = {}
        for kind in ("waiting", *_KINDS.values(), "other"):
            count = self.count(kind)
            row |= {f"{kind}_files": count.files, f"{kind}_bytes": count.bytes}
        return row | {"oldest_waiting_s": self.oldest_waiting_s}


def backlog(volume: Volume, run: JobRun) -> Backlog:
    """Check the name and times of every file, as optimize does. Raises PolicyError, Cancelled."""
    found, skipped, oldest_ns = Backlog(), SkippedFiles(), 0
    run.update(phase="looking for pending files")
    messages: list[str] = []  # the previous walk has reported them
    policy = volume.policy()
    judged, check = JudgedFiles(load_ledger(volume, policy)), run.safe_point
    for some in found_candidates(volume, policy, b"", skipped, messages, check, judged):
        if isinstance(some, Candidate):
            found.add("waiting", 1, some.work_bytes)
        else:
            found.add("waiting", some.count, some.size_bytes)
        if found.files["waiting"] <= OLDEST_OF_MAX:
            files = (some,) if isinstance(some, Candidate) else some.candidates()
            changed_ns = min(file.identity.changed_ns for file in files)
            oldest_ns = min(oldest_ns or changed_ns, changed_ns)
    for reason, count in skipped.files.items():
        if reason not in (OPTIMIZED, "empty"):
            found.add(_KINDS.get(reason, "other"), count, skipped.size_bytes[reason])
    found.oldest_waiting_s = oldest_ns / 1e9
    return found
