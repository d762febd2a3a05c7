"""What a volume holds, takes and saves: a walk through its whole tree."""

import os
from dataclasses import asdict
from itertools import chain
from typing import Any

from dedupd.errors import CatalogUnusable
from dedupd.format.container import COPIES_OF, Kind
from dedupd.store.garbage import Garbage, garbage_of, weights
from dedupd.system import mount_table
from dedupd.volume.hints import HintKey
from dedupd.volume.volume import Volume
from jobs.tree.candidates import SHARED_BELOW
from jobs.tree.judged_files import load_ledger
from jobs.tree.walk import walk

CLASSES = 10
"""How many of the largest classes are shown."""

RUNS = 200
"""How many of the last runs are asked what they have left, and taken."""


def volume_figures(volume: Volume) -> dict[str, Any]:
    """The figures of one volume, as it is now; ``messages`` say what of it cannot be had.

    ``classes``: the largest classes of files, and what optimize has found them to save, the best
    first. ``judged``: plain files, and bytes, that would save too little. ``held_bytes_max``: of
    what files have given up, as much may be held by snapshots, or by copies below.
    ``shared_left``: files, and bytes, that the last optimize run left for that.
    """
    stubs = plain = stub_bytes = plain_bytes = allocated = 0
    errors: list[str] = []
    ledger = load_ledger(volume, volume.policy())
    judged = judged_bytes = 0
    for found in walk(volume, errors=errors):
        allocated += found.allocated_bytes
        if found.is_stub:
            stubs += 1
            stub_bytes += found.identity.size
        else:
            plain += 1
            plain_bytes += found.identity.size
            if ledger.saving_of(found.identity) is not None:
                judged += 1
                judged_bytes += found.identity.size
    store = {kind.name.lower(): _directory_bytes(volume.directory(kind)) for kind in Kind}
    logical = stub_bytes + plain_bytes
    occupied = allocated + sum(store.values())
    space = os.fstatvfs(volume.data_fd)
    points = mount_table.points_of(volume.parameters.uuid)
    try:
        runs = volume.hints.runs(RUNS)
    except CatalogUnusable as error:
        runs = []
        errors.append(f"the last run is not known: {error}")
    return {
        "path": volume.root,
        "uuid": volume.parameters.uuid,
        "mounted_at": points[0] if points else None,
        "files": stubs + plain,
        "files_optimized": stubs,
        "logical_bytes": logical,
        "optimized_bytes": stub_bytes,
        "occupied_bytes": occupied,
        "store_bytes": store,
        "redundancy_bytes": sum(store[kind.name.lower()] for kind in COPIES_OF.values()),
        "garbage": asdict(_garbage(volume)),
        "saved_bytes": max(0, logical - occupied),
        "saved_fraction": max(0.0, (logical - occupied) / logical) if logical else 0.0,
        "lost_bytes": max(0, occupied - logical),
        "classes": _classes(volume),
        "judged": {"files": judged, "bytes": judged_bytes},
        "held_bytes_max": sum(run.get("shared_taken_bytes", 0) for run in runs),
        "shared_left": shared_left(runs),
        "free_bytes": space.f_bavail * space.f_frsize,
        "last_run": runs[0] if runs else None,
        "chunking": asdict(volume.parameters.chunking),
        "messages": errors,
    }


def shared_left(runs: list[dict[str, Any]]) -> dict[str, int]:
    """How many files, and bytes, the last optimize run of these has left because snapshots, or
    copies below, have their blocks as well."""
    last: dict[str, Any] = next((run for run in runs if run["job"] == "optimize"), {})
    files = last.get("files_left", {}).get(SHARED_BELOW, 0)
    return {"files": files, "bytes": last.get("shared_left_bytes", 0)}


def _garbage(volume: Volume) -> Garbage:
    uuid, dead_min = volume.space.volume_id, volume.policy().compaction_min_dead
    kinds = (weights(volume.directory(kind), kind, uuid) for kind in Kind)
    return garbage_of(chain.from_iterable(kinds), dead_min)


def _directory_bytes(path: str) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_blocks * 512 for entry in entries)
    except FileNotFoundError:
        return 0  # a volume from before there were second copies


def _classes(volume: Volume) -> list[dict[str, Any]]:
    """What optimize knows of the largest classes of files, the best first."""
    kept = volume.hints.get(HintKey.CLASSES) or {}
    return sorted(kept.get("classes", [])[:CLASSES], key=lambda row: -row["rate"])
