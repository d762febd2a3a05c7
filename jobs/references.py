"""What the tree refers to: every stub, its recipe, and the chunks that they name."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dedupd.errors import Damaged, DamagedStub
from dedupd.format.ids import HOLE, show_id
from dedupd.format.stub import Flag, StubAttribute, decode_stub
from dedupd.fsutil import show_path
from dedupd.store.recipes import Broken, Leaf
from dedupd.volume import Volume
from jobs.frame import JobRun
from jobs.invariants import Finding, Invariant
from jobs.known import KnownRecords
from jobs.scan import Found, walk


class Missing(NamedTuple):
    """A record that something refers to and that is not there.

    ``length`` and ``check`` are what a recipe says of a chunk; 0 where nothing does.
    """

    length: int
    check: int


@dataclass(slots=True)
class References:
    """What a walk through the tree found.

    ``suspects`` are the stubs, by path, that refer to something that is not there.
    """

    stubs: int = 0
    plain_files: int = 0
    logical_bytes: int = 0
    unsettled: int = 0
    suspects: list[bytes] = field(default_factory=list)
    missing_chunks: dict[int, Missing] = field(default_factory=dict)
    missing_nodes: set[int] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


class ReferenceWalk:
    """Counts the references to chunks and recipes, and notes those that lead nowhere.

    ``is_exact``: the chunk that a stub names is compared by all that the stub keeps of its
    fingerprint, which takes a look at the chunk; else by what is known of all chunks.
    """

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        chunks: KnownRecords,
        nodes: KnownRecords,
        *,
        is_exact: bool = False,
    ) -> None:
        self._is_exact = is_exact
        self._volume = volume
        self._run = run
        self._chunks = chunks
        self._nodes = nodes
        self._found = References()

    def walk(self) -> References:
        """Go through the whole tree. Raises Cancelled."""
        unreadable: list[str] = []
        result = self._found
        for found in walk(self._volume, errors=unreadable):
            self._run.check()
            if found.is_stub:
                result.stubs += 1
                result.logical_bytes += found.identity.size
                self._stub(found)
            else:
                result.plain_files += 1
            self._run.update(files=result.stubs + result.plain_files)
        for message in unreadable:
            where, _, detail = message.partition(": ")
            result.findings.append(Finding(Invariant.TREE_READABLE, where, detail))
        return result

    def _stub(self, found: Found) -> None:
        assert found.attribute is not None
        where = show_path(found.path)
        try:
            stub = decode_stub(found.attribute, self._volume.space.volume, where)
        except DamagedStub as error:
            self._found.findings.append(Finding(Invariant.STUB_ATTRIBUTE, where, str(error)))
            return
        if stub.flags.transient:
            self._found.unsettled += 1
        if not self._refer(stub, where):
            self._found.suspects.append(found.path)

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
            if isinstance(part, Broken):
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
        for chunk, length, check in zip(node.ids, node.lengths, node.checks, strict=True):
            if chunk == HOLE:
                continue
            chunks.refer(chunk)
            if not chunks.holds(chunk, length, check):
                self._found.missing_chunks.setdefault(chunk, Missing(length, check))
                whole = False
        return whole


class Hit(NamedTuple):
    """A range of a file, [start, end), whose bytes are not to be had, and why."""

    start: int
    end: int
    record: int
    is_recipe: bool
    reason: str


def hits(volume: Volume, stub: StubAttribute, where: str, chunks: KnownRecords) -> Iterator[Hit]:
    """The ranges of a stub's recipe that cannot be read, whether the file needs them or not.

    ``chunks`` says which chunks are there; damaged nodes are found by reading them.
    """
    try:
        recipe = volume.content(stub, where).recipe
    except Damaged as error:
        yield Hit(0, stub.covered, stub.recipe, Flag.DIRECT not in stub.flags, str(error))
        return
    for part in recipe.leaves():
        if isinstance(part, Broken):
            yield Hit(part.offset, part.offset + part.length, part.node, True, part.reason)
            continue
        node = part.content
        rows = zip(node.ids, node.lengths, node.checks, node.offsets, strict=True)
        for chunk, length, check, offset in rows:
            if chunk != HOLE and not chunks.holds(chunk, length, check):
                start = part.offset + offset
                reason = f"chunk {show_id(chunk)} is missing, damaged or another one"
                yield Hit(start, start + length, chunk, False, reason)
