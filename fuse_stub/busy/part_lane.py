"""Commits the idle parts of busy files, in the process that serves each write.

A job requests an offer: ranges of a file that have been idle for some time. It reads and stores
them while users continue, and then makes the file a stub in parts. From the offer on, each write is
noted under the file's lock before it is made: ranges written since then keep their blocks.
"""

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import trio

from dedupd_core import native
from dedupd_core.errors import Busy, FileChanged
from dedupd_core.stub.parts import begin_parts, punch_parts
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.system.tree.tree_paths import path_in_tree
from dedupd_core.units import GIB, MIB
from dedupd_core.volume.commit_requests import CommitRequest
from dedupd_core.volume.volume import Volume
from fuse_stub.busy.quiet_parts import GRAIN_BYTES, QuietParts, present_quiet
from fuse_stub.files.attributes import unseen_step
from fuse_stub.files.inodes import Inodes
from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.open_files import OpenFiles

FILE_BYTES_MIN = 16 * MIB
"""Smaller files are quickly read completely when they become idle."""

OFFER_BYTES_MAX = 4 * GIB
"""The most that a job reads before it commits: the longer this takes, the more is overwritten."""

_CHANGED = "it was truncated, copied into or expanded during the commit"


class _Offer(NamedTuple):
    file: OpenFile
    parts: QuietParts


class PartLane:
    """The open offers. Used by the event-loop thread."""

    def __init__(self, volume: Volume, inodes: Inodes, files: OpenFiles) -> None:
        self.is_committing: Callable[[int], bool] = lambda _: False
        """Returns whether a commit of an entire file is running: then there can be no offer."""
        self.times = native.mount.WriteTimes()
        inodes.note_writes(self.times)
        self._volume = volume
        self._inodes = inodes
        self._files = files
        self._offers: dict[int, _Offer] = {}

    def written(self) -> Iterator[tuple[bytes, int]]:
        """Yield paths and sizes of large files that were written to since the mount started.

        A job finds a file by its path, so files without a known path are skipped.
        """
        for ino in self.times.files():
            try:
                fd = self._inodes.fd(ino)
                status = os.fstat(fd)
                if status.st_nlink != 1:
                    self.times.forget(ino)
                elif status.st_size >= FILE_BYTES_MIN:
                    path = path_in_tree(self._volume.data_fd, fd)
                    if path is not None:
                        yield path, status.st_size
            except OSError:
                self.times.forget(ino)

    async def offer(
        self,
        path: bytes,
        age_s: float,
        bytes_max: int = OFFER_BYTES_MAX,
        *,
        passed_over: bool = False,
    ) -> _Offer | None:
        """Offer the parts of a file that have been idle for ``age_s``, at most ``bytes_max``; None
        if they are too small. With 0 s and ``passed_over``, include parts that saved too little
        before. Raises Busy, DedupdError, OSError."""
        fd = open_beneath(self._volume.data_fd, path, os.O_RDWR | os.O_NONBLOCK)
        file = await self._files.acquire_by_fd(fd)
        try:
            async with file.lock.alone():
                is_taken = file.is_filled or file.ino in self._offers
                if is_taken or self.is_committing(file.ino):
                    raise Busy(f"{file.where}: in use by another job")
                # All started writes have finished, and all later writes are noted.
                parts = QuietParts(os.fstat(file.fd).st_size, _recipe_of(file))
                offer = self._offers[file.ino] = _Offer(file, parts)
                file.on_write = parts.note
        except BaseException:
            self._files.release(file)
            raise
        try:
            quiet = self.times.quiet(file.ino, parts.size, age_s, passed_over=passed_over)
            block_bytes = self._volume.block_bytes
            parts.ranges = await trio.to_thread.run_sync(
                _found, file.fd, quiet, block_bytes, min(bytes_max, OFFER_BYTES_MAX)
            )
        except BaseException:
            self.end(file.ino)
            raise
        if parts.size_bytes >= GRAIN_BYTES and not parts.is_over:
            return offer
        self.end(file.ino)
        return None

    def over(self, file: OpenFile) -> None:
        """Invalidate the offer of a file: its blocks are about to change other than by a write."""
        offer = self._offers.get(file.ino)
        if offer is not None:
            offer.parts.is_over = True

    def has(self, ino: int) -> bool:
        return ino in self._offers

    def end(self, ino: int, *, saves_little: bool = False) -> None:
        """Withdraw an offer. With ``saves_little``, offer its parts again only after a write."""
        offer = self._offers.pop(ino, None)
        if offer is None:
            return
        if saves_little:
            for start, end in offer.parts.ranges:
                self.times.pass_over(ino, start, end)
        offer.file.on_write = None
        self._files.release(offer.file)

    async def begin(self, request: CommitRequest, *, are_refused: bool) -> None:
        """Give the file the recipe; it keeps its blocks. Raises FileChanged, Busy, OSError."""
        offer = self._offers.get(request.identity.inode)
        if offer is None:
            raise FileChanged(_CHANGED)
        file, parts = offer
        async with file.lock.alone():
            is_same = _recipe_of(file) == parts.recipe and request.identity.size == parts.size
            if parts.is_over or not is_same:
                raise FileChanged(_CHANGED)
            before = file.stub
            if are_refused:
                raise Busy("garbage is being collected")
            with unseen_step([file.ino]):
                made = begin_parts(file.fd, request.recipe, parts.size, self._volume.stub_files)
            file.stub = self._files.sparse(file, made)
            file.stub.has_unwritten = before is not None and before.has_unwritten
            parts.recipe = made.recipe

    async def finish(self, ino: int) -> int:
        """Punch the unchanged parts, piece by piece; return the bytes of freed blocks. The recipe
        and the attribute must be durable. Raises FileChanged, OSError."""
        offer = self._offers.get(ino)
        if offer is None:
            raise FileChanged(_CHANGED)
        file, parts = offer
        freed_bytes = 0
        try:
            for start, end in parts.pieces():
                async with file.lock.alone():
                    if parts.is_over:
                        raise FileChanged(_CHANGED)
                    if parts.is_written(start):
                        continue
                    file.keeps_times = True
                    try:
                        with unseen_step([ino]):
                            freed_bytes += await trio.to_thread.run_sync(
                                punch_parts, file.fd, [(start, end)], self._volume.stub_files
                            )
                    finally:
                        file.keeps_times = False
                await trio.lowlevel.checkpoint()
        finally:
            self.end(ino)
        return freed_bytes


def _recipe_of(file: OpenFile) -> int | None:
    return None if file.stub is None else file.stub.attribute.recipe


def _found(
    fd: int, quiet: list[tuple[int, int]], block_bytes: int, bytes_max: int
) -> list[tuple[int, int]]:
    """Find the ranges, in a thread: the extent map of a large file has many rows."""
    with opened(os.dup(fd)) as own:
        return list(present_quiet(own, quiet, block_bytes, bytes_max))
