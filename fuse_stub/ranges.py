"""Requests on ranges of files without data: fallocate(2), ``SEEK_DATA``, ``SEEK_HOLE`` and
copy_file_range(2)."""

import ctypes
import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from pyfuse3 import FUSEError

from dedupd_core.format.container import Kind
from dedupd_core.format.deletion import Cause
from dedupd_core.format.stub import Flag
from dedupd_core.stub import ranges
from dedupd_core.stub.copying import can_share, goes_on, share
from dedupd_core.stub.stub_file import RangeStep, SparseStub
from dedupd_core.units import MIB
from dedupd_core.volume.domains import Domains
from fuse_stub.commit_lane import CommitLane
from fuse_stub.files.open_file import OpenFile
from fuse_stub.kernel.caller_rights import Caller, keeps_set_ids
from fuse_stub.mounted_volume import MountedVolume

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 0x01, 0x02, 0x10
"""Modes of fallocate(2)."""

COPY_BYTES = 32 * MIB
"""Bytes of a plain file per request: other users of the copy wait during it."""

HOLES_MAX = 64
"""Holes that are checked for one answer. Beyond this number, the remainder counts as data."""

_libc = ctypes.CDLL(None, use_errno=True)


class FileRanges:
    """Answers these requests. Used by the event-loop thread.

    A change locks the file exclusively for one step at a time, so that other users have their turn.
    """

    def __init__(self, mount: MountedVolume) -> None:
        self._mount = mount
        self._files = mount.files
        self._lane: CommitLane = mount.commit_lane

    async def allocate(self, ino: int, start: int, length: int, mode: int, caller: Caller) -> None:
        """Allocate a range, or make it zeros. Raises OSError, NoSpace, Damaged."""
        kind = mode & ~KEEP_SIZE
        if kind not in (0, PUNCH_HOLE, ZERO_RANGE) or (kind == PUNCH_HOLE and mode == kind):
            raise FUSEError(errno.EOPNOTSUPP)
        await self._lane.touch(ino)
        file = await self._files.acquire(ino, write=True)
        with self._files.using(file):
            if file.privileged and not keeps_set_ids(caller):
                file.drop_set_ids()
            end = start + length
            if kind:
                await self._in_steps(file, start, end, caller, _zero, mode)
            if kind != PUNCH_HOLE:
                await self._in_steps(file, start, end, caller, _allocate, mode & KEEP_SIZE)

    async def _in_steps(
        self,
        file: OpenFile,
        start: int,
        end: int,
        ctx: Caller,
        take: Callable[[OpenFile, int, int, int], RangeStep],
        mode: int,
    ) -> None:
        while start < end:
            file.changes += 1
            async with self._lane.reshaping(file):
                self._mount.deletions.changing(file, Cause.OVERWRITTEN)
                step = self._mount.change_in_thread(ctx, take, file, start, end, mode)
                start, is_plain = await step
                if is_plain:
                    file.stub = None

    async def seek(self, ino: int, offset: int, whence: int, uid: int) -> int:
        """Return the next start of data, or of a hole. Raises OSError, Damaged.

        A hole is reported only if the file shows it after the kernel has no newer page in it. No
        lock is held during this: the kernel writes such pages back by requests to this mount.
        """
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise FUSEError(errno.EINVAL)
        at, clean = offset, range(0)
        for _ in range(HOLES_MAX):
            found = await self._search(ino, at, whence, uid)
            hole = found.hole(at, whence)
            if not hole or (hole.start in clean and hole.stop <= clean.stop):
                return found.answer()
            newer = await self._mount.in_thread(
                uid, self._mount.inodes.first_newer, ino, hole.start, hole.stop
            )
            if newer is None:
                clean = hole
            elif whence == os.SEEK_DATA:
                return newer
            else:
                data = await self._search(ino, hole.start, os.SEEK_DATA, uid)
                if data.offset is None:
                    return data.size
                at, clean = data.offset, range(0)
        return offset if whence == os.SEEK_DATA else found.size

    async def _search(self, ino: int, offset: int, whence: int, uid: int) -> "_SeekResult":
        file = await self._files.acquire(ino, write=False)
        with self._files.using(file):
            async with file.lock.shared():
                return await self._mount.in_thread(uid, _search, file, offset, whence)

    async def copy(
        self, ino: int, offset: int, to: int, offset_to: int, length: int, caller: Caller
    ) -> int:
        """Copy a range of a plain file, or share the recipe of a stub with an empty file.

        Returns the number of bytes, which may be fewer. Raises OSError, and FUSEError (EOPNOTSUPP)
        for all other copies, which the kernel makes by reading and writing.
        """
        if ino == to:
            raise FUSEError(errno.EOPNOTSUPP)
        await self._lane.touch(to)
        source = await self._files.acquire(ino, write=False)
        with self._files.using(source):
            file = await self._files.acquire(to, write=True)
            with self._files.using(file):
                if file.privileged and not keeps_set_ids(caller):
                    file.drop_set_ids()
                file.changes += 1
                async with self._lane.reshaping(file):
                    # This never waits for the lock of a second file.
                    if not source.lock.try_share():
                        raise FUSEError(errno.EOPNOTSUPP)
                    try:
                        if source.stub is not None and offset == offset_to:
                            return self._mount.change(
                                caller, self._share, source, source.stub, file, offset, length
                            )
                        if source.stub is not None or file.stub is not None:
                            raise FUSEError(errno.EOPNOTSUPP)
                        what = (source.fd, file.fd, min(length, COPY_BYTES), offset, offset_to)
                        return await self._mount.change_in_thread(caller, os.copy_file_range, *what)
                    finally:
                        source.lock.unshare()

    def _share(
        self, source: OpenFile, stub: SparseStub, file: OpenFile, start: int, length: int
    ) -> int:
        """Share a recipe, without an await. Garbage collection sees the source's record while that
        is open, and a copy that exists before it starts."""
        end = min(start + length, os.fstat(source.fd).st_size)
        if (
            start >= end
            or self._mount.marking_sessions.is_open
            or not self._mount.volume.store_kind.shares_recipes
            or self._lane.is_pending(source.ino)
            or file.is_filled
            or not can_share(stub)
            or not self._is_of_one_domain(stub, file)
            or not goes_on(stub, file.stub, start, os.fstat(file.fd).st_size)
        ):
            raise FUSEError(errno.EOPNOTSUPP)
        made = share(file.fd, stub.attribute, end, self._mount.volume.stub_files)
        file.stub = self._files.sparse(file, made)
        return end - start

    def _is_of_one_domain(self, source: SparseStub, copy: OpenFile) -> bool:
        """Return whether a copy may have the recipe of a stub."""
        volume, attribute = self._mount.volume, source.attribute
        domains = Domains.of_volume(volume, self._mount.policy.now)
        kind = Kind.CHUNKS if Flag.DIRECT in attribute.flags else Kind.RECIPES
        domain = volume.records(kind).domain_of(attribute.recipe)
        return domains.may_share(domain, os.fstat(copy.fd).st_uid)


def _zero(file: OpenFile, start: int, end: int, mode: int) -> RangeStep:
    if file.stub is not None:
        return file.stub.zero(start, end)
    _fallocate(file.fd, mode, start, end - start)
    return RangeStep(end)


def _allocate(file: OpenFile, start: int, end: int, mode: int) -> RangeStep:
    if file.stub is not None:
        return file.stub.allocate(start, end, keep_size=bool(mode))
    _fallocate(file.fd, mode, start, end - start)
    return RangeStep(end)


class _SeekResult(NamedTuple):
    """The state of the file itself: the offset of the data or hole, or None."""

    offset: int | None
    size: int

    def hole(self, start: int, whence: int) -> range:
        """Return the hole that an answer reports: all bytes before data, or only its first byte.
        The end of a file is no hole."""
        if whence == os.SEEK_DATA:
            return range(start, self.size if self.offset is None else self.offset)
        if self.offset is None or self.offset >= self.size:
            return range(0)
        return range(self.offset, self.offset + 1)

    def answer(self) -> int:
        """Return the offset. Raises OSError (ENXIO) if there is none."""
        if self.offset is None:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return self.offset


def _search(file: OpenFile, offset: int, whence: int) -> _SeekResult:
    size = os.fstat(file.fd).st_size
    try:
        return _SeekResult(_seek(file, offset, whence), size)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return _SeekResult(None, size)


def _seek(file: OpenFile, offset: int, whence: int) -> int:
    if file.stub is None:
        return os.lseek(file.fd, offset, whence)
    find = ranges.next_data if whence == os.SEEK_DATA else ranges.next_hole
    return find(file.stub, offset)


def _fallocate(fd: int, mode: int, start: int, length: int) -> None:
    if _libc.fallocate64(fd, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
