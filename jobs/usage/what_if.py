"""Estimates how another policy would change existing stubs, without reading them."""

from dataclasses import dataclass
from typing import Any

from dedupd_core.config.policy import KEYS, Policy, apply_values, decided
from dedupd_core.errors import UsageError
from dedupd_core.native.tree import FileEntry
from dedupd_core.units import align_up
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.usage.groups import BLOCK_BYTES, Groups
from jobs.usage.needs import StoreNeeds
from jobs.usage.usage import figures_of

KNOWN = ("exclude", "exclude_types", "min_size", "redundancy_threshold")
"""Keys whose effect needs no reading of files: those that exclude stubs, and copies."""

LEFT_OUT = "left out"
TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A policy's effect. Bytes.

    ``files_left_out``: stubs that it excludes. ``plain_bytes``: blocks that these would use as
    plain files. ``store_bytes_freed``: bytes that their chunks free. ``files_taken``: excluded
    plain files that it would select; their saving is unknown before they are read.
    """

    files_left_out: int
    plain_bytes: int
    store_bytes_freed: int
    files_taken: int
    bytes_taken: int
    copies_bytes_more: int

    @property
    def costs_bytes(self) -> int:
        """The growth of the volume; less than 0 if it would shrink."""
        return self.plain_bytes - self.store_bytes_freed + self.copies_bytes_more


def what_if(volume: Volume, run: JobRun, values: dict[str, Any]) -> WhatIf:
    """Return the effect of other values of some keys. Raises UsageError, PolicyError, Cancelled."""
    for key in values:
        if key not in KEYS:
            raise UsageError(f"unknown policy key {key!r}; use one of {', '.join(KEYS)}")
        if key not in KNOWN:
            raise UsageError(
                f"{key}: its effect is known only after files are read; use one of"
                f" {', '.join(KNOWN)}"
            )
    now = volume.policy()
    then = apply_values(now, values, "--what-if")
    needs = StoreNeeds(volume, run)
    groups = Groups(volume, run, needs)
    plain = [0]

    def choice(path: bytes, file: FileEntry) -> str | None:
        if file.links > 1:
            return None  # its other names may be selected
        is_wanted, would_be = (_is_wanted(policy, path, file) for policy in (now, then))
        if file.attribute is None:
            return TAKEN if would_be and not is_wanted else None
        if would_be or not is_wanted:
            return None
        plain[0] += align_up(file.identity[1], BLOCK_BYTES) - file.allocated_bytes
        return LEFT_OUT

    groups.by_choice(choice)
    found = figures_of(volume, run, groups, needs)
    rows = {row.name: row for row in found.rows}
    left, taken = rows.get(LEFT_OUT), rows.get(TAKEN)
    return WhatIf(
        files_left_out=left.files if left else 0,
        plain_bytes=plain[0],
        store_bytes_freed=needs.freed_together if left else 0,
        files_taken=taken.files if taken else 0,
        bytes_taken=taken.logical_bytes if taken else 0,
        copies_bytes_more=_more_copies(needs, now, then),
    )


def _is_wanted(policy: Policy, path: bytes, file: FileEntry) -> bool:
    decision = decided(policy, path)
    return file.identity[1] >= decision.min_size_bytes and not decision.excluded


def _more_copies(needs: StoreNeeds, now: Policy, then: Policy) -> int:
    if now.redundancy_threshold == then.redundancy_threshold:
        return 0

    def copies_bytes(policy: Policy) -> int:
        threshold = policy.redundancy_threshold
        return needs.copies_bytes_beyond(threshold) if threshold else 0

    return copies_bytes(then) - copies_bytes(now)
