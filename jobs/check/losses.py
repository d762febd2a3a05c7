"""The cost of damage: the files, and the ranges of them, whose bytes are nowhere."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import Damaged, DamagedStub
from dedupd_core.format.ids import HOLE, show_id
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.store.recipe.recipe_reader import UnreadablePart
from dedupd_core.stub.transition import local_ranges
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.volume.volume import Volume
from jobs.check.invariants import Invariant
from jobs.check.record_census import RecordCensus
from jobs.check.references import References, Tree
from jobs.frame.run import JobRun


@dataclass(frozen=True, slots=True)
class Loss:
    """Bytes [start, end) of a file that cannot be had, and the record that held them.

    ``is_recipe``: the record is one of the recipe, and the chunks that it named are not known.
    """

    path: str
    start: int
    end: int
    record: int
    is_recipe: bool
    reason: str

    @property
    def invariant(self) -> Invariant:
        """The one that it violates."""
        return Invariant.STUB_RECIPE if self.is_recipe else Invariant.RECIPE_CHUNKS

    @property
    def detail(self) -> str:
        return f"bytes {self.start} to {self.end}: {self.reason}"


def losses(found: References, run: JobRun, chunks: RecordCensus) -> Iterator[Loss]:
    """The losses of all files that refer to something that is not there. Raises Cancelled."""
    for tree in found.trees:
        for path in tree.suspects:
            run.safe_point()
            yield from _of_file(tree, path, chunks)


def _of_file(tree: Tree, path: bytes, chunks: RecordCensus) -> Iterator[Loss]:
    """The losses of a file, in order. A file that is gone, or plain by now, has lost nothing.

    Bytes in the file's own blocks are not lost, even if they are damaged in the store.
    """
    volume, where = tree.volume, show_path(path)
    try:
        with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
            stub = volume.space.read(fd, where)
            if stub is None:
                return
            size = os.fstat(fd).st_size
            local = local_ranges(fd, size)
    except (OSError, DamagedStub):
        return  # moved or removed meanwhile; a damaged attribute is a finding of its own
    for loss in _of_recipe(volume, stub, where, chunks):
        loss_end = min(loss.end, stub.covered, size)
        for start, end in missing_ranges(local, loss.start, loss_end):
            yield replace(loss, path=tree.prefix + where, start=start, end=end)


def _of_recipe(
    volume: Volume, stub: StubAttribute, where: str, chunks: RecordCensus
) -> Iterator[Loss]:
    """The ranges of a stub's recipe that cannot be read, whether the file needs them or not.

    ``chunks`` says which chunks are there; damaged nodes are found by reading them.
    """
    try:
        recipe = volume.content(stub, where).recipe
    except Damaged as error:
        is_recipe = Flag.DIRECT not in stub.flags
        yield Loss(where, 0, stub.covered, stub.recipe, is_recipe, str(error))
        return
    for part in recipe.leaves():
        if isinstance(part, UnreadablePart):
            yield Loss(where, part.offset, part.offset + part.length, part.node, True, part.reason)
            continue
        node = part.content
        rows = zip(node.ids, node.lengths, node.fingerprint_checks, node.offsets, strict=True)
        for chunk, length, check, offset in rows:
            if chunk != HOLE and not chunks.holds(chunk, length, check):
                start = part.offset + offset
                reason = f"chunk {show_id(chunk)} is missing, damaged or replaced"
                yield Loss(where, start, start + length, chunk, False, reason)
