"""Every file that is not optimized, by name, with the reason: page by page."""

from collections.abc import Iterator
from dataclasses import dataclass

from dedupd_core.config.policy import Policy
from dedupd_core.native.tree import Unreadable
from dedupd_core.volume.volume import Volume
from jobs.tree.candidates import OPTIMIZED, Judged, Skipped, candidates
from jobs.tree.judged_files import load_ledger
from jobs.tree.walk import SafePoint, listed

WAITS = "the next run optimizes it"

_NOT_LEFT = frozenset({OPTIMIZED, "empty"})


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file of the tree, relative to it, that is plain for a reason."""

    path: bytes
    size_bytes: int
    reason: str


def reason_of(volume: Volume, policy: Policy, judged: Judged, path: bytes) -> str:
    """Why no run takes a file, as the job itself decides; empty where the next one does."""
    skipped, errors = Skipped(), list[str]()
    if list(candidates(volume, policy, path, skipped, errors, judged=judged)):
        return ""
    return next(iter(skipped.files), errors[0] if errors else "")


def left_files(
    volume: Volume, policy: Policy, after: bytes, safe_point: SafePoint
) -> Iterator[LeftFile]:
    """The files that are not optimized now, behind the path ``after`` in the order of this listing.

    Of a directory the files come first, by name, then the directories, by name. So a listing can go
    on anywhere, and a page costs as much as its files.
    """
    judged = Judged(load_ledger(volume, policy))
    pending = [(b"", after.split(b"/") if after else [])]
    while pending:
        safe_point()
        path, behind = pending.pop()
        here = listed(volume, path or b".", safe_point)
        if isinstance(here, Unreadable):
            continue  # gone, or another file system: a run of the job says so
        prefix = path + b"/" if path else b""
        if len(behind) <= 1:
            for file in sorted(here.files, key=lambda one: one.name):
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
