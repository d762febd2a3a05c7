"""The gc job: what no stub and no open file needs becomes an orphan (docs/upkeep.md).

It only ever marks from the truth: the stubs of the tree, what is open without a name, and the
recipes that these name. Nothing is counted from one run to the next that could be counted wrong.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from dedupd import native
from dedupd.errors import Damaged, DamagedRecipe
from dedupd.failpoint import define, reach
from dedupd.format import table as tbl
from dedupd.format.container import COPIES_OF, FileHeader, Kind, checksum_seed
from dedupd.format.ids import make_id, ordinal_of, show_id
from dedupd.format.recipe import named_by
from dedupd.format.table import State
from dedupd.fsutil import opened, read_at
from dedupd.store.container import data_name, table_name
from dedupd.store.marks import Marks, Needs, ordinals
from dedupd.store.recovery import recover_sound
from dedupd.store.sequential import SequentialReader
from dedupd.store.states import set_states
from dedupd.volume import Volume
from jobs import gc_memory
from jobs.checkpoint import Checkpoints
from jobs.frame import JobRun
from jobs.marking import TreeMarker

_MARKED = define("gc.marked", "everything needed is marked, in memory, nothing is changed")
_SYNCED = define("gc.synced", "the tree is durable as it was walked, nothing is changed")
_SWEPT = define("gc.swept", "the orphans of one container are durable")

BLOCK_ENTRIES = 1 << 16
"""Entries of a table that are looked at together: 4 MiB, however long the table is."""

NODES_AT_ONCE = 1024
"""Of 64 KiB at most: a run stops within the time that reading so many takes."""

_ENTRY_WORDS = tbl.ENTRY_BYTES // 8
_TARGET_WORD = 5
_STATE_BYTE = 60
_UNNEEDED = frozenset((State.ORPHANED, State.TOMBSTONE))


@dataclass(slots=True)
class GcReport:
    """What a run found and did; the JSON form of the report. Bytes are those of payloads."""

    job: str = "gc"
    outcome: str = "done"
    files: int = 0
    stubs: int = 0
    recipes: int = 0
    recipe_entries: int = 0
    chunks: int = 0
    chunks_needed: int = 0
    orphaned_chunks: int = 0
    orphaned_recipes: int = 0
    orphaned_copies: int = 0
    orphaned_bytes: int = 0
    orphans_before: int = 0
    revived: int = 0
    epoch: int = 0
    errors: int = 0
    messages: list[str] = field(default_factory=list)
    resources: dict[str, float] = field(default_factory=dict)
    started_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """One container in order: its header, and how many entries its table has."""

    header: FileHeader
    count: int


class Gc:
    """One collection over one volume. Needs the volume's job lock; the volume may be mounted."""

    def __init__(
        self, volume: Volume, run: JobRun, *, full: bool = False, dry_run: bool = False
    ) -> None:
        """``full``: read all recipes even if nothing has changed since the last run."""
        self._volume = volume
        self._run = run
        self._full = full
        self._dry_run = dry_run
        self._report = GcReport(started_s=run.started_s)
        self._shapes: dict[Kind, dict[int, _Shape]] = {}
        self._epoch = 1

    def run(self) -> GcReport:
        """Mark, then sweep. Raises Cancelled, Busy, NoSpace.

        Where anything could not be read that may name a chunk, nothing is swept: the report says
        what it was.
        """
        # Chunks that only a checkpoint names are garbage from here on.
        if not self._dry_run:
            Checkpoints(self._volume).clear()
        for kind in Kind:
            self._shapes[kind] = self._in_order(kind)
        marks = {kind: Marks(self._counts(kind)) for kind in Kind}
        marks[Kind.STREAMS] = recipes = Needs(self._counts(Kind.STREAMS))
        chunks = marks[Kind.CHUNKS]
        self._run.update(phase="walking the tree")
        roots = TreeMarker(self._volume, self._run, chunks, recipes).mark()
        report = self._report
        report.files, report.stubs = roots.files, roots.stubs
        for problem in roots.problems:
            self._run.findings.add(problem)
        named = {kind: marks[kind].digest() for kind in (Kind.CHUNKS, Kind.STREAMS)}
        if not self._full and gc_memory.is_as_left(self._volume, self._state(named)):
            report.outcome = "nothing has changed since the last run"
            return self.report()
        self._mark_recipes(recipes, chunks)
        self._follow(Kind.CHUNKS, chunks)
        self._follow(Kind.STREAMS, recipes)
        for kind, copies in COPIES_OF.items():
            self._mark_copies(copies, marks[kind], marks[copies])
        report.chunks_needed = chunks.count()
        report.chunks = sum(shape.count for shape in self._shapes[Kind.CHUNKS].values())
        reach(_MARKED)
        if self._run.findings.count:
            report.outcome = "nothing collected: see the messages"
        else:
            self._sweep(marks)
            if not self._dry_run:
                gc_memory.remember(self._volume, self._state(named))
        return self.report()

    def _state(self, named: dict[Kind, bytes]) -> str:
        return gc_memory.digest(named, {kind: self._live(kind) for kind in Kind})

    def _live(self, kind: Kind) -> dict[int, int]:
        """How many live records each container has."""
        live: dict[int, int] = {}
        with self._directory(kind) as dir_fd:
            for number, shape in self._shapes[kind].items():
                live[number] = sum(
                    bytes(block[_STATE_BYTE :: tbl.ENTRY_BYTES]).count(State.LIVE)
                    for _, block in self._blocks(dir_fd, shape)
                )
        return live

    def report(self) -> GcReport:
        """The report, as far as the run got."""
        report = self._report
        report.errors, report.messages = self._run.findings.count, self._run.findings.messages
        report.resources = self._run.resources()
        return report

    # --- before -------------------------------------------------------------------------------

    def _in_order(self, kind: Kind) -> dict[int, _Shape]:
        """Bring every container into a known state. Those that can't be are scrub's: they stay."""
        shapes: dict[int, _Shape] = {}
        uuid, disk = self._volume.space.volume, self._volume.disk
        with self._directory(kind) as dir_fd:
            self._run.update(phase=f"{kind.name.lower()} tables", done=0, total=0)
            for done, state in enumerate(recover_sound(dir_fd, kind, uuid, disk)):
                shapes[state.header.container] = _Shape(state.header, len(state.entries))
                self._run.update(done=done + 1)
                self._run.check()
        return shapes

    def _directory(self, kind: Kind) -> AbstractContextManager[int]:
        return opened(self._volume.open_directory(kind))

    def _counts(self, kind: Kind) -> dict[int, int]:
        return {number: shape.count for number, shape in self._shapes[kind].items()}

    def _blocks(self, dir_fd: int, shape: _Shape) -> Iterator[tuple[int, memoryview]]:
        """The table of a container in pieces, each with the ordinal that it begins with."""
        name = table_name(shape.header.container)
        with opened(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
            for first in range(0, shape.count, BLOCK_ENTRIES):
                self._run.check()
                count = min(BLOCK_ENTRIES, shape.count - first)
                offset = tbl.HEADER_BYTES + first * tbl.ENTRY_BYTES
                yield first, memoryview(read_at(fd, count * tbl.ENTRY_BYTES, offset))

    # --- marking ------------------------------------------------------------------------------

    def _mark_recipes(self, recipes: Needs, chunks: Marks) -> None:
        """Mark what the needed part of every recipe names, and what the nodes below it name.

        Containers are read front to back. Nodes lie behind those that they name, so only files of
        more than one node need another round.
        """
        shapes = self._shapes[Kind.STREAMS]
        self._run.update(phase="reading recipes", done=0, total=recipes.count())
        found_any = True
        while found_any:
            found_any = False
            for number, shape in shapes.items():
                fresh = recipes.take_fresh(number)
                if any(fresh):
                    found_any = True
                    self._mark_container(shape, fresh, recipes, chunks)
        for stray in recipes.strays:
            self._run.findings.add(
                f"recipe {show_id(stray)} is missing; what it names stays; run scrub"
            )

    def _mark_container(self, shape: _Shape, fresh: bytes, recipes: Needs, chunks: Marks) -> None:
        header, report = shape.header, self._report
        number = header.container
        with (
            self._directory(Kind.STREAMS) as dir_fd,
            opened(os.open(data_name(number), os.O_RDONLY, dir_fd=dir_fd)) as fd,
            SequentialReader(fd, _seed(header)) as reader,
        ):
            for first, block in self._blocks(dir_fd, shape):
                length = len(block) // tbl.ENTRY_BYTES
                found = ordinals(fresh[first // 8 : -(-(first + length) // 8)])
                needed = [first + at for at in found]
                for begin in range(0, len(needed), NODES_AT_ONCE):
                    part = needed[begin : begin + NODES_AT_ONCE]
                    for ordinal in self._mark_leaves(
                        fd, header, first, block, part, recipes, chunks
                    ):
                        entry_at = (ordinal - first) * tbl.ENTRY_BYTES
                        entry = tbl.decode_entry(block[entry_at:], _seed(header))
                        self._mark_node(reader, make_id(number, ordinal), entry, recipes, chunks)
                    self._run.check()
                    self._run.update(done=report.recipes, files=report.files)

    def _mark_leaves(
        self,
        fd: int,
        header: FileHeader,
        first: int,
        block: memoryview,
        needed: list[int],
        recipes: Needs,
        chunks: Marks,
    ) -> Sequence[int]:
        """Mark what leaves name, without a step of Python's for each: most nodes are leaves, and as
        they should be. Returns the ordinals of the others, of which nothing is marked."""
        ends = (recipes.needed(make_id(header.container, ordinal)) for ordinal in needed)
        read, rows, left, strays = chunks.native.add_named(
            fd,
            block,
            seed=_seed(header),
            first=first,
            ordinals=array("I", needed),
            ends=array("Q", ends),
        )
        self._report.recipes += read
        self._report.recipe_entries += rows
        chunks.note_strays(strays)
        return memoryview(left).cast("I")

    def _mark_node(
        self,
        reader: SequentialReader,
        own: int,
        entry: tbl.Entry | None,
        recipes: Needs,
        chunks: Marks,
    ) -> None:
        end = recipes.needed(own)
        if entry is not None and entry.state == State.MERGED:
            recipes.need(entry.target, end)
            return
        payload = self._payload(reader, own, entry)
        if payload is not None:
            self._mark_named(own, payload, end, recipes, chunks)

    def _mark_named(
        self, recipe: int, payload: bytes, end: int, recipes: Needs, chunks: Marks
    ) -> None:
        where = f"recipe {show_id(recipe)}"
        try:
            level, ids, last_bytes = named_by(payload, end, where)
        except DamagedRecipe as error:
            self._run.findings.add(f"{error}; what it names stays; run scrub")
            return
        self._report.recipes += 1
        self._report.recipe_entries += len(ids)
        if level == 0:
            chunks.add(ids)
            return
        for node in ids[:-1]:
            recipes.need(node, Needs.WHOLE)
        recipes.need(ids[-1], last_bytes)

    def _payload(
        self, reader: SequentialReader, recipe: int, entry: tbl.Entry | None
    ) -> bytes | None:
        """The bytes of a recipe node; None, with a finding, where it cannot be read."""
        where = f"recipe {show_id(recipe)}"
        try:
            found = None
            if entry is not None and entry.state in tbl.USABLE:
                found = reader.read(ordinal_of(recipe), entry)
            if found is None:
                return self._volume.stream_records.read(recipe)[1]
            record, payload = found
            return native.decode(payload, record.codec, record.raw_length, record.checksum)
        except (Damaged, native.CorruptPayload) as error:
            self._run.findings.add(f"{where}: {error}; what it names stays; run scrub")
            return None

    def _follow(self, kind: Kind, marks: Marks) -> None:
        """Mark what marked records were merged into, and what repeats them: a repaired record names
        the one whose bytes it has, and is all that there is of it where the table was lost."""
        found_any = True
        while found_any:
            found_any = False
            with self._directory(kind) as dir_fd:
                for number, shape in self._shapes[kind].items():
                    for first, block in self._blocks(dir_fd, shape):
                        found_any |= self._follow_block(make_id(number, first), block, marks)

    def _follow_block(self, first_id: int, block: memoryview, marks: Marks) -> bool:
        targets = block.cast("Q")[_TARGET_WORD::_ENTRY_WORDS].tolist()
        found_any = False
        for at in (at for at, target in enumerate(targets) if target):
            own, target, state = (
                first_id + at,
                targets[at],
                block[at * tbl.ENTRY_BYTES + _STATE_BYTE],
            )
            if state == State.ORPHANED:
                self._epoch = max(self._epoch, target + 1)
            elif state == State.MERGED and own in marks and target not in marks:
                marks.add([target])
                found_any |= target in marks
            elif state == State.LIVE and own not in marks and _is_repeated(target, marks):
                marks.add([own])
                found_any = True
        return found_any

    def _mark_copies(self, kind: Kind, marks: Marks, copies: Marks) -> None:
        """Mark the second copies of marked records, and those of records that are lost: nobody can
        tell whether these are needed, and the copy may be all that there is."""
        with self._directory(kind) as dir_fd:
            for number, shape in self._shapes[kind].items():
                for first, block in self._blocks(dir_fd, shape):
                    targets = block.cast("Q")[_TARGET_WORD::_ENTRY_WORDS].tolist()
                    for at, target in enumerate(targets):
                        state = block[at * tbl.ENTRY_BYTES + _STATE_BYTE]
                        if state == State.ORPHANED:
                            self._epoch = max(self._epoch, target + 1)
                        elif _is_repeated(target, marks):
                            copies.add([make_id(number, first + at)])

    # --- sweeping -----------------------------------------------------------------------------

    def _sweep(self, marks: dict[Kind, Marks]) -> None:
        self._report.epoch = self._epoch
        if not self._dry_run:
            # What the walk did not find must not come back after a power cut, once it is gone.
            self._volume.disk.sync_file_system(self._volume.data_fd)
            reach(_SYNCED)
        for kind in Kind:
            shapes = self._shapes[kind]
            self._run.update(phase=f"sweeping {kind.name.lower()}", done=0, total=len(shapes))
            with self._directory(kind) as dir_fd:
                for done, shape in enumerate(shapes.values()):
                    self._run.check()
                    self._sweep_container(dir_fd, shape, marks[kind].bits(shape.header.container))
                    self._run.update(done=done + 1)

    def _sweep_container(self, dir_fd: int, shape: _Shape, bits: bytes) -> None:
        header = shape.header
        for first, block in self._blocks(dir_fd, shape):
            states = bytes(block[_STATE_BYTE :: tbl.ENTRY_BYTES])
            needed = bits[first // 8 :]
            changes: dict[int, tbl.Entry] = {}
            for at, state in enumerate(states):
                is_needed = bool(needed[at >> 3] >> (at & 7) & 1)
                self._report.orphans_before += state == State.ORPHANED
                if state == State.TOMBSTONE or is_needed != (state in _UNNEEDED):
                    continue
                entry = tbl.decode_entry(block[at * tbl.ENTRY_BYTES :], _seed(header))
                if entry is not None:
                    changes[first + at] = self._swept(entry, header.kind)
            if changes and not self._dry_run:
                set_states(self._volume.disk, dir_fd, header, changes)
        reach(_SWEPT)

    def _swept(self, entry: tbl.Entry, kind: Kind) -> tbl.Entry:
        """What becomes of an entry whose state is not what it should be."""
        report = self._report
        if entry.state == State.ORPHANED:
            report.revived += 1
            return entry._replace(state=State.LIVE, target=0)
        if entry.state == State.LIVE:
            report.orphaned_chunks += kind is Kind.CHUNKS
            report.orphaned_recipes += kind is Kind.STREAMS
            report.orphaned_copies += kind not in COPIES_OF
            report.orphaned_bytes += entry.stored_length
            return entry._replace(state=State.ORPHANED, target=self._epoch)
        # Nobody will ask for what it was merged into, or for bytes that failed a check.
        return entry._replace(state=State.TOMBSTONE, target=0)


def _is_repeated(target: int, marks: Marks) -> bool:
    """Whether a record that repeats ``target`` is needed: where that is needed, and where it is
    lost, so that nobody can tell."""
    return target in marks or not marks.knows(target)


def _seed(header: FileHeader) -> int:
    return checksum_seed(header.volume, header.container, header.generation)
