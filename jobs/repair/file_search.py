"""Searches files for lost chunks: bytes that never left the files, or came back."""

import os
from collections.abc import Iterator

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedStub
from dedupd_core.format.ids import HOLE
from dedupd_core.store.container.table_file import LOST
from dedupd_core.store.recipe.recipe_reader import UnreadablePart
from dedupd_core.stub.transition import local_ranges
from dedupd_core.system.files import opened, read_at
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.frame.pace import Throttle
from jobs.frame.run import JobRun
from jobs.repair.content_proof import Proofs
from jobs.repair.repairer import Repair
from jobs.tree.walk import TreeFile, walk

_READ_BYTES = 8 * MIB
_FLAGS = os.O_RDONLY | os.O_NONBLOCK


class FileSearch:
    """Offers the repair the bytes of lost records that files still have.

    It reads and splits every byte of every file that is not in the store. So it is only used for
    damage that no other source repairs.
    """

    def __init__(
        self, volume: Volume, run: JobRun, throttle: Throttle, repair: Repair, threads: int
    ) -> None:
        self._volume = volume
        self._run = run
        self._throttle = throttle
        self._repair = repair
        self._threads = threads
        self._chunker = volume.parameters.chunker()
        self._algorithm = volume.parameters.fingerprint
        self._proofs = Proofs(volume, volume.store.chunk_records, repair.lost)

    def search(self, suspects: list[bytes]) -> None:
        """Search the stubs that need lost chunks, then all files. Raises Cancelled, NoSpace."""
        for path in suspects:
            self._run.safe_point()
            self._learn(path)
        for path in suspects:
            self._in_place(path)
        self._repair.flush()
        # A found chunk may complete the proof of another chunk.
        pending = -1
        while self._is_missing_any() and pending != len(self._proofs.pending):
            pending = len(self._proofs.pending)
            self._everywhere()
            self._repair.flush()
            if not pending:
                return

    def _everywhere(self) -> None:
        smallest = min(entry.raw_length for entry in self._repair.lost.values())
        for found in walk(self._volume, safe_point=self._run.safe_point):
            size = found.allocated_bytes if found.is_stub else found.identity.size
            if size >= smallest:
                self._run.safe_point()
                self._in_file(found)
                if not self._is_missing_any():
                    return

    def _is_missing_any(self) -> bool:
        return bool(self._proofs.pending or self._wanted())

    def _learn(self, path: bytes) -> None:
        """Use the facts about lost records in a stub as proofs."""
        where = show_path(path)
        try:
            with opened(open_beneath(self._volume.data_fd, path, _FLAGS)) as fd:
                stub = self._volume.space.read(fd, where)
        except (OSError, DamagedStub):
            return
        if stub is not None:
            self._proofs.learn(stub, where)

    def _wanted(self) -> dict[bytes, list[int]]:
        """Return the fingerprints that are still missing, with the records that had them."""
        wanted: dict[bytes, list[int]] = {}
        for record_id, entry in self._repair.lost.items():
            if entry.fingerprint != LOST.fingerprint:
                wanted.setdefault(entry.fingerprint, []).append(record_id)
        return wanted

    def _in_place(self, path: bytes) -> None:
        """Check a stub's local blocks at a lost chunk of its recipe. An interrupted commit or
        restore may have left the chunk there."""
        try:
            fd = open_beneath(self._volume.data_fd, path, _FLAGS)
        except OSError:
            return
        with opened(fd):
            for chunk, offset, length in self._spans(fd, show_path(path)):
                self._throttle.take(length)
                raw = read_at(fd, length, offset)
                fingerprint = native.hashing.fingerprint(raw, self._algorithm)
                if len(raw) != length:
                    continue
                if self._is_lost(chunk, fingerprint):
                    self._repair.from_bytes([chunk], raw, fingerprint)
                self._repair.from_bytes(self._proofs.prove(length, fingerprint), raw, fingerprint)

    def _is_lost(self, chunk: int, fingerprint: bytes) -> bool:
        """Check the complete fingerprint: the four bytes in a recipe do not prove enough."""
        entry = self._repair.lost.get(chunk)
        return entry is not None and entry.fingerprint == fingerprint

    def _spans(self, fd: int, where: str) -> Iterator[tuple[int, int, int]]:
        """Yield lost chunks of a stub whose entire range is in its local blocks."""
        try:
            stub = self._volume.space.read(fd, where)
            if stub is None:
                return
            size = os.fstat(fd).st_size
            local = local_ranges(fd, size)
            recipe = self._volume.content(stub, where).recipe
        except (Damaged, OSError):
            return
        for part in recipe.leaves():
            if isinstance(part, UnreadablePart):
                continue
            node = part.content
            for chunk, length, offset in zip(node.ids, node.lengths, node.offsets, strict=True):
                start = part.offset + offset
                is_lost = chunk != HOLE and chunk in self._repair.lost
                if is_lost and any(a <= start and start + length <= b for a, b in local):
                    yield chunk, start, length

    def _in_file(self, found: TreeFile) -> None:
        """Split a plain file, or the local blocks of a stub, and check every chunk."""
        try:
            with opened(open_beneath(self._volume.data_fd, found.path, _FLAGS)) as fd:
                size = os.fstat(fd).st_size
                stub = self._volume.space.read(fd, show_path(found.path))
                ranges = [(0, size)] if stub is None else local_ranges(fd, size)
                for start, end in ranges:
                    self._in_range(fd, start, end)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except (OSError, DamagedStub):
            return  # deleted, or unreadable: no source

    def _in_range(self, fd: int, start: int, end: int) -> None:
        wanted = self._wanted()
        carry, at = b"", start
        while at < end:
            count = min(_READ_BYTES, end - at)
            self._throttle.take(count)
            data = carry + read_at(fd, count, at)
            at += count
            found = self._chunker.process(data, [(0, len(data), at >= end)], self._threads)
            chunk_start, packed = 0, found.fingerprints
            for number, chunk_end in enumerate(memoryview(found.ends).cast("I")):
                fingerprint = packed[number * native.hashing.HASH_BYTES :][
                    : native.hashing.HASH_BYTES
                ]
                ids = wanted.pop(fingerprint, [])
                ids += self._proofs.prove(chunk_end - chunk_start, fingerprint)
                if ids:
                    self._repair.from_bytes(ids, data[chunk_start:chunk_end], fingerprint)
                chunk_start = chunk_end
            carry = data[chunk_start:]
