"""What a volume holds, takes and saves: a walk through its whole tree."""

import os
from dataclasses import asdict
from itertools import chain
from typing import Any

from dedupd_core.deleted.alarm import read_state
from dedupd_core.errors import CatalogUnusable
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.store_kinds import OWN
from dedupd_core.store.garbage import Weight, garbage_of, weights
from dedupd_core.system import mount_table
from dedupd_core.volume.detached_mount import detached_mount
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.tree.candidates import SHARED_BELOW
from jobs.usage.backlog import backlog
from jobs.usage.groups import Groups
from jobs.usage.needs import StoreNeeds

CLASSES = 10
"""How many of the largest classes are shown."""

RUNS = 200
"""How many of the last runs are asked what they have left, and taken."""


def volume_figures(volume: Volume) -> dict[str, Any]:
    """The figures of one volume, as it is now; ``messages`` say what of it cannot be had.

    ``plain_bytes``: what all files would take if none was a stub, in blocks: holes count neither
    there nor as saved. Of a ``shared_store`` a volume occupies what it needs, others or not.
    ``classes``: the largest classes of files, and what optimize has found them to save, the best
    first. ``held_bytes_max``: of what files have given up, as much may be held by
    snapshots, or by copies below. ``judged`` and ``shared_left``: files, and bytes, that the last
    optimize run left because they would save too little, or because snapshots, or copies below,
    have their blocks. ``causes``: why bytes are not stored; ``local_bytes`` lie in stubs' own
    blocks, since they were written to.
    """
    run = JobRun("status")
    needs = StoreNeeds(volume, run)
    groups = Groups(volume, run, needs)
    groups.by_path([b""], [""], "")
    files = groups.all[1]
    store = {kind.name.lower(): directory_bytes(volume.directory(kind)) for kind in Kind}
    if volume.shared is None:
        needs.count_plain(1)
        occupied = files.own_bytes + sum(store.values())
    else:
        needs.count(1)
        occupied = files.own_bytes + needs.native.taken(1).bytes
    named = needs.native.taken(1).plain_bytes
    if not volume.store_kind.has_containers:
        named = files.optimized_bytes  # with their holes, of which recipes elsewhere tell
    plain = files.own_bytes - files.stubs_own_bytes + files.direct_bytes + named
    weighed = {kind: list(weights(volume.directory(kind))) for kind in Kind}
    dead_min, left = volume.policy().compaction_min_dead, backlog(volume, run).to_json()
    errors = run.findings.messages
    if (alarm := read_state(volume.base_fd).alarm) is not None:
        errors.append(alarm.message(volume.root))
    space = os.fstatvfs(volume.data_fd)
    points = mount_table.points_of(volume.parameters.uuid)
    if (detached := detached_mount(volume)) is not None:
        errors.append(detached.message)
    try:
        runs = volume.hints.runs(RUNS)
    except CatalogUnusable as error:
        runs = []
        errors.append(f"the last run is unknown: {error}")
    return {
        "path": volume.root,
        "uuid": volume.parameters.uuid,
        "mounted_at": points[0] if points else None,
        "files": files.files,
        "files_optimized": files.files_optimized,
        "logical_bytes": files.logical_bytes,
        "optimized_bytes": files.optimized_bytes,
        "plain_bytes": plain,
        "occupied_bytes": occupied,
        "store_bytes": store,
        "shared_store": None if volume.shared is None else volume.shared.path,
        "redundancy_bytes": sum(store[kind.name.lower()] for kind in COPIES_OF.values()),
        "garbage": asdict(garbage_of(chain.from_iterable(weighed.values()), dead_min)),
        "saved_bytes": max(0, plain - occupied),
        "saved_fraction": max(0.0, (plain - occupied) / plain) if plain else 0.0,
        "lost_bytes": max(0, occupied - plain),
        "causes": _causes(volume, weighed[Kind.CHUNKS], files.direct_bytes + named),
        "local_bytes": files.stubs_own_bytes,
        "classes": _classes(volume),
        "judged": {"files": left["saves_little_files"], "bytes": left["saves_little_bytes"]},
        "held_bytes_max": sum(run.get("shared_taken_bytes", 0) for run in runs),
        "shared_left": shared_left(runs),
        **left,
        "size_bytes": space.f_blocks * space.f_frsize,
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


def _causes(volume: Volume, chunks: list[Weight], chunks_bytes: int) -> dict[str, int] | None:
    """What is not stored, by why. ``chunks``: the containers of chunks; ``chunks_bytes``: of all
    chunks that stubs name, each as often as it is named, and files in whole blocks. None of a store
    that others are on, too: what they share belongs to none.

    Headers, recipes, second copies and garbage are not counted here, so the sum is a little more
    than what is saved.
    """
    if volume.store_kind is not OWN:
        return None
    raw = sum(one.raw_bytes for one in chunks)
    return {
        "duplicates_bytes": max(0, chunks_bytes - raw),
        "compression_bytes": sum(one.compressed_away_bytes for one in chunks),
        "refined_bytes": sum(one.refined_away_bytes for one in chunks),
    }


def directory_bytes(path: str) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_blocks * 512 for entry in entries)
    except FileNotFoundError:
        return 0  # a volume from before there were second copies


def _classes(volume: Volume) -> list[dict[str, Any]]:
    """What optimize knows of the largest classes of files, the best first."""
    kept = volume.hints.get(HintKey.CLASSES) or {}
    return sorted(kept.get("classes", [])[:CLASSES], key=lambda row: -row["rate"])
