"""What it would cost to optimize a stub again that was written to.

A chunk that a write has touched is stored again as a whole, however little of it was written, and
the stub gives up the blocks of the write. The space of the old chunk is freed only if no other file
has the chunk, which is not known. So it counts as freed only if all of the chunk was written over:
then the stub holds a chunk of which it needs nothing.
"""

from dedupd_core.format.ids import HOLE
from dedupd_core.format.stub import StubAttribute
from dedupd_core.stub.transition import local_ranges
from dedupd_core.volume.volume import Volume

WRITTEN_LITTLE = "written to since, and would cost more than it frees"


def costs_more(volume: Volume, fd: int, size: int, stub: StubAttribute, where: str) -> bool:
    """Whether the store would grow by more than a stub, ``where`` in messages, gives up. Raises
    Damaged, OSError."""
    covered = min(stub.covered, size)
    recipe = volume.content(stub, where).recipe
    saved_bytes = 0
    seen_end = 0
    for start, end in local_ranges(fd, size):
        written = end - start
        saved_bytes += written
        if end > covered:
            saved_bytes -= end - max(start, covered)
        for span in recipe.spans(start, min(end, covered)):
            chunk_end = min(span.offset + span.length, covered)
            shared = min(end, chunk_end) - max(start, span.offset)
            if span.chunk == HOLE:
                saved_bytes -= shared
                continue
            if span.offset < seen_end:
                continue  # two writes have touched it, so neither is all of it
            seen_end = chunk_end
            stored = volume.chunk_records.describe(span.chunk).stored_length
            is_part = shared < chunk_end - span.offset
            saved_bytes -= stored if is_part else 0
    return saved_bytes < 0
