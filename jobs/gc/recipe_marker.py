"""Reading the needed recipes, and marking the records that they name."""

import time
from collections.abc import Callable, Sequence

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedRecipe
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind, seed_of
from dedupd_core.format.ids import (
    PackedLengths,
    PackedOrdinals,
    ordinal_of,
    show_id,
    unpack_ordinals,
)
from dedupd_core.format.recipe import named_by
from dedupd_core.store.container.scan import SequentialReader
from dedupd_core.store.container.table_scan import TableBlock
from dedupd_core.store.mark_set import Needs
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Cancelled, JobRun
from jobs.gc.recipe_marks import RecipeMarks, Tables

NODES_AT_ONCE = 1024
"""Of 64 KiB at most: a run stops within the time that reading so many takes. A multiple of 8."""

SAVE_EVERY_S = 30.0
"""The reading that is lost by a kill. Saving writes 16 bytes for each recipe, and syncs them."""


class RecipeReading:
    """Reads the nodes of ``marks`` that are fresh, until none is. Problems become findings."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        tables: Tables,
        marks: RecipeMarks,
        save: Callable[[RecipeMarks], None],
    ) -> None:
        """``save`` is called with whole marks, now and then, and when the run is stopped."""
        self._volume = volume
        self._run = run
        self._tables = tables
        self._marks = marks
        self._save = save
        self._saved_s = time.monotonic()
        self.recipes = 0
        """Nodes read."""
        self.entries = 0
        """Rows in the needed parts of them."""

    def mark(self) -> None:
        """Mark the records that the needed part of every recipe names, and the nodes below it.

        Containers are read front to back. Nodes lie after those that they name, so only files of
        more than one node need another round. Raises Cancelled.
        """
        nodes = self._marks.nodes
        self._run.update(phase="reading recipes", done=0, total=nodes.count())
        try:
            found_any = True
            while found_any:
                found_any = False
                for number in self._tables[Kind.RECIPES].shapes:
                    if any(nodes.fresh(number)):
                        found_any = True
                        self._mark_container(number)
        except Cancelled:
            # Every safe point lies between two parts, so nothing is half marked.
            self._save_whole()
            raise
        if self.recipes or not self._marks.are_known:
            self._save_whole()

    def _save_whole(self) -> None:
        """Save the marks, unless something could not be read: then that is not marked, and yet no
        longer fresh."""
        self._saved_s = time.monotonic()
        if self._marks.are_whole and not self._run.findings.count:
            self._save(self._marks)

    def _mark_container(self, number: int) -> None:
        tables, nodes = self._tables[Kind.RECIPES], self._marks.nodes
        with (
            opened(tables.directory.open_data(number)) as fd,
            SequentialReader(fd, seed_of(tables.shapes[number].header)) as reader,
        ):
            for block in tables.blocks([tables.whole(number)]):
                for first in range(block.first, block.end, NODES_AT_ONCE):
                    end = min(first + NODES_AT_ONCE, block.end)
                    ordinals, ends = nodes.take_fresh(number, first, end)
                    if ordinals:
                        self._mark_part(reader, block, ordinals, ends)
                        self._between_parts()

    def _between_parts(self) -> None:
        self._run.safe_point()
        self._run.update(done=self.recipes)
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self._save_whole()

    def _mark_part(
        self,
        reader: SequentialReader,
        block: TableBlock,
        ordinals: PackedOrdinals,
        ends: PackedLengths,
    ) -> None:
        """Mark the records that the beginnings of some nodes name: all of them, in one go."""
        for ordinal in self._mark_leaves(reader, block, ordinals, ends):
            at = ordinal - block.first
            self._mark_node(reader, block.first_id + at, block.entry(at))

    def _mark_leaves(
        self,
        reader: SequentialReader,
        block: TableBlock,
        ordinals: PackedOrdinals,
        ends: PackedLengths,
    ) -> Sequence[int]:
        """Mark the chunks of leaves, natively: most nodes are sound leaves. Returns the ordinals of
        the other nodes, of which nothing is marked."""
        chunks = self._marks.chunks
        named = chunks.add_named(
            reader.fd,
            block.entries,
            seed=seed_of(block.header),
            first=block.first,
            ordinals=ordinals,
            ends=ends,
        )
        self.recipes += named.leaves
        self.entries += named.rows
        chunks.note_strays(named.strays)
        return unpack_ordinals(named.left)

    def _mark_node(self, reader: SequentialReader, own: int, entry: tbl.TableEntry | None) -> None:
        nodes = self._marks.nodes
        end = nodes.needed(own)
        if entry is not None and entry.state == tbl.State.MERGED:
            nodes.need(entry.target, end)
            return
        payload = self._payload(reader, own, entry)
        if payload is not None:
            self._mark_named(own, payload, end)

    def _mark_named(self, recipe: int, payload: bytes, end: int) -> None:
        nodes, where = self._marks.nodes, f"recipe {show_id(recipe)}"
        try:
            level, ids, last_bytes = named_by(payload, end, where)
        except DamagedRecipe as error:
            self._run.findings.add(
                f"{error}; the records that it refers to are kept; run `dedupd run scrub`"
            )
            return
        self.recipes += 1
        self.entries += len(ids)
        if level == 0:
            self._marks.chunks.add(ids)
            return
        for node in ids[:-1]:
            nodes.need(node, Needs.WHOLE)
        nodes.need(ids[-1], last_bytes)

    def _payload(
        self, reader: SequentialReader, recipe: int, entry: tbl.TableEntry | None
    ) -> bytes | None:
        """The bytes of a recipe node; None, with a finding, where it cannot be read."""
        where = f"recipe {show_id(recipe)}"
        try:
            found = None
            if entry is not None and entry.state in tbl.USABLE:
                found = reader.read(ordinal_of(recipe), entry)
            if found is None:
                return self._volume.recipe_records.read(recipe)[1]
            record, payload = found
            return native.codec.decode(payload, record.codec, record.raw_length, record.checksum)
        except (Damaged, native.codec.CorruptPayload) as error:
            self._run.findings.add(
                f"{where}: {error}; the records that it refers to are kept; run `dedupd run scrub`"
            )
            return None
