"""Why the next run optimizes or skips a file: for one file, or for all plain files, page by page.
The decisions are those of the job."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dedupd_core.config.policy import Decision, Policy, decided
from dedupd_core.native.tree import Unreadable
from dedupd_core.system.paths import show_path
from dedupd_core.units import exact_duration, exact_size, format_duration
from dedupd_core.volume.volume import Volume
from jobs.tree.candidates import OPTIMIZED, YOUNG, JudgedFiles, SkippedFiles, candidates
from jobs.tree.judged_files import load_ledger
from jobs.tree.marked_directories import MarkedDirectories
from jobs.tree.walk import SafePoint, listed, single_file


@dataclass(frozen=True, slots=True)
class Explanation:
    """What comes of a file. ``due_s`` is when a young one is old enough, seconds since 1970."""

    path: bytes
    taken: bool
    reason: str
    decision: Decision
    marked: str
    """The file that keeps its directory plain; empty where none does."""
    due_s: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": show_path(self.path),
            "taken": self.taken,
            "reason": self.reason,
            "due_s": self.due_s,
            "excluded_by": self.excluded_by,
            "keys": {
                key: {"value": value, "from": self.decision.source(key)}
                for key, value in self._values()
            },
        }

    @property
    def excluded_by(self) -> str:
        """The key, the rule or the file that leaves it alone; empty where nothing does."""
        return self.decision.excluded or self.marked

    def _values(self) -> Iterator[tuple[str, str | bool]]:
        decision = self.decision
        yield "min_age", exact_duration(decision.min_age_s)
        yield "min_size", exact_size(decision.min_size_bytes)
        yield "exclude", bool(self.excluded_by)
        yield "compress", decision.compresses

    @property
    def outcome(self) -> str:
        """One phrase of what comes of it."""
        if self.taken:
            return "the next run optimizes it"
        text = self.reason
        if self.due_s is not None:
            text += f"; it is old enough in {format_duration(max(0.0, self.due_s - time.time()))}"
        if self.excluded_by:
            text += f"; excluded by {self.excluded_by}"
        return text

    def lines(self) -> Iterator[str]:
        yield f"{show_path(self.path)}: {self.outcome}"
        for key, value in self._values():
            source = self.decision.source(key)
            if key == "exclude" and key not in self.decision.rules:
                source = self.excluded_by or "not excluded"
            shown = str(value).lower() if isinstance(value, bool) else f'"{value}"'
            yield f"  {key} = {shown}   # {source}"


def explain_file(volume: Volume, policy: Policy, path: bytes) -> Explanation | None:
    """What comes of a file by the policy; None where the path is no regular file.

    Raises OSError where it cannot be read.
    """
    errors: list[str] = []
    file = next(single_file(volume, path, errors), None)
    if file is None and not errors:
        return None
    reason = reason_of(volume, policy, JudgedFiles(load_ledger(volume, policy)), path)
    decision = decided(policy, path)
    marked = MarkedDirectories(volume, policy.markers)
    marked.begin(path)
    above = marked.above(path)
    due_s = None
    if reason == YOUNG and file is not None:
        due_s = file.identity.changed_ns / 1e9 + decision.min_age_s
    return Explanation(
        path,
        not reason,
        reason,
        decision,
        "" if above is None else f"a marker in {show_path(above) or 'the root of the volume'}",
        due_s,
    )


WAITS = "the next run optimizes it"

_NOT_LEFT = frozenset({OPTIMIZED, "empty"})


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file of the tree, relative to it, that is plain for a reason."""

    path: bytes
    size_bytes: int
    reason: str


def reason_of(volume: Volume, policy: Policy, judged: JudgedFiles, path: bytes) -> str:
    """Why no run takes a file, as the job itself decides; empty where the next one does."""
    skipped, errors = SkippedFiles(), list[str]()
    if list(candidates(volume, policy, path, skipped, errors, judged=judged)):
        return ""
    return next(iter(skipped.files), errors[0] if errors else "")


def left_files(
    volume: Volume, policy: Policy, after: bytes, safe_point: SafePoint
) -> Iterator[LeftFile]:
    """The files that are not optimized now, behind the path ``after`` in the order of this listing.

    The files of a directory come first, by name, then its directories, by name. So a listing can
    continue anywhere, and the time for a page depends only on its files.
    """
    judged = JudgedFiles(load_ledger(volume, policy))
    pending = [(b"", after.split(b"/") if after else [])]
    while pending:
        safe_point()
        path, behind = pending.pop()
        here = listed(volume, path or b".", safe_point)
        if isinstance(here, Unreadable):
            continue  # gone, or another file system: the job reports this
        prefix = path + b"/" if path else b""
        if len(behind) <= 1:
            for file in sorted(here.files, key=lambda entry: entry.name):
                if not behind or file.name > behind[0]:
                    safe_point()
                    reason = reason_of(volume, policy, judged, prefix + file.name)
                    if reason not in _NOT_LEFT:
                        yield LeftFile(prefix + file.name, file.identity[1], reason or WAITS)
        below: list[tuple[bytes, list[bytes]]] = []
        for name in sorted(here.directories, reverse=True):
            if len(behind) > 1 and name == behind[0]:
                below.append((prefix + name, behind[1:]))
            elif len(behind) <= 1 or name > behind[0]:
                below.append((prefix + name, []))
        pending.extend(below)
