"""Whether there is room for a file before its first chunk is stored.

A file gives its blocks back only once it is a stub as a whole. So its chunks need room before that:
a file that does not fit beside the reserve is left, and the run goes on with others.

While a restore fills the volume its writers wait for that room, however little is left. So small
files that may not fit are counted by their new chunks, as few at a time as do fit, and of a large
one nothing is stored at first: it is read for what it would save. One that pays comes again, with
what it would add, and goes by its parts where that does not fit, either.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.config.room import Room, guard_bytes, working_bytes
from dedupd_core.system.file_reader import SMALL_BYTES_MAX
from dedupd_core.system.files import free_space
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.units import KIB, format_size
from dedupd_core.volume.volume import Volume
from jobs.optimize.buffers import Batch, FilesBatch, FileTask, Phase
from jobs.optimize.judgements import Judgements
from jobs.optimize.pipeline import Ingest
from jobs.tree.candidates import Candidate

NO_ROOM = "no room for"
"""Said of a file that does not fit beside the reserve."""

WRITERS_S = 1.0
"""After so long users have seen how much is left."""

BY_PARTS = "goes by its parts"
"""Said of one that does not fit as a whole, and is taken later in the same run."""

_BEGIN_BYTES = 256 * KIB
"""For new containers, and for the attributes and directories that a file system makes larger."""

_OWN_BYTES = 512 * KIB
"""For the index, the catalogue and the notes of a run, where users leave no more than it needs, and
for files that add nothing but recipes: also what a killed run has left of the room frees more."""

_PER_FILE_BYTES = 512
"""A recipe of few chunks and its second copy, and entries of tables."""

_RECIPE_SHARE = 1 / 64
"""Of a file's size: recipes, both copies of them, headers and entries of tables."""

LeaveFile = Callable[[bytes, str, str], None]
"""Called with the path of each file that is left, the reason, and what there is to say of it."""


def needed_bytes(size_bytes: int, files: int) -> int:
    """What so many files take in the store at most, where nothing of them is there already."""
    return int(size_bytes * (1 + _RECIPE_SHARE)) + files * _PER_FILE_BYTES


class Demand(NamedTuple):
    """The room that a file needs when it begins: ``chunk_bytes`` are what its chunks take at most.

    ``new_bytes``: of a file that was measured, what the store lacks of it; None of any other.
    """

    task: FileTask
    chunk_bytes: int
    new_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """With its recipe, and entries of tables."""
        return needed_bytes(self.chunk_bytes, 1)


class RestoreAdmission:
    """What a run does about files that do not fit while writers wait for it."""

    def __init__(
        self, volume: Volume, judgements: Judgements, by_parts: Callable[[Candidate], bool]
    ) -> None:
        """``by_parts`` has a file taken by its parts, and says whether that can be done."""
        self._volume = volume
        self._judgements = judgements
        self.by_parts = by_parts
        self._short_since_s: float | None = None

    @property
    def guard_bytes(self) -> int:
        """What is left of the room, since users may write as much before they look again."""
        return guard_bytes(free_space(self._volume.data_fd).total_bytes)

    def is_without_writers(self, room: Room) -> bool:
        """Whether users write nothing now, for so little is left: then all of it may be used."""
        least = working_bytes(free_space(self._volume.data_fd).total_bytes)
        if room.left_bytes >= least:
            self._short_since_s = None
            return False
        if self._short_since_s is None:
            self._short_since_s = time.monotonic()
        time.sleep(max(0.0, self._short_since_s + WRITERS_S - time.monotonic()))
        return True

    def may_measure(self, demand: Demand) -> bool:
        """Whether a file may be read for what it would save, with nothing of it stored: then it
        comes again."""
        task = demand.task
        is_known = demand.new_bytes is not None or task.is_certain or task.busy is not None
        return not (is_known or self._judgements.is_recall)

    def demand(self, task: FileTask) -> Demand:
        """Return what a file needs; for a measured file, only the bytes that it would add."""
        new_bytes, need_bytes = self._judgements.new_bytes_of(task.identity), task.source.need_bytes
        if new_bytes is not None:
            recipe_bytes = int(task.identity.size * _RECIPE_SHARE)
            need_bytes = min(need_bytes, new_bytes + recipe_bytes)
        return Demand(task, need_bytes, new_bytes)


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
        on_left: LeaveFile,
        restoring: RestoreAdmission | None = None,
    ) -> None:
        """``restoring`` while a restore fills the volume."""
        self._room = room
        self._restoring = restoring
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
        guard = 0 if self._restoring is None else self._restoring.guard_bytes
        return self._all_bytes() - guard

    def _all_bytes(self) -> int:
        pending = needed_bytes(self._ingest.pending_bytes, 0)
        return self._room.left_bytes - pending - _BEGIN_BYTES

    def _last_bytes(self, need_bytes: int) -> int:
        """As :meth:`_left_bytes`, once all that was fed are stubs, for what may not fit."""
        self._make_room()
        free_bytes = self._left_bytes()
        restoring = self._restoring
        if (
            need_bytes > free_bytes
            and restoring is not None
            and restoring.is_without_writers(self._room)
        ):
            free_bytes = max(free_bytes, self._all_bytes() - _OWN_BYTES)
        return free_bytes

    def _files(self, batch: FilesBatch) -> Iterator[FilesBatch]:
        files = batch.files
        if needed_bytes(files.size_bytes, len(files)) <= self._left_bytes():
            yield batch
            return
        at = 0
        while at < len(files):
            path, (_, size_bytes, _, _), _ = files[at]
            free_bytes = self._last_bytes(needed_bytes(size_bytes, len(files)))
            part = self._fitting(batch, at, free_bytes)
            if len(part):
                yield FilesBatch(batch.buffer, part, 0.0, is_part=True)
            else:
                self._leave(path, size_bytes, free_bytes)
            at += len(part) or 1
        self._make_room()
        self._pool.give(batch.buffer)

    def _fitting(self, batch: FilesBatch, at: int, left_bytes: int) -> native.ingest.FileList:
        """The next files of a batch that fit."""
        files, part = batch.files, native.ingest.FileList()
        fitting = int(max(0, left_bytes - len(files) * _PER_FILE_BYTES) / (1 + _RECIPE_SHARE))
        count = part.take(files, at, SMALL_BYTES_MAX, fitting, len(files))
        most = 0 if self._restoring is None else len(files) - at
        while most > count:
            wider = native.ingest.FileList()
            wider.take(files, at, SMALL_BYTES_MAX, files.size_bytes, most)
            new_bytes = self._ingest.new_bytes_of(FilesBatch(batch.buffer, wider, 0.0))
            recipe_bytes = int(wider.size_bytes * _RECIPE_SHARE)
            spare_bytes = 0 if new_bytes else _OWN_BYTES
            if needed_bytes(new_bytes, len(wider)) + recipe_bytes <= left_bytes + spare_bytes:
                return wider
            most //= 2
        return part

    def _segments(self, batch: Batch) -> None:
        """Give up those files that begin in a batch and do not fit."""
        beginning = {id(s.task): s.task for s in batch.segments if _begins(s.task)}
        if not beginning:
            return
        demands = [self._demand(task) for task in beginning.values()]
        continued = sum(s.end - s.start for s in batch.segments if s.task.takes_room)
        need = continued + sum(demand.size_bytes for demand in demands)
        free_bytes = self._left_bytes()
        if need > free_bytes:
            free_bytes = self._last_bytes(need)
        free_bytes -= continued
        for demand in demands:
            spare_bytes = _OWN_BYTES if demand.new_bytes == 0 else 0
            if demand.size_bytes <= free_bytes + spare_bytes:
                demand.task.phase = Phase.ADMITTED
                free_bytes -= demand.size_bytes
            else:
                self._give_up(demand, free_bytes)

    def _demand(self, task: FileTask) -> Demand:
        if self._restoring is None:
            return Demand(task, task.source.need_bytes)
        return self._restoring.demand(task)

    def _give_up(self, demand: Demand, left_bytes: int) -> None:
        """A file does not fit, as far as is known."""
        restoring, task = self._restoring, demand.task
        if restoring is not None and restoring.may_measure(demand):
            task.phase = Phase.MEASURED
        elif restoring is not None and task.busy is None and restoring.by_parts(task.candidate):
            task.failure = BY_PARTS
        else:
            task.failure = NO_ROOM
            self._leave(task.candidate.path, demand.chunk_bytes, left_bytes)

    def _leave(self, path: bytes, size_bytes: int, left_bytes: int) -> None:
        room = format_size(max(0, left_bytes))
        size = format_size(size_bytes)
        why = f"skipped: it needs {size}, and {room} are free beyond the reserve"
        self._on_left(path, NO_ROOM, why)


def _begins(task: FileTask) -> bool:
    return task.phase is Phase.WAITING and not task.failure
