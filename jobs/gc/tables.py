"""The redirection tables that a collection goes through."""

from contextlib import ExitStack

import xxhash

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.store.container.table_scan import TableScan
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun

Tables = dict[Kind, TableScan]
"""The tables of each kind of container."""

_KEPT = bytes(state if state in (tbl.State.LIVE, tbl.State.MERGED) else 0 for state in range(256))
"""A compaction turns the other states into each other: that is no change."""

_LENGTH_BYTES = 8


def recovered_tables(volume: Volume, run: JobRun, files: ExitStack) -> Tables:
    """The tables of a volume, every container brought into a known state; closed with ``files``.

    Needs the job lock. Raises Cancelled.
    """
    tables: Tables = {}
    for kind in Kind:
        directory = files.enter_context(volume.containers_to_empty(kind))
        tables[kind] = TableScan(directory, run.safe_point)
        for _ in run.each(f"{kind.name.lower()} tables", tables[kind].recover()):
            pass
    return tables


def kept_digests(tables: TableScan) -> dict[int, int]:
    """Of each container a digest of which of its records are live, and which are merged."""
    kept: dict[int, int] = {}
    for number in tables.shapes:
        digest = xxhash.xxh3_128()
        for block in tables.blocks([tables.whole(number)]):
            digest.update(block.states().translate(_KEPT))
        kept[number] = digest.intdigest()
    return kept


def needed_digest(recipes: TableScan, number: int, lengths: memoryview) -> int:
    """A digest of the fingerprints of those recipe nodes of which any byte is needed.

    It stays the same while the container grows. ``lengths`` are bytes of u64. Has no safe point: a
    run that is being stopped needs it too.
    """
    digest = 0
    for block in recipes.blocks_of(recipes.whole(number)):
        part = lengths[block.first * _LENGTH_BYTES : block.end * _LENGTH_BYTES]
        if part:
            digest = native.upkeep.digest_needed(block.entries, part, digest)
    return digest
