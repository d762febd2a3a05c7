"""Whether there is room for a file before its first chunk is stored.

A file gives its blocks back only once it is a stub as a whole. So its chunks need room before that:
a file that does not fit beside the reserve is left, and the run goes on with others.
"""

from collections.abc import Callable, Iterator

from dedupd import native
from dedupd.config.room import Room
from dedupd.system.file_reader import SMALL_BYTES_MAX
from dedupd.system.page_cache import BufferPool
from dedupd.units import KIB, format_size
from jobs.optimize.buffers import Batch, FilesBatch, FileTask
from jobs.optimize.pipeline import Ingest

NO_ROOM = "no room for"
"""Said of a file that does not fit beside the reserve."""

_BEGIN_BYTES = 256 * KIB
"""For new containers, and for the attributes and directories that a file system makes larger."""

_PER_FILE_BYTES = 512
"""A recipe of few chunks and its second copy, and entries of tables."""

_RECIPE_SHARE = 1 / 64
"""Of a file's size: recipes, both copies of them, headers and entries of tables."""

Left = Callable[[bytes, str, str], None]
"""Called with the path of each file that is left, the reason, and what there is to say of it."""


def needed_bytes(size_bytes: int, files: int) -> int:
    """What so many files take in the store at most, where nothing of them is there already."""
    return int(size_bytes * (1 + _RECIPE_SHARE)) + files * _PER_FILE_BYTES


class Admission:
    """Lets batches through to the pipeline, without the files that do not fit.

    ``make_room`` has all that was fed become stubs, which gives blocks back.
    """

    def __init__(
        self,
        room: Room,
        pool: BufferPool,
        ingest: Ingest,
        make_room: Callable[[], None],
        on_left: Left,
    ) -> None:
        self._room = room
        self._pool = pool
        self._ingest = ingest
        self._make_room = make_room
        self._on_left = on_left

    def through(self, batch: Batch | FilesBatch) -> Iterator[Batch | FilesBatch]:
        """The batch, or what of it fits. Each is to be fed before the next one is asked for."""
        if isinstance(batch, FilesBatch):
            yield from self._files(batch)
        else:
            self._segments(batch)
            yield batch

    def _left_bytes(self) -> int:
        """How much more may be taken than what is on its way already."""
        pending = needed_bytes(self._ingest.pending_bytes, 0)
        return self._room.left_bytes - pending - _BEGIN_BYTES

    def _files(self, batch: FilesBatch) -> Iterator[FilesBatch]:
        files = batch.files
        if needed_bytes(files.size_bytes, len(files)) <= self._left_bytes():
            yield batch
            return
        at = 0
        while at < len(files):
            self._make_room()
            left = self._left_bytes()
            part = native.ingest.FileList()
            fitting = int(max(0, left - len(files) * _PER_FILE_BYTES) / (1 + _RECIPE_SHARE))
            count = part.take(files, at, SMALL_BYTES_MAX, fitting, len(files))
            if count:
                yield FilesBatch(batch.buffer, part, 0.0, is_part=True)
            else:
                path, (_, size_bytes, _, _), _ = files[at]
                self._leave(path, size_bytes, left)
            at += count or 1
        self._make_room()
        self._pool.give(batch.buffer)

    def _segments(self, batch: Batch) -> None:
        """Give up those files that begin in a batch and do not fit."""
        begun = {id(s.task): s.task for s in batch.segments if _begins(s.task)}.values()
        if not begun:
            return
        going_on = sum(s.end - s.start for s in batch.segments if s.task.is_admitted)
        need = sum(needed_bytes(task.need_bytes, 1) for task in begun)
        if going_on + need > self._left_bytes():
            self._make_room()
        left = self._left_bytes() - going_on
        for task in begun:
            need = needed_bytes(task.need_bytes, 1)
            if need <= left:
                task.is_admitted = True
                left -= need
            else:
                task.failure = NO_ROOM
                self._leave(task.candidate.path, task.need_bytes, left)

    def _leave(self, path: bytes, size_bytes: int, left_bytes: int) -> None:
        room = format_size(max(0, left_bytes))
        size = format_size(size_bytes)
        why = f"left as it is: no space for its {size}, beside the reserve {room} are free"
        self._on_left(path, NO_ROOM, why)


def _begins(task: FileTask) -> bool:
    return not task.is_admitted and not task.failure
