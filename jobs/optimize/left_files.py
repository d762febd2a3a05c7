"""The files that a run of optimize came to and left: how many for each reason, and their names."""

import os

from dedupd_core.system.paths import show_path
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Findings
from jobs.optimize.admission import BY_PARTS, NO_ROOM
from jobs.tree.candidates import SAVES_LITTLE

NAMED_MAX = 1000
"""Names that are kept, of the last run: some 100 KB. The counts have all."""


class LeftFiles:
    """Those of one run. People hear of failures at once, in its findings."""

    def __init__(self, counts: dict[str, int], findings: Findings) -> None:
        self._counts = counts
        self._findings = findings
        self._named: list[tuple[str, str]] = []

    def add(self, path: bytes, reason: str, failure: str | None = None) -> None:
        """A file stays as it is. ``failure`` says what of it went wrong."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        if failure is not None:
            self._findings.add(f"{show_path(path)}: {failure}")
        # Files that save too little are in the ledger, and may be recalled by the same run.
        if reason != SAVES_LITTLE and len(self._named) < NAMED_MAX:
            self._named.append((os.fsdecode(path), failure or reason))

    def add_unread(self, path: bytes, reason: str) -> None:
        """A file that did not get as far as its commit stays as it is."""
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
    """The files that the run that began then has left, by path; empty where it was not the last."""
    kept = volume.hints.get(HintKey.LEFT)
    if not isinstance(kept, dict) or kept.get("started_s") != started_s:
        return {}
    return {os.fsencode(path): reason for path, reason in kept["files"]}
