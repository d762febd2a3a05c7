"""What a run of optimize has left alone, and which key of the policy would change that."""

from collections.abc import Iterator, Mapping

from dedupd.config.policy import Policy
from dedupd.units import counted, exact_duration, exact_size, format_size
from jobs.tree.candidates import EXCLUDED, OPTIMIZED, SMALL, YOUNG

_UNTOLD = frozenset({OPTIMIZED, "empty"})
"""Nothing is left to do about these."""


def left_out(
    policy: Policy, path: str, files: Mapping[str, int], size_bytes: Mapping[str, int]
) -> Iterator[str]:
    """A sentence for each reason, with the remedy: the most bytes first."""
    for reason in sorted(files, key=lambda one: -size_bytes.get(one, 0)):
        if reason in _UNTOLD or not files[reason]:
            continue
        what = counted(files[reason], "file")
        if reason in size_bytes:
            what += f" ({format_size(size_bytes[reason])})"
        yield f"{what} {_told(reason, policy, path)}"


def _told(reason: str, policy: Policy, path: str) -> str:
    if reason == SMALL:
        told = f"smaller than min_size = {exact_size(policy.min_size_bytes)} stay as they are."
        if policy.min_size_bytes > 4096:
            told += f" `dedupd policy {path} min_size 4k` has more of them taken."
        return told
    if reason == YOUNG:
        return (
            f"changed less than min_age = {exact_duration(policy.min_age_s)} ago, and wait."
            f" `dedupd run optimize --min-age 0s {path}` takes them now."
        )
    if reason == EXCLUDED:
        return f"are excluded. `dedupd policy {path} --why FILE` says by what."
    return f"left: {reason}."
