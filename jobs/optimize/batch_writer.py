"""Buffers of file content, filled with one segment after the other and handed over when full."""

import mmap
from collections.abc import Callable, Sequence

from jobs.optimize.buffers import Batch, FileTask, KeptChunk, Segment


class BatchWriter:
    """Fills batches. ``take_buffer`` waits for a free buffer, ``put`` hands a batch over.

    ``headroom_bytes`` stay free at the front of every buffer, for the unfinished chunk of a file
    that continues in it; ``batch_bytes`` follow, with segments of at most ``files_max`` files.
    """

    def __init__(
        self,
        take_buffer: Callable[[], mmap.mmap],
        put: Callable[[Batch], None],
        *,
        headroom_bytes: int,
        batch_bytes: int,
        files_max: int,
    ) -> None:
        self._take_buffer = take_buffer
        self._put = put
        self._headroom_bytes = headroom_bytes
        self._batch_bytes = batch_bytes
        self._files_max = files_max
        self._batch: Batch | None = None
        self._fill = 0

    def free(self, want: int) -> memoryview:
        """Where the next bytes of a file go: ``want`` of them, or as many as there is room for."""
        return memoryview(self._buffer_for(want))[self._fill : self._fill + want]

    def add(self, task: FileTask, length: int, read_s: float, *, final: bool) -> None:
        """Take note of bytes that were read into :meth:`free`."""
        batch = self._begun()
        batch.read_s += read_s
        start, self._fill = self._fill, self._fill + length
        batch.segments.append(Segment(task, start, self._fill, final))
        if not final or len(batch.segments) >= self._files_max:
            self.hand_over()

    def add_part(
        self, task: FileTask, data: bytes, kept: Sequence[KeptChunk], *, final: bool, cut: bool
    ) -> None:
        """Add bytes of a file behind chunks that it keeps; ``cut``: a chunk ends with them."""
        if self._fill + len(data) > self._headroom_bytes + self._batch_bytes:
            self.hand_over()
        buffer = self._buffer_for(0)
        start, self._fill = self._fill, self._fill + len(data)
        buffer[start : self._fill] = data
        self._begun().segments.append(Segment(task, start, self._fill, final, cut, kept))
        if not cut:
            self.hand_over()  # the next segment needs room before it for the unfinished chunk

    def end(self, task: FileTask) -> None:
        """The file ends with what was added of it."""
        self.add(task, 0, 0.0, final=True)

    def hand_over(self) -> None:
        """Hand the current batch over, if there is one."""
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._put(batch)

    def _buffer_for(self, want: int) -> mmap.mmap:
        """The buffer of the current batch; a new batch begins where a small file would be split."""
        batch = self._batch
        if batch is not None:
            assert batch.buffer is not None
            room = len(batch.buffer) - self._fill
            fits = want <= room or (
                want > self._batch_bytes // 2 and room >= self._batch_bytes // 2
            )
            if not fits or room == 0 or len(batch.segments) >= self._files_max:
                self.hand_over()
        buffer = self._begun().buffer
        assert buffer is not None
        return buffer

    def _begun(self) -> Batch:
        """The current batch, or a new one."""
        if self._batch is None:
            self._batch = Batch(self._take_buffer())
            self._fill = self._headroom_bytes
        return self._batch
