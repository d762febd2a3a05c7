"""The cost of damage: the files, and the ranges of them, whose bytes are nowhere."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dedupd.byte_ranges import missing_ranges
from dedupd.errors import DamagedStub
from dedupd.stub.transition import local_ranges
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath, show_path
from dedupd.volume.volume import Volume
from jobs.check.record_census import RecordCensus
from jobs.check.references import hits


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


def losses(volume: Volume, path: bytes, chunks: RecordCensus) -> Iterator[Loss]:
    """The losses of a file, in order. A file that is gone, or plain by now, has lost nothing.

    Bytes in the file's own blocks are not lost, even if they are damaged in the store.
    """
    where = show_path(path)
    try:
        with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
            stub = volume.space.read(fd, where)
            if stub is None:
                return
            size = os.fstat(fd).st_size
            local = local_ranges(fd, size)
    except (OSError, DamagedStub):
        return  # moved or removed meanwhile; a damaged attribute is a finding of its own
    for hit in hits(volume, stub, where, chunks):
        hit_end = min(hit.end, stub.covered, size)
        for start, end in missing_ranges(local, hit.start, hit_end):
            yield Loss(where, start, end, hit.record, hit.is_recipe, hit.reason)
