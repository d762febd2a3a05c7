"""Writes frames to pipes, and reads them with every check."""

import fcntl
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, Queue

from dedupd_core import native
from dedupd_core.errors import Damaged, DedupdError
from dedupd_core.format import stream
from dedupd_core.format.stream import Frame, FrameKind
from dedupd_core.store.encoded_records import encoded_payload
from dedupd_core.system.files import opened
from dedupd_core.units import MIB

_BUFFER_BYTES = 1 * MIB
_BEHIND, _AHEAD = 4, 16
"""Number of buffers between the threads of one side; each has 1 MiB or slightly more."""


class PipeClosed(DedupdError):
    """The other side of the stream has ended."""


def seed_of(stream_id: str) -> int:
    """Return the seed of all frames of a stream except the first of each direction."""
    return native.hashing.xxh3_64(uuid.UUID(stream_id).bytes)


class FrameWriter:
    """Writes frames to ``fd`` in a separate thread, while the caller makes the next frames.

    Raises PipeClosed, as soon as the end of the other side is known.
    """

    def __init__(self, fd: int) -> None:
        _widen(fd)
        self._fd = fd
        self._seed = 0
        self._sequence = 0
        self._buffer = bytearray()
        self._waiting: Queue[bytes | bytearray | None] = Queue(_BEHIND)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.written_bytes = 0

    def begin(self, kind: FrameKind, fields: dict[str, object], stream_id: str) -> None:
        """Write the first frame."""
        self.write(stream.told(kind, fields))
        self._seed = seed_of(stream_id)

    def write(self, frame: Frame) -> None:
        self._buffer += stream.encode_frame(frame, self._sequence, self._seed)
        self._sequence += 1
        if len(self._buffer) >= _BUFFER_BYTES:
            self._hand_over()

    def write_frames(self, make: Callable[[int, int], tuple[bytes, int]]) -> int:
        """Write the frames that ``make`` returns together with their number; return that number.
        ``make`` gets the number of the next frame and the stream's seed."""
        data, count = make(self._sequence, self._seed)
        if count:
            self._hand_over()
            self._put(data)
            self._sequence += count
        return count

    def flush(self) -> None:
        """Write all frames, and wait until they are written."""
        self._hand_over()
        self._waiting.join()
        self._check()

    def close(self) -> None:
        """Stop writing. Only flushed frames are certain to be written."""
        if self._thread is not None:
            self._failure = self._failure or PipeClosed("the stream was abandoned")
            self._waiting.put(None)
            self._thread = None

    def _hand_over(self) -> None:
        self._check()
        if self._buffer:
            data, self._buffer = self._buffer, bytearray()
            self._put(data)

    def _put(self, data: bytes | bytearray) -> None:
        if self._thread is None:
            # The thread has a descriptor of its own: the caller may close ``fd`` at any time.
            work = partial(self._work, os.dup(self._fd))
            self._thread = threading.Thread(target=work, name="pipe", daemon=True)
            self._thread.start()
        self._waiting.put(data)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self, fd: int) -> None:
        with opened(fd):
            while (data := self._waiting.get()) is not None:
                try:
                    if self._failure is None:
                        self._write(fd, memoryview(data))
                except BrokenPipeError:
                    text = "the receiver has stopped; see its message"
                    self._failure = PipeClosed(text)
                except BaseException as error:
                    self._failure = error
                finally:
                    self._waiting.task_done()

    def _write(self, fd: int, view: "memoryview[int]") -> None:
        while view:
            count = put(fd, view)
            self.written_bytes += count
            view = view[count:]


put: Callable[[int, "memoryview[int]"], int] = os.write
"""Writes to a pipe. The bytes are not on a disk."""


class FrameReader:
    """Reads frames from ``fd``. Raises Damaged, UnknownFormat, PipeClosed."""

    def __init__(self, fd: int, where: str) -> None:
        _widen(fd)
        self._fd = fd
        self._seed = 0
        self._sequence = 0
        self._where = where
        self._rest = memoryview(b"")
        self.read_bytes = 0

    def use_stream(self, stream_id: str) -> None:
        """Expect only frames of this stream from now on."""
        self._seed = seed_of(stream_id)

    def read(self) -> Frame:
        """Return the next frame after checking it."""
        data = self._bytes(stream.HEADER_BYTES)
        head = stream.decode_head(data, self._where)
        if head.sequence != self._sequence:
            raise Damaged(f"{self._where}: frame {self._sequence} is missing")
        self._sequence += 1
        payload = self._bytes(head.stored_length)
        return stream.decode_frame(head, data, payload, self._seed, self._where)

    def _bytes(self, count: int) -> bytes:
        parts, have = [], 0
        while have < count:
            if not self._rest:
                self._rest = memoryview(self._block())
            if not self._rest:
                raise PipeClosed(
                    f"{self._where}: was interrupted, and the volume is unchanged; to continue,"
                    " `dedupd receive --token` prints the token for `dedupd send --resume`"
                )
            part, self._rest = self._rest[: count - have], self._rest[count - have :]
            parts.append(part)
            have += len(part)
        self.read_bytes += have
        return b"".join(parts)

    def _block(self) -> bytes:
        """Return the next bytes; none at the end."""
        return os.read(self._fd, _BUFFER_BYTES)


class AheadReader(FrameReader):
    """Reads ahead by some MiB in a separate thread."""

    def __init__(self, fd: int, where: str) -> None:
        super().__init__(os.dup(fd), where)
        self._blocks: Queue[bytes | OSError] = Queue(_AHEAD)
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="pipe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading. The thread closes the pipe at the next bytes, or at its end."""
        self._is_over = True
        with suppress(Empty):
            while True:
                self._blocks.get_nowait()

    def _block(self) -> bytes:
        block = self._blocks.get()
        if isinstance(block, OSError):
            raise block
        return block

    def _work(self) -> None:
        with opened(self._fd):
            while not self._is_over:
                try:
                    block: bytes | OSError = os.read(self._fd, _BUFFER_BYTES)
                except OSError as error:
                    block = error
                self._blocks.put(block)
                if not block or isinstance(block, OSError):
                    return


def _widen(fd: int) -> None:
    """Enlarge the buffer of a pipe, so that each side wakes the other less often."""
    with suppress(OSError):  # not a pipe, or above this user's limit
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _BUFFER_BYTES)


def packed(kind: FrameKind, data: bytes) -> Frame:
    """Return a frame of ``data``, compressed if that saves space."""
    codec, payload, _ = encoded_payload(data)
    return Frame(kind, codec, len(data), payload)


def unpacked(frame: Frame) -> bytes:
    """The data of a :func:`packed` frame. Raises Damaged."""
    try:
        return native.codec.decode(
            frame.payload, frame.codec, frame.raw_length, native.hashing.xxh3_64(frame.payload)
        )
    except native.codec.CorruptPayload as error:
        raise Damaged(f"the stream: a frame that cannot be decoded ({error})") from error
