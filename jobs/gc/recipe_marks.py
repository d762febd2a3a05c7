"""The tables of a collection, and the marks of records that recipes name, which it keeps for the
next one.

A recipe never changes, so the records that a set of recipes leads to do not change either. A later
run whose tree names all of these recipes, and as much of each, only adds the records that its tree
names beyond them (docs/design/collection.md).
"""

from contextlib import ExitStack, closing

import xxhash

from dedupd_core import native
from dedupd_core.errors import DamagedTable, NoSpace, PolicyError
from dedupd_core.failpoint import define, reach
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.native.upkeep import Marks, Needs
from dedupd_core.store import saved_marks
from dedupd_core.store.container.table_scan import TableScan
from dedupd_core.store.saved_marks import ChunkSection, RecipeSection, SavedMarks, SavedMarksWriter
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun

Tables = dict[Kind, TableScan]
"""The tables of each kind of container."""

_KEPT = bytes(
    state if state in (tbl.State.LIVE, tbl.State.MERGED, tbl.State.QUARANTINED) else 0
    for state in range(256)
)
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
    """For each container a digest of the records that are live, merged or quarantined."""
    kept: dict[int, int] = {}
    for number in tables.shapes:
        digest = xxhash.xxh3_128()
        for block in tables.blocks([tables.whole(number)]):
            digest.update(block.states().translate(_KEPT))
        kept[number] = digest.intdigest()
    return kept


def needed_digest(recipes: TableScan, number: int, lengths: memoryview) -> int:
    """A digest of the fingerprints of the needed recipe nodes.

    It stays the same while the container grows. ``lengths`` are bytes of u64. Has no safe point: a
    run that is being stopped needs it too.
    """
    digest = 0
    for block in recipes.blocks_of(recipes.whole(number)):
        part = lengths[block.first * _LENGTH_BYTES : block.end * _LENGTH_BYTES]
        if part:
            digest = native.upkeep.digest_needed(block.entries, part, digest)
    return digest


_SAVED = define("gc.marks-saved", "the marks of the recipes read so far are durable")


class RecipeMarks:
    """Marks of all that the recipes of stubs lead to: ``nodes``, of which those to be read are
    fresh, and the ``chunks`` of the others. ``wanted`` are the nodes that stubs name."""

    def __init__(self, wanted: Needs, tables: Tables) -> None:
        """Nothing is read: all that is wanted is fresh."""
        self.are_known = False
        """Whether all that is not fresh was known from an earlier run, which has saved it."""
        self.wanted = wanted
        self.nodes = wanted.copy()
        self.chunks = Marks(tables[Kind.CHUNKS].counts())

    @property
    def are_whole(self) -> bool:
        """Whether every id was one of a record: nothing is known of the records below another."""
        return not (self.chunks.strays or self.nodes.strays)


def resumed(volume: Volume, tables: Tables, wanted: Needs) -> RecipeMarks | None:
    """The marks that an earlier run has saved, with what is wanted beyond them fresh.

    None where there are none that can be read, or where they are not to be built upon: because
    something that was wanted then no longer is, or because an id stands for another record now.
    """
    marks = RecipeMarks(wanted, tables)
    marks.are_known = True
    try:
        with closing(SavedMarks(volume.store.base_fd, volume.space.volume_id)) as saved:
            for section in saved.sections():
                if isinstance(section, ChunkSection):
                    is_taken = marks.chunks.merge(section.container, section.named)
                else:
                    is_taken = _take_nodes(section, marks, tables)
                if not is_taken:
                    return None
    except (OSError, DamagedTable):
        return None
    return marks


def _take_nodes(section: RecipeSection, marks: RecipeMarks, tables: Tables) -> bool:
    """Take over the saved marks of a container of recipes, if all of them still hold."""
    number = section.container
    if number not in tables[Kind.RECIPES].shapes:
        return not any(section.needed)
    # The fingerprint of a recipe stands for its content. An id has another fingerprint only where
    # a part of the store was lost, or brought back from an older copy.
    digest = needed_digest(tables[Kind.RECIPES], number, memoryview(section.needed))
    return digest == section.fingerprints and marks.nodes.resume(
        number, section.wanted, section.needed, section.fresh
    )


def save(volume: Volume, tables: Tables, marks: RecipeMarks) -> None:
    """Keep marks for the next run, in place of those before. They must be whole. Where there is no
    room for them, or no policy that says how much, it marks everything itself."""
    base_fd = volume.store.base_fd
    try:
        room = volume.store_room()
        with closing(
            SavedMarksWriter(base_fd, volume.space.volume_id, volume.disk, room)
        ) as writer:
            for number, shape in sorted(tables[Kind.CHUNKS].shapes.items()):
                writer.add_chunks(ChunkSection(number, shape.count, marks.chunks.bits(number)))
            for number, shape in sorted(tables[Kind.RECIPES].shapes.items()):
                needed = marks.nodes.lengths(number)
                writer.add_recipes(
                    RecipeSection(
                        number,
                        shape.count,
                        needed_digest(tables[Kind.RECIPES], number, memoryview(needed)),
                        marks.wanted.lengths(number),
                        needed,
                        marks.nodes.fresh(number),
                    )
                )
            writer.complete()
    except (NoSpace, PolicyError):
        saved_marks.remove_unfinished(base_fd, volume.disk)
        return
    reach(_SAVED)
