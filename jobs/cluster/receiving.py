"""Receives a stream into a volume whose chunks are in a cluster.

File versions keep chunks in a cluster, and the files of a stream are made at its end. Until then
the chunks of each group belong to a version without a file: it is recorded in ``.dedupd/receive``,
and is forgotten with that directory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from dedupd_core.errors import Damaged
from dedupd_core.format.cluster.objects import FileId, encode_frame
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stream import Frame
from dedupd_core.format.stub import NO_FLAGS, StubAttribute
from dedupd_core.rados.chunks import NewChunk, StoreResult
from dedupd_core.rados.reading.sources import reference
from dedupd_core.rados.writer import FileChunk, NewFile, PreparedVersion, Writer
from dedupd_core.volume.domains import require_domains
from dedupd_core.volume.volume import Volume
from jobs.backup.intake import Intake, Reception, RecipeIntake, lacking
from jobs.backup.received import Received, ReceivedChunk, ReceivedRecipe
from jobs.backup.switch import TreeBuilder
from jobs.cluster.session import StubVersions, writing
from jobs.frame.run import JobRun

FILES_AT_ONCE = 256
"""Files made together: a descriptor per file, and one sync of the file system for all."""
CHUNKS_AT_ONCE = 32_768
"""Number of chunks in memory for these files, about 300 bytes per chunk."""
_ROWS_AT_ONCE = 4096
_COUNT_BYTES = 16


class ClusterReception(Reception):
    """Receives into a store in a cluster."""

    @contextmanager
    def intake(self, received: Received) -> Iterator[Intake]:
        require_domains(self._volume, self._volume.policy())
        with writing(self._volume, StubVersions(self._volume)) as (writer, _):
            intake = _ClusterIntake(self._volume, writer, received)
            yield intake
            intake.settle()

    def build(self, received: Received) -> None:
        stubs = StubVersions(self._volume)
        with writing(self._volume, stubs) as (writer, _):
            _ClusterTreeBuilder(self._volume, self._run, received, writer, stubs).build()

    def end(self, held: Sequence[str]) -> None:
        """Drop the versions of groups. The next gc forgets versions of files that the tree no
        longer has, including those that remain after an interruption of this step."""
        with writing(self._volume, StubVersions(self._volume)) as (writer, _):
            writer.delete((FileId.held(at), version) for at, version in enumerate(held))


class _ClusterIntake:
    """A store in a cluster that receives a stream."""

    def __init__(self, volume: Volume, writer: Writer, received: Received) -> None:
        self._volume, self._writer, self._received = volume, writer, received
        self.present = self.group_bytes = 0
        self._group: dict[bytes, FileChunk] = {}
        self._group_length = 0
        self._begun: list[PreparedVersion] = []

    def has(self, fingerprints: bytes) -> bytes:
        asked = [fingerprints[at : at + 32] for at in range(0, len(fingerprints), 32)]
        held = self._writer.cluster.each(self._writer.chunks.is_held, asked)
        return bytes(
            is_held or fingerprint in self._group
            for fingerprint, is_held in zip(asked, held, strict=True)
        )

    def add(self, frames: Sequence[Frame]) -> list[ReceivedChunk]:
        rows = []
        for frame in frames:
            fingerprint = frame.fingerprint
            self._take(frame.raw_length, NewChunk(fingerprint, partial(_encoded, frame)))
            self.group_bytes += len(frame.payload)
            rows.append(ReceivedChunk(0, frame.raw_length, fingerprint))
        return rows

    def add_known(self, rows: Sequence[tuple[bytes, int]]) -> list[ReceivedChunk]:
        for fingerprint, length in rows:
            if fingerprint not in self._group:
                self._take(length, NewChunk(fingerprint, self._lacking, is_expected=True))
        return [ReceivedChunk(0, length, fingerprint) for fingerprint, length in rows]

    def _lacking(self) -> bytes:
        raise lacking(self._volume)

    def _take(self, length: int, chunk: NewChunk) -> None:
        before = self._group.get(chunk.fingerprint)
        offset = self._group_length if before is None else before.offset
        self._group[chunk.fingerprint] = FileChunk(offset, length, chunk)
        if before is None:
            self._group_length += length

    def begin_recipe(self) -> RecipeIntake:
        return _ClusterRecipe(self._received)

    def sync(self) -> None:
        """Store the group, and record its version. If this record is lost before it is durable, the
        next session drops the version."""
        self.settle()
        if not self._group:
            return
        file = FileId.held(len(self._received.held))
        new = NewFile(file, self._group_length, list(self._group.values()))
        self._begun = self._writer.prepare([new])
        self._writer.commit(self._begun)
        for one in self._begun:
            self._received.add_held(one.version)
            made = one.arrivals.get(StoreResult.CREATED, 0) + one.arrivals.get(
                StoreResult.REPAIRED, 0
            )
            self.present += len(self._group) - made
        self._group = {}
        self._group_length = self.group_bytes = 0

    def settle(self) -> None:
        """Finish the versions that were recorded at the last :meth:`sync`, which are durable."""
        self._writer.finish(self._begun)
        self._begun = []


def _encoded(frame: Frame) -> bytes:
    return encode_frame(frame.stored, frame.codec, frame.raw_length, frame.fingerprint)


class _ClusterRecipe:
    """A recipe as rows of ``.dedupd/receive``: each file that shares it gets its own version."""

    def __init__(self, received: Received) -> None:
        self._received = received
        self._first, self._length = received.row_count, 0
        self._pending: list[tuple[int, int]] = []

    def push(self, number: int, chunk: ReceivedChunk) -> None:
        self._push(number + 1, chunk.length)

    def push_hole(self, length: int) -> None:
        self._push(0, length)

    def _push(self, number: int, length: int) -> None:
        self._pending.append((number, length))
        self._length += length
        if len(self._pending) == _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._received.add_rows(self._pending)
        self._pending = []

    def finish(self) -> ReceivedRecipe:
        self._flush()
        count = self._received.row_count - self._first
        ref = RecipeRef(self._first, count.to_bytes(_COUNT_BYTES, "little"))
        return ReceivedRecipe(ref, self._length)


class _ClusterTreeBuilder(TreeBuilder):
    """Makes the tree with a version per file. After an interruption, the next attempt starts from
    scratch, and gc forgets the files of this one."""

    def __init__(
        self, volume: Volume, run: JobRun, received: Received, writer: Writer, stubs: StubVersions
    ) -> None:
        super().__init__(volume, run, received)
        self._writer, self._stubs = writer, stubs
        self._waiting: list[tuple[int, NewFile]] = []
        self._chunks = 0

    def build(self) -> None:
        try:
            super().build()
        finally:
            self._close()

    def attach(self, fd: int, recipe: ReceivedRecipe) -> None:
        new = NewFile(self._stubs.file_of(fd), recipe.length, list(self._file_chunks(recipe)))
        self._waiting.append((os.dup(fd), new))
        self._chunks += len(new.chunks)
        if len(self._waiting) == FILES_AT_ONCE or self._chunks >= CHUNKS_AT_ONCE:
            self.flush()

    def _file_chunks(self, recipe: ReceivedRecipe) -> Iterator[FileChunk]:
        first, offset = recipe.ref.recipe, 0
        count = int.from_bytes(recipe.ref.digest, "little")
        for number, length in self._received.rows(first, first + count):
            if number:
                chunk = self._received.chunk(number - 1)
                if chunk.length != length:
                    raise Damaged(f"chunk {number - 1} of the stream has a wrong length")
                known = NewChunk(chunk.fingerprint, _damaged, is_expected=True)
                yield FileChunk(offset, length, known)
            offset += length

    def flush(self) -> None:
        """Store the versions of the pending files, then make the stubs name them, durably."""
        if not self._waiting:
            return
        self._run.safe_point()
        writer, volume = self._writer, self._volume
        prepared = writer.prepare([new for _, new in self._waiting])
        writer.commit(prepared)
        for (fd, new), version in zip(self._waiting, prepared, strict=True):
            ref = reference(version.version)
            stub = StubAttribute(ref.recipe, ref.digest, new.length, 0, NO_FLAGS)
            volume.stub_files.write(fd, stub)
        volume.disk.sync_file_system(volume.data_fd)
        writer.finish(prepared)
        self._close()

    def _close(self) -> None:
        for fd, _ in self._waiting:
            with suppress(OSError):
                os.close(fd)
        self._waiting, self._chunks = [], 0


def _damaged() -> bytes:
    raise Damaged(
        "a chunk of the stream was damaged in the store after it was received; send it again"
    )
