"""The result of a run of optimize: the skipped files, and the keys that would include them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dedupd_core.config.policy import Policy
from dedupd_core.units import counted, exact_duration, exact_size, format_size
from jobs.optimize.admission import NO_ROOM
from jobs.optimize.optimize_job import OptimizeReport
from jobs.tree.candidates import EXCLUDED, OPTIMIZED, SAVES_LITTLE, SMALL, YOUNG

_UNTOLD = frozenset({OPTIMIZED, "empty"})
"""Reasons that the output does not mention, because these files need no action."""


class RunPlace(NamedTuple):
    """The path that a run was started with, and the root of its volume."""

    path: str
    root: str


def left_out(
    policy: Policy, place: RunPlace, files: Mapping[str, int], size_bytes: Mapping[str, int]
) -> Iterator[str]:
    """Describe the reasons for skipping files, with remedies, the most bytes first."""
    for reason in sorted(files, key=lambda one: -size_bytes.get(one, 0)):
        if reason in _UNTOLD or not files[reason]:
            continue
        what = counted(files[reason], "file")
        if reason in size_bytes:
            what += f" ({format_size(size_bytes[reason])})"
        yield f"Skipped: {what}{_told(reason, policy, place)}"


def _told(reason: str, policy: Policy, place: RunPlace) -> str:
    path, root = place
    if reason == SMALL:
        told = f" smaller than min_size = {exact_size(policy.min_size_bytes)}."
        if policy.min_size_bytes > 4096:
            told += f" To include more of them, run `dedupd policy {root} min_size 4k`."
        return told
    if reason == YOUNG:
        return (
            f" newer than min_age = {exact_duration(policy.min_age_s)}. To optimize them now, run"
            f" `dedupd run optimize --min-age 0s {path}`."
        )
    if reason == EXCLUDED:
        return f", excluded. `dedupd policy {root} --why FILE` shows the rule."
    if reason == SAVES_LITTLE:
        return (
            f" that would save less than min_file_saving = {policy.min_file_saving:.0%} of the"
            f" blocks. To include them, run `dedupd policy {root} min_file_saving 0`."
        )
    shown = "not enough free space" if reason == NO_ROOM else reason
    return f", {shown}. `dedupd jobs {root} --left` lists them."


def outcome_of(report: OptimizeReport, policy: Policy, place: RunPlace) -> Iterator[str]:
    """Describe the skipped files; the last line is the result of the run."""
    files = dict(report.files_skipped)
    for reason, count in report.files_left.items():
        files[reason] = files.get(reason, 0) + count
    yield from left_out(policy, place, files, report.bytes_skipped)
    yield _result(report)


def _result(report: OptimizeReport) -> str:
    stored = report.sums.stored_bytes + report.recipe_bytes
    if not report.files_optimized:
        done = report.files_skipped.get(OPTIMIZED, 0)
        already = f"; {counted(done, 'file')} already optimized" if done else ""
        return f"Nothing was optimized{already}."
    net = report.freed_bytes - stored
    share = f" ({net / report.freed_bytes:.0%})" if report.freed_bytes and net > 0 else ""
    return (
        f"Saved {format_size(max(0, net))}{share}: {counted(report.files_optimized, 'file')} freed"
        f" {format_size(report.freed_bytes)}; the store grew by {format_size(stored)}."
    )
