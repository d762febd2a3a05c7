"""The references of all trees of a store: every stub, its recipe, and the chunks that they name;
and the lost records that nothing refers to."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import CopiedStub, Damaged, DamagedStub, TamperedStub
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import HOLE, container_of
from dedupd_core.format.stub import Flag, StubAttribute, decode_stub
from dedupd_core.native.tree import CountedStubs, Unreadable
from dedupd_core.store.container.container import has_hole
from dedupd_core.store.container.table_file import LOST
from dedupd_core.store.recipe.recipe_reader import Leaf, UnreadablePart
from dedupd_core.stub.local_blocks import refuse_tampered
from dedupd_core.system.files import opened
from dedupd_core.system.paths import explain, open_beneath, show_path
from dedupd_core.system.processes import cores
from dedupd_core.volume.volume import Volume
from jobs.check.invariants import Finding, Invariant
from jobs.check.record_census import RecordCensus
from jobs.frame.run import JobRun
from jobs.tree.walk import FirstNames, TreeFile, WalkedDirectory, each_directory, unreadable_reason

_INVARIANTS: dict[type[Exception], Invariant] = {
    CopiedStub: Invariant.STUB_PLACE,
    TamperedStub: Invariant.STUB_BLOCKS,
}


class Missing(NamedTuple):
    """A record that something refers to and that is not there.

    ``length`` and ``fingerprint_check`` are those in a recipe's row of a chunk, 0 without a row.
    """

    length: int
    fingerprint_check: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree of one volume. ``prefix`` tells its paths from those of others; ``suspects`` are the
    stubs, by path, that refer to something that is not there."""

    volume: Volume
    prefix: str = ""
    suspects: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class References:
    """The result of a walk through some trees."""

    trees: list[Tree] = field(default_factory=list)
    stubs: int = 0
    plain_files: int = 0
    logical_bytes: int = 0
    unsettled: int = 0
    missing_chunks: dict[int, Missing] = field(default_factory=dict)
    missing_nodes: set[int] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


def references(
    volume: Volume,
    run: JobRun,
    chunks: RecordCensus,
    nodes: RecordCensus,
    *,
    is_exact: bool = False,
    threads: int = 0,
) -> References:
    """Go through the trees of a volume and of its ``fellows``, all of which the job holds: a record
    is needed if any of them needs it. Raises Cancelled.

    ``is_exact``: the chunk that a stub names is compared by all that the stub keeps of its
    fingerprint, which takes a look at the chunk; else by what is known of all chunks. ``threads`` 0
    stands for all cores.
    """
    found = References()
    for member in (volume, *volume.fellows):
        found.trees.append(Tree(member, "" if member is volume else f"{member.root}/"))
        _Walk(found, run, chunks, nodes, is_exact, threads or cores()).walk()
    return found


class _Walk:
    """Counts the references to chunks and recipes, and notes those that lead nowhere, of the tree
    that was ``found`` last."""

    def __init__(
        self,
        found: References,
        run: JobRun,
        chunks: RecordCensus,
        nodes: RecordCensus,
        is_exact: bool,
        threads: int,
    ) -> None:
        self._threads = threads
        self._names = FirstNames()
        self._is_exact = is_exact
        self._tree = found.trees[-1]
        self._volume = self._tree.volume
        self._run = run
        self._chunks = chunks
        self._nodes = nodes
        self._found = found

    def walk(self) -> None:
        """Go through the whole tree. Raises Cancelled."""
        with ExitStack() as stack:
            kinds = fmt.Kind.CHUNKS, fmt.Kind.RECIPES
            directories = [stack.enter_context(self._volume.containers(kind)) for kind in kinds]
            counter = native.tree.StubCounter(
                self._chunks,
                self._nodes,
                *(directory.bases.native for directory in directories),
                attribute=self._volume.space.name,
                seeds=self._volume.space.seeds,
                is_exact=self._is_exact,
            )

            def look(paths: Sequence[bytes]) -> list[CountedStubs | Unreadable]:
                safe_point = self._run.safe_point
                return counter.look_at(self._volume.data_fd, paths, self._threads, safe_point)

            # Closed before the containers: another thread reads the next directories.
            for visited in stack.enter_context(closing(each_directory(look, self._run.safe_point))):
                self._directory(visited)
                self._run.update(files=self._found.stubs + self._found.plain_files)

    def _directory(self, visited: WalkedDirectory[CountedStubs]) -> None:
        found, here = self._found, visited.here
        if isinstance(here, Unreadable):
            where, detail = show_path(visited.path) or ".", unreadable_reason(here.errno)
            self._find(Invariant.TREE_READABLE, where, detail)
            return
        found.stubs += here.stubs
        found.plain_files += here.plain_files
        found.logical_bytes += here.logical_bytes
        for entry in here.files:
            if not self._names.has(entry):
                continue
            file = TreeFile.of(visited.prefix, entry)
            if file.attribute is None:
                found.plain_files += 1
            else:
                found.stubs += 1
                found.logical_bytes += file.identity.size
                self._stub(file.path, file.attribute)

    def _stub(self, path: bytes, attribute: bytes) -> None:
        where = show_path(path)
        try:
            with opened(
                open_beneath(self._volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)
            ) as fd:
                stub = self._volume.space.decode_met(attribute, fd, where)
                refuse_tampered(fd, stub, self._volume.stub_files, where)
        except FileNotFoundError:
            return  # removed or replaced meanwhile, where the volume is in use
        except (DamagedStub, OSError) as error:
            invariant = _INVARIANTS.get(type(error), Invariant.STUB_ATTRIBUTE)
            self._find(invariant, where, explain(error))
            self._keep(attribute)
            return
        if stub.flags.transient:
            self._found.unsettled += 1
        if not self._refer(stub, where):
            self._tree.suspects.append(path)

    def _find(self, invariant: Invariant, where: str, detail: str) -> None:
        self._found.findings.append(Finding(invariant, self._tree.prefix + where, detail))

    def _keep(self, attribute: bytes) -> None:
        """Count the reference of a stub that is not to be read: what it names is needed as long as
        nobody has decided about it."""
        try:
            stub = decode_stub(attribute, self._volume.space.volume_id, "")
        except DamagedStub:
            return
        (self._chunks if Flag.DIRECT in stub.flags else self._nodes).refer(stub.recipe)

    def _refer(self, stub: StubAttribute, where: str) -> bool:
        """Count what a stub refers to; False where any of it is not there."""
        is_direct = Flag.DIRECT in stub.flags
        known = self._chunks if is_direct else self._nodes
        known.refer(stub.recipe)
        if (
            is_direct
            and not self._is_exact
            and known.begins(stub.recipe, stub.digest, stub.covered)
        ):
            return True
        whole = known.is_there(stub.recipe)
        if not whole:
            self._note_root(stub, is_direct)
        try:
            recipe = self._volume.content(stub, where).recipe
        except Damaged:
            return False
        if is_direct:
            return whole
        for part in recipe.leaves():
            self._run.safe_point()
            if isinstance(part, UnreadablePart):
                self._found.missing_nodes.add(part.node)
                whole = False
            else:
                whole = self._leaf(part, stub.recipe) and whole
        for node_id in recipe.inner_ids():
            self._nodes.refer(node_id)
        return whole

    def _note_root(self, stub: StubAttribute, is_direct: bool) -> None:
        if is_direct:
            check = int.from_bytes(stub.digest[:4], "little")
            self._found.missing_chunks.setdefault(stub.recipe, Missing(0, check))
        else:
            self._found.missing_nodes.add(stub.recipe)

    def _leaf(self, leaf: Leaf, root: int) -> bool:
        whole = True
        if leaf.node != root:
            self._nodes.refer(leaf.node)
            if not self._nodes.is_there(leaf.node):
                self._found.missing_nodes.add(leaf.node)
                whole = False
        node, chunks = leaf.content, self._chunks
        for chunk, length, check in zip(
            node.ids, node.lengths, node.fingerprint_checks, strict=True
        ):
            if chunk == HOLE:
                continue
            chunks.refer(chunk)
            if not chunks.holds(chunk, length, check):
                self._found.missing_chunks.setdefault(chunk, Missing(length, check))
                whole = False
        return whole


def count_collected(volume: Volume, known: Mapping[Kind, RecordCensus]) -> int:
    """How many of the quarantined records nothing refers to, and have a hole in their payload;
    second copies aside.

    References must have been counted. A table that was made again from its container cannot tell
    the punched payload of a tombstone from a lost one; the next gc makes it a tombstone again.
    """
    count = 0
    for kind in COPIES_OF:
        lost, references = known[kind].lost, known[kind].references
        unneeded = sorted(record_id for record_id in lost if not references(record_id))
        with volume.containers(kind) as directory:
            for number, ids in groupby(unneeded, container_of):
                try:
                    fd = directory.open_data(number)
                except OSError:
                    continue
                with opened(fd):
                    count += sum(_is_punched(fd, lost[record_id]) for record_id in ids)
    return count


def _is_punched(fd: int, entry: tbl.TableEntry) -> bool:
    return entry.fingerprint != LOST.fingerprint and has_hole(fd, entry.offset, entry.stored_length)
