"""The records that groups of files need, and what a collection would free without some of them.

The other volumes of a shared store need records as well: these count as the rest.

Tables and recipes are read as they are, without the job lock: nothing is changed.
"""

import os
from collections.abc import Iterator, Sequence

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedStub, UnseenMember
from dedupd_core.format.container import COPIES_OF, Kind, seed_of
from dedupd_core.format.ids import show_id
from dedupd_core.format.stub import Flag, StubAttribute, decode_stub
from dedupd_core.native.tree import StubUsage, Unreadable
from dedupd_core.shared.fellows import opened_member, others
from dedupd_core.store.container.table_scan import LoadedTable, loaded_tables
from dedupd_core.store.garbage import weigh
from dedupd_core.system.paths import explain
from dedupd_core.units import align_up
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun, checked
from jobs.tree.stub_sizes import summed
from jobs.tree.walk import each_directory, unreadable

REST = 0
"""The group of all other files. It is processed last."""


class StoreNeeds:
    """The needs of groups in a store. Name all groups first, then count, then query."""

    def __init__(self, volume: Volume, run: JobRun) -> None:
        self._volume = volume
        self._run = run
        self._is_sharing = False
        self.native = native.upkeep.Usage()
        self.freed: dict[int, int] = {}
        """Bytes that a collection and a complete compaction would free without a group."""
        self.freed_together = 0
        """The same without all groups except the rest."""
        self.shares_counted = False

    def count(self, groups: int) -> None:
        """Count what groups 1 to ``groups``, and the rest, have named. Raises Cancelled."""
        for kind, copies in COPIES_OF.items():
            self._run.update(phase=f"{kind.name.lower()} tables", done=0, total=0)
            for table in self._tables(kind):
                number, seed = table.header.container, seed_of(table.header)
                self.native.add_table(kind is Kind.RECIPES, number, table.entries, seed)
            for table in self._tables(copies):
                self.native.add_copies(kind is Kind.RECIPES, table.entries, seed_of(table.header))
        self.count_plain(groups)

    def count_shares(self, groups: int) -> None:
        """Split the bytes of each record among its references. Raises Cancelled."""
        self._is_sharing = self.shares_counted = True
        for group in range(groups + 1):
            self.native.again(group)
        self.count_plain(groups)

    def weigh(self) -> None:
        """Compute the bytes that would be freed. Raises Cancelled."""
        for kind, copies in COPIES_OF.items():
            self._run.update(phase=f"measuring {kind.name.lower()}", done=0, total=0)
            for of, is_copies in ((kind, False), (copies, True)):
                with self._volume.containers(of) as directory:
                    last = max(directory.numbers(), default=0)
                for table in self._tables(of):
                    is_last = table.header.container == last
                    self._weigh(kind is Kind.RECIPES, table, is_copies, is_last)

    def copies_bytes_beyond(self, references: int) -> int:
        """Return the bytes of one copy of each chunk that has more references."""
        return sum(
            self.native.referred_more_than(references, table.header.container, table.entries)[1]
            for table in self._tables(Kind.CHUNKS)
        )

    def name(self, group: int, stub: StubAttribute, count: int = 1) -> None:
        """Note the record that a group's stub names; ``count`` 0 if its file counts elsewhere."""
        record = stub.recipe.to_bytes(8, "little")
        if stub.flags & Flag.DIRECT:
            self.native.name(group, record, b"", b"", count)
        else:
            self.native.name(group, b"", record, stub.covered.to_bytes(8, "little"), count)

    # --- recipes ------------------------------------------------------------------------------

    def count_plain(self, groups: int) -> None:
        """Compute only the size of the groups' stubs as plain files, without tables.
        Raises Cancelled.

        Each group needs several rounds if its files have several recipe nodes.
        """
        if not self._volume.store_kind.has_containers:
            return  # recipes and chunks are in no container: they use no space here
        self._run.update(phase="reading recipes", done=0, total=groups + 1)
        records, check = self._volume.recipe_records.native_reader, self._run.safe_point
        for done, group in enumerate((*range(1, groups + 1), REST)):
            while unreadable := self.native.read(group, records, self._is_sharing, check):
                for node in unreadable:
                    self._repair(group, node.id)
            self._run.update(done=done + 1)

    def _repair(self, group: int, recipe: int) -> None:
        """Add a node that native code cannot read, from its second copy."""
        try:
            payload = self._volume.recipe_records.read(recipe)[1]
            is_node = self.native.add_node(group, recipe, payload, self._is_sharing)
            reason = "" if is_node else "not a valid recipe"
        except (Damaged, OSError) as error:
            reason = explain(error)
        if reason and not self._is_sharing:
            self._run.findings.add(
                f"recipe {show_id(recipe)}: {reason}; the records that it refers to are not"
                " counted; run `dedupd run scrub`"
            )

    # --- tables -------------------------------------------------------------------------------

    def _tables(self, kind: Kind) -> Iterator[LoadedTable]:
        with self._volume.containers(kind) as directory:
            yield from loaded_tables(directory, self._run.safe_point)

    def _weigh(self, recipes: bool, table: LoadedTable, of_copies: bool, is_last: bool) -> None:
        number, seed = table.header.container, seed_of(table.header)
        block = os.fstatvfs(self._volume.data_fd).f_frsize

        def kept_bytes(gone: int | None = None, rest: int | None = None) -> int:
            after = self.native.collected(
                recipes, number, table.entries, seed, of_copies=of_copies, gone=gone, rest=rest
            )
            weight = weigh(after, seed, 0)
            if weight.is_dead and not is_last:
                return 0  # it is removed, with its table
            return align_up(weight.needed_bytes, block) + align_up(weight.table_bytes, block)

        now = kept_bytes()
        self.freed_together += now - kept_bytes(rest=REST)
        copies = table.entries if of_copies else None
        for group in self.native.sole_groups(recipes, number, copies):
            self._run.safe_point()
            self.freed[group] = self.freed.get(group, 0) + now - kept_bytes(gone=group)


def name_others(volume: Volume, run: JobRun, needs: StoreNeeds) -> None:
    """Name the needs of the other volumes as those of the rest. An unreachable volume is a finding:
    the figures for freed bytes are then too high. Raises Cancelled."""
    shared = volume.shared
    if shared is None:
        return
    for member in others(volume).values():
        try:
            with opened_member(shared, member) as other:
                _name(other, run, needs)
        except UnseenMember as error:
            run.findings.add(f"its chunks are not counted: {error}")


def _name(other: Volume, run: JobRun, needs: StoreNeeds) -> None:
    def look(directories: Sequence[bytes]) -> Sequence[StubUsage | Unreadable]:
        return summed(other, directories, run.safe_point)

    for directory, _, here in each_directory(look, run.safe_point):
        if isinstance(here, Unreadable):
            run.findings.add(f"{other.root}: {unreadable(directory, here.errno)}")
            continue
        for sums in here.sums.values():
            needs.native.name(REST, sums.chunks, sums.recipes, sums.covered)
        for file in checked(here.files, run.safe_point):
            if file.attribute is None:
                continue
            try:
                needs.name(REST, decode_stub(file.attribute, other.space.volume_id, ""))
            except DamagedStub:
                continue  # a finding of that volume
