"""Frames over pipes: written, and read with every check."""

import os
import uuid
from collections.abc import Callable

from dedupd import native
from dedupd.errors import Damaged, DedupdError
from dedupd.format import stream
from dedupd.format.stream import Frame, FrameKind
from dedupd.store.encoded_records import encoded_payload
from dedupd.units import MIB

_BUFFER_BYTES = 1 * MIB


class PipeClosed(DedupdError):
    """The other side has ended."""


def seed_of(stream_id: str) -> int:
    """The seed of all frames of a stream but the first of each direction."""
    return native.hashing.xxh3_64(uuid.UUID(stream_id).bytes)


class FrameWriter:
    """Writes frames to ``fd``. Raises PipeClosed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._seed = 0
        self._sequence = 0
        self._buffer = bytearray()
        self.written_bytes = 0

    def begin(self, kind: FrameKind, fields: dict[str, object], stream_id: str) -> None:
        """The first frame."""
        self.write(stream.told(kind, fields))
        self._seed = seed_of(stream_id)

    def write(self, frame: Frame) -> None:
        self._buffer += stream.encode_frame(frame, self._sequence, self._seed)
        self._sequence += 1
        if len(self._buffer) >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Have all of it on its way."""
        view = memoryview(bytes(self._buffer))
        self._buffer.clear()
        while view:
            try:
                count = put(self._fd, view)
            except BrokenPipeError:
                raise PipeClosed("the receiver has ended; its message says why") from None
            self.written_bytes += count
            view = view[count:]


put: Callable[[int, "memoryview[int]"], int] = os.write
"""To a pipe, whose bytes are on no disk."""


class FrameReader:
    """Reads frames from ``fd``. Raises Damaged, UnknownFormat, PipeClosed."""

    def __init__(self, fd: int, where: str) -> None:
        self._fd = fd
        self._seed = 0
        self._sequence = 0
        self._where = where
        self.read_bytes = 0

    def use_stream(self, stream_id: str) -> None:
        """All frames from here on are of this stream."""
        self._seed = seed_of(stream_id)

    def read(self) -> Frame:
        """The next frame, whose checks hold."""
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
            part = os.read(self._fd, min(count - have, _BUFFER_BYTES))
            if not part:
                raise PipeClosed(
                    f"{self._where}: was cut, and what the volume has is as it was; `dedupd receive"
                    " --token` says how far it came"
                )
            parts.append(part)
            have += len(part)
        self.read_bytes += have
        return b"".join(parts)


def packed(kind: FrameKind, data: bytes) -> Frame:
    """A frame of ``data``, compressed where that pays."""
    codec, payload, _ = encoded_payload(data)
    return Frame(kind, codec, len(data), payload)


def unpacked(frame: Frame, where: str) -> bytes:
    """The data of a :func:`packed` frame. Raises Damaged."""
    try:
        return native.codec.decode(
            frame.payload, frame.codec, frame.raw_length, native.hashing.xxh3_64(frame.payload)
        )
    except native.codec.CorruptPayload as error:
        raise Damaged(f"{where}: a frame that does not decode ({error})") from error
