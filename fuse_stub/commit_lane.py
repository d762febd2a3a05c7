"""Commits of single files, carried out by the process that serves the mount.

Only this process sees every write, so only it knows whether a file was changed between the two
steps of its commit. Between them the file is still served as a plain file. Any change of the file
rolls back the commit first.
"""

import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import trio

from dedupd_core.errors import Busy, DedupdError, FileChanged
from dedupd_core.format.deletion import Cause
from dedupd_core.format.stub import StubAttribute, decode_stub
from dedupd_core.stub.commit_steps import (
    NotCommitted,
    OpenCommit,
    Outcome,
    Result,
    begin_commit,
    finish_commit,
    io_failure,
    open_failure,
    revert_commit,
)
from dedupd_core.system.paths import explain, open_beneath
from dedupd_core.volume.commit_requests import CommitRequest
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.busy.part_lane import PartLane
from fuse_stub.deleted.noting import Deletions
from fuse_stub.files.attributes import forget_attributes, unseen_step
from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.open_files import OpenFiles
from fuse_stub.files.slow_calls import SlowCalls

log = logging.getLogger("dedupd.mount")

_CHANGED = "it changed while it was being committed"


class _Pending:
    """A commit that started as ``initial``. ``begun`` is None after it was rolled back."""

    __slots__ = ("begun", "changes", "file", "initial")

    def __init__(self, file: OpenFile, begun: OpenCommit) -> None:
        self.file = file
        self.initial = begun
        self.begun: OpenCommit | None = begun
        self.changes = file.changes


class CommitLane:
    """The unfinished commits. While they ``are_refused``, no commit starts.

    Used by the event-loop thread; fields change between two awaits. Before it changes a file it
    takes the file's exclusive lock (docs/design/mount-locks.md).
    """

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        files: OpenFiles,
        slow_calls: SlowCalls,
        deletions: Deletions,
        parts: PartLane,
    ) -> None:
        self._parts = parts
        self._deletions = deletions
        self._volume = volume
        self._slow_calls = slow_calls
        self._transitions = transitions
        self._files = files
        self._pending: dict[int, _Pending] = {}
        self.are_refused = False
        files.held.adopt = self._adopt
        parts.is_committing = self.is_under_way

    def attributes(self) -> Iterator[StubAttribute]:
        """Yield the attributes of the files now, and those that a rollback would restore."""
        yield from self._files.held.attributes()
        for pending in self._pending.values():
            yield pending.initial.stub
            if pending.initial.previous is not None:
                space = self._volume.space
                yield decode_stub(pending.initial.previous, space.volume_id, pending.file.where)

    def is_pending(self, ino: int) -> bool:
        """Return whether a started commit still waits for its job to finish or cancel it."""
        return ino in self._pending

    async def begin(self, requests: Sequence[CommitRequest]) -> list[Result]:
        """Turn files into stubs (with a new recipe) that still have all their blocks."""
        results = []
        for request in requests:
            try:
                results.append(await self._begin(request))
            except (DedupdError, OSError) as error:
                results.append(_failure(error))
            await trio.lowlevel.checkpoint()
        return results

    def _adopt(self, fd: int, begun: OpenCommit) -> None:
        """Adopt a held file with a started commit as an open file; takes ownership of ``fd``."""
        file = self._files.adopt(begun.identity.inode, fd)
        self._transitions.begin([])  # the bulk commit has noted its path
        self._pending[file.ino] = _Pending(file, begun)

    async def _begin(self, request: CommitRequest) -> Result:
        if request.in_parts:
            await self._parts.begin(request, are_refused=self.are_refused)
            return Result(Outcome.DONE)
        volume = self._volume
        try:
            fd = open_beneath(volume.data_fd, request.path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            return open_failure(error.errno or errno.EIO)
        file = await self._files.acquire_by_fd(fd)
        keep = False
        try:
            if file.ino in self._pending:
                raise Busy("it is being committed already")
            async with file.lock.alone():
                if self._parts.has(file.ino):
                    raise Busy("it is being committed in parts")
                if self.are_refused:
                    raise Busy("garbage is being collected")
                if file.is_filled:
                    raise Busy("it is being expanded")
                self._transitions.begin([request.path])
                try:
                    with unseen_step([file.ino]):
                        begun = begin_commit(
                            file.fd,
                            request.identity,
                            request.recipe,
                            volume.stub_files,
                            request.previous,
                        )
                except BaseException:
                    self._transitions.end()
                    raise
                self._pending[file.ino] = _Pending(file, begun)
                keep = True
        finally:
            if not keep:
                self._files.release(file)
        return Result(Outcome.DONE)

    async def finish(self, inodes: Sequence[int]) -> list[Result]:
        """Punch the blocks, after the attributes have become durable."""
        results = []
        for ino in inodes:
            pending = self._pending.get(ino)
            if pending is None and not self._parts.has(ino):
                results.append(Result(Outcome.CHANGED, _CHANGED))
                continue
            try:
                finish = self._parts.finish(ino) if pending is None else self._finish(pending)
                results.append(Result(Outcome.DONE, freed_bytes=await finish))
            except (DedupdError, OSError) as error:
                results.append(_failure(error))
            finally:
                if pending is not None:
                    self._let_go(pending)
            await trio.lowlevel.checkpoint()
        return results

    async def _finish(self, pending: _Pending) -> int:
        """Finish one commit; return the bytes of blocks that the file has freed."""
        volume, file = self._volume, pending.file
        async with file.lock.alone():
            begun = pending.begun
            if begun is None:
                raise FileChanged(_CHANGED)
            if file.changes != pending.changes:
                await self._take_back(pending)
                raise FileChanged(_CHANGED)
            pending.begun = None
            try:
                with unseen_step([file.ino]):
                    return await trio.to_thread.run_sync(
                        finish_commit, file.fd, begun, volume.stub_files
                    )
            finally:
                # Even after a failure halfway: the store now has the content of punched blocks.
                self._look_again(file)

    def _look_again(self, file: OpenFile) -> None:
        """Read the attribute again, and serve the file accordingly. It has no other user now."""
        before, stub = file.stub, self._volume.space.read(file.fd, file.where)
        file.stub = None if stub is None else self._files.sparse(file, stub)
        if before is not None and file.stub is not None:
            file.stub.has_unwritten = before.has_unwritten

    async def touch(self, ino: int) -> None:
        """Roll back a started commit of a file, because a user is about to change the file."""
        await self._files.held.take_over(ino)
        pending = self._pending.get(ino)
        if pending is not None:
            async with self.uncommitted(pending.file):
                pass

    def is_under_way(self, ino: int) -> bool:
        """Return whether a commit of a file is started, and neither finished nor rolled back."""
        pending = self._pending.get(ino)
        return pending is not None and pending.begun is not None

    async def truncate(
        self, file: OpenFile, size: int, uid: int, cut: Callable[[int], bool]
    ) -> None:
        """Set the length of a file that is open for writing, by its :meth:`OpenFile.cut`.

        A commit may have started while this waited for the lock. It is rolled back under the same
        lock: a later rollback would restore an attribute that covers the truncated content.
        """
        file.changes += 1
        async with self.reshaping(file):
            self._deletions.changing(file, Cause.CUT, size)
            if file.is_slow_to_cut(size):
                is_plain = await self._slow_calls.run(uid, cut, size)
            else:
                is_plain = cut(size)
            if is_plain:
                file.stub = None

    @asynccontextmanager
    async def uncommitted(self, file: OpenFile) -> AsyncIterator[None]:
        """Lock the file exclusively, with no running commit of it."""
        async with file.lock.alone():
            pending = self._pending.get(file.ino)
            if pending is not None:
                await self._take_back(pending)
            yield

    @asynccontextmanager
    async def reshaping(self, file: OpenFile) -> AsyncIterator[None]:
        """Like :meth:`uncommitted`, for a change that is no write: it also invalidates an offer of
        the file."""
        async with self.uncommitted(file):
            self._parts.over(file)
            yield

    async def _take_back(self, pending: _Pending) -> None:
        if pending.begun is None:
            return
        begun, pending.begun = pending.begun, None
        try:
            revert_commit(pending.file.fd, begun, self._volume.stub_files)
        except BaseException:
            # Then it is a stub that has all its blocks. If it was served as plain, it could get
            # holes, which its next reader would fill with the recipe's bytes.
            self._look_again(pending.file)
            raise
        finally:
            forget_attributes(pending.file.ino)
        # In-place writes can reach the disk before the journal: make the removal durable first.
        with pending.file.noting_losses():
            await trio.to_thread.run_sync(self._volume.disk.sync_file, pending.file.fd)

    async def abandon(self, inodes: Sequence[int]) -> None:
        """Roll back commits whose job has died.

        If that fails, the file is settled when it is opened next; the mount continues.
        """
        for ino in inodes:
            pending = self._pending.get(ino)
            if pending is None:
                continue
            try:
                async with pending.file.lock.alone():
                    await self._take_back(pending)
            except (DedupdError, OSError) as error:
                log.error(
                    "%s: a commit was not rolled back: %s", pending.file.where, explain(error)
                )
            finally:
                self._let_go(pending)

    def _let_go(self, pending: _Pending) -> None:
        if self._pending.get(pending.file.ino) is not pending:
            return  # it was finished while the end of the mount waited to roll it back
        del self._pending[pending.file.ino]
        self._transitions.end()
        self._files.release(pending.file)

    async def abandon_all(self) -> None:
        await self.abandon(list(self._pending))


def _failure(error: DedupdError | OSError) -> Result:
    """Return the result of a failed step for the job. Other errors affect only this file."""
    if isinstance(error, NotCommitted):
        return error.result
    if isinstance(error, OSError):
        return io_failure(error.errno or errno.EIO)
    if isinstance(error, FileChanged):
        return Result(Outcome.CHANGED, str(error))
    return Result(Outcome.IN_USE if isinstance(error, Busy) else Outcome.FAILED, str(error))
