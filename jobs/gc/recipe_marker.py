"""Reading the needed recipes, and marking the records that they name."""

import time
from collections.abc import Callable

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import show_id
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Cancelled, JobRun
from jobs.gc.recipe_marks import RecipeMarks, Tables

NODES_AT_ONCE = 1024
"""Of 64 KiB at most: a run stops after the nodes of one such call."""

SAVE_EVERY_S = 30.0
"""The reading that is lost by a kill. Saving writes 16 bytes for each recipe, and syncs them."""


class RecipeReading:
    """Reads the nodes of ``marks`` that are fresh, until none is. Problems become findings.

    Native code reads them. A node that it cannot read is repaired here: it is read by the code that
    knows second copies.
    """

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
        self._records = tables[Kind.RECIPES].directory.bases.native
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
        nodes, chunks = self._marks.nodes, self._marks.chunks
        self._run.update(phase="reading recipes", done=0, total=nodes.count())
        try:
            while (read := nodes.read_fresh(self._records, chunks, NODES_AT_ONCE)).taken:
                self.recipes += read.nodes
                self.entries += read.rows
                for node in read.unreadable:
                    self._repair(node)
                self._run.safe_point()
                self._run.update(done=self.recipes)
                if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
                    self._save_whole()
        except Cancelled:
            # Every safe point lies between two reads, so nothing is half marked.
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

    def _repair(self, node: native.store.Unreadable) -> None:
        """Mark the records that a node names by its second copy; a finding if that fails."""
        try:
            payload = self._volume.recipe_records.read(node.id)[1]
            rows = self._marks.nodes.add_node(node.id, payload, self._marks.chunks)
            reason = "not a valid recipe" if rows is None else ""
        except Damaged as error:
            rows, reason = None, str(error)
        if rows is None:
            self._run.findings.add(
                f"recipe {show_id(node.id)}: {reason}; the records that it refers to are kept; run"
                " `dedupd run scrub`"
            )
            return
        self.recipes += 1
        self.entries += rows
