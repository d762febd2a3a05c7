"""The content, size and savings of a volume, by a walk through its complete tree."""

import os
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from dedupd_core.deleted.alarm import read_state
from dedupd_core.errors import CatalogUnusable
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.store_kinds import OWN
from dedupd_core.format.volume_parameters import Chunking
from dedupd_core.store.garbage import Garbage, Weight, garbage_of, weights
from dedupd_core.system import mount_table
from dedupd_core.volume.detached_mount import detached_mount
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.tree.candidates import SHARED_BELOW
from jobs.usage.backlog import Backlog, FileCount, backlog
from jobs.usage.groups import Groups
from jobs.usage.needs import StoreNeeds

CLASSES = 10
"""The number of the largest classes that are shown."""

RUNS = 200
"""The number of the last runs whose skipped and optimized files are counted."""


@dataclass(frozen=True, slots=True)
class Causes:
    """Why bytes of a volume are not stored.

    Headers, recipes, second copies and garbage are not counted here, so the sum is slightly more
    than the saving.
    """

    duplicates_bytes: int
    """Bytes that the store has once and stubs name several times."""
    compression_bytes: int
    refined_bytes: int
    """Bytes that refine has saved beyond compression."""


@dataclass(frozen=True, slots=True)
class ClassSavings:
    """The savings that optimize has measured for a class: the files of one directory below the
    root, of one type. The counts fade, so they are no integers."""

    top: str
    type: str
    files: float
    read_bytes: float
    new_bytes: float
    """Bytes read that the store did not have."""
    saved_bytes: float
    """Freed blocks, minus the growth of the store."""
    rate: float
    """Saved bytes per cost of reading, chunking and compressing."""


@dataclass(frozen=True, slots=True)
class VolumeFigures:
    """The content, size and savings of a volume: the figures of ``dedupd status``, which are its
    JSON (:meth:`to_json`). Files count once for each inode."""

    path: str
    uuid: str
    mounted_at: str | None
    files: int
    files_optimized: int
    logical_bytes: int
    """Lengths of all files, holes included."""
    optimized_bytes: int
    """Lengths of stubs."""
    plain_bytes: int
    """Blocks that all files would use if all were plain: holes count neither here nor as
    saved."""
    occupied_bytes: int
    """Blocks of files and of the store. A shared store counts with the part that the volume needs,
    even if other volumes need it."""
    store_bytes: dict[str, int]
    """Blocks of the store by kind of container."""
    shared_store: str | None
    """The path of the store, if other volumes may be on it."""
    redundancy_bytes: int
    """Blocks of second copies."""
    garbage: Garbage
    saved_bytes: int
    saved_fraction: float
    """Fraction of ``plain_bytes``, 0 to 1."""
    lost_bytes: int
    """The bytes that the volume uses more than without dedupd."""
    causes: Causes | None
    """None for a shared store: shared records belong to no single volume."""
    local_bytes: int
    """Local blocks of stubs, which users have written."""
    classes: list[ClassSavings]
    """The largest classes of files, the best first."""
    judged: FileCount
    """Files that the last optimize run skipped because they would save too little."""
    held_bytes_max: int
    """Bytes of freed blocks that snapshots or copies below may still have."""
    shared_left: FileCount
    """Files that the last optimize run skipped because snapshots or copies below share their
    blocks."""
    backlog: Backlog
    """Plain files by reason; flat in JSON."""
    size_bytes: int
    """The size of the file system."""
    free_bytes: int
    last_run: dict[str, Any] | None
    """The report of the last job in the history."""
    chunking: Chunking
    messages: list[str]
    """The missing figures, and the reasons."""

    def to_json(self) -> dict[str, Any]:
        """Return the row of ``status --json``."""
        row: dict[str, Any] = {}
        for name, value in asdict(self).items():
            row |= self.backlog.to_json() if name == "backlog" else {name: value}
        return row


def volume_figures(volume: Volume) -> VolumeFigures:
    """Return the current figures of one volume. Walks the complete tree; needs no lock."""
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
        named = files.optimized_bytes  # with their holes, which only the cluster's recipes have
    plain = files.own_bytes - files.stubs_own_bytes + files.direct_bytes + named
    weighed = {kind: list(weights(volume.directory(kind))) for kind in Kind}
    dead_min, waiting = volume.policy().compaction_min_dead, backlog(volume, run)
    messages = run.findings.messages
    if (alarm := read_state(volume.base_fd).alarm) is not None:
        messages.append(alarm.message(volume.root))
    space = os.fstatvfs(volume.data_fd)
    points = mount_table.points_of(volume.parameters.uuid)
    if (detached := detached_mount(volume)) is not None:
        messages.append(detached.message)
    try:
        runs = volume.hints.runs(RUNS)
    except CatalogUnusable as error:
        runs = []
        messages.append(f"the last run is unknown: {error}")
    return VolumeFigures(
        path=volume.root,
        uuid=volume.parameters.uuid,
        mounted_at=points[0] if points else None,
        files=files.files,
        files_optimized=files.files_optimized,
        logical_bytes=files.logical_bytes,
        optimized_bytes=files.optimized_bytes,
        plain_bytes=plain,
        occupied_bytes=occupied,
        store_bytes=store,
        shared_store=None if volume.shared is None else volume.shared.path,
        redundancy_bytes=sum(store[kind.name.lower()] for kind in COPIES_OF.values()),
        garbage=garbage_of(chain.from_iterable(weighed.values()), dead_min),
        saved_bytes=max(0, plain - occupied),
        saved_fraction=max(0.0, (plain - occupied) / plain) if plain else 0.0,
        lost_bytes=max(0, occupied - plain),
        causes=_causes(volume, weighed[Kind.CHUNKS], files.direct_bytes + named),
        local_bytes=files.stubs_own_bytes,
        classes=_classes(volume),
        judged=waiting.count("saves_little"),
        held_bytes_max=sum(run.get("shared_taken_bytes", 0) for run in runs),
        shared_left=shared_left(runs),
        backlog=waiting,
        size_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
        last_run=runs[0] if runs else None,
        chunking=volume.parameters.chunking,
        messages=messages,
    )


def shared_left(runs: list[dict[str, Any]]) -> FileCount:
    """Return the files that the last optimize run of ``runs`` has skipped because snapshots or
    copies below share their blocks."""
    last: dict[str, Any] = next((run for run in runs if run["job"] == "optimize"), {})
    files = last.get("files_left", {}).get(SHARED_BELOW, 0)
    return FileCount(files, last.get("shared_left_bytes", 0))


def _causes(volume: Volume, chunks: list[Weight], chunks_bytes: int) -> Causes | None:
    """``chunks``: the containers of chunks. ``chunks_bytes``: bytes of all chunks that stubs name,
    counted once per reference, with files in complete blocks."""
    if volume.store_kind is not OWN:
        return None
    raw = sum(weight.raw_bytes for weight in chunks)
    return Causes(
        duplicates_bytes=max(0, chunks_bytes - raw),
        compression_bytes=sum(weight.compressed_away_bytes for weight in chunks),
        refined_bytes=sum(weight.refined_away_bytes for weight in chunks),
    )


def directory_bytes(path: str) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat().st_blocks * 512 for entry in entries)
    except FileNotFoundError:
        return 0  # a volume of a version without second copies


def _classes(volume: Volume) -> list[ClassSavings]:
    """Return the savings of the largest classes of files, the best first."""
    kept = volume.hints.get(HintKey.CLASSES) or {}
    rows = [ClassSavings(**row) for row in kept.get("classes", [])[:CLASSES]]
    return sorted(rows, key=lambda row: -row.rate)
