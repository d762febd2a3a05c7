"""Expands files while users work, in the process that serves the mount.

A job requests one step after the other. Between steps it decides whether to continue, wait or stop,
so the job sets the pace. The file's lock is held for a piece of some MiB, and never during reads of
the store or waits for the disk. Between two pieces the file is an ordinary stub.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from dedupd_core.errors import Busy, DedupdError
from dedupd_core.stub.filling import StubFill
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.paths import explain, open_beneath
from dedupd_core.system.tree.tree_paths import path_in_tree
from dedupd_core.volume.restore import filling_of
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.commit_lane import CommitLane
from fuse_stub.files.attributes import unseen_step
from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.open_files import OpenFiles

log = logging.getLogger("dedupd.mount")

STEP_S = 0.1
"""After this time, a step ends with its current piece, so that the job can decide."""


class FillLane:
    """The files that are being expanded. Used by the event-loop thread."""

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        files: OpenFiles,
        commit_lane: CommitLane,
    ) -> None:
        self.volume = volume
        self.transitions = transitions
        self.files = files
        self.commit_lane = commit_lane
        self.is_ending = False

    def end(self) -> None:
        """Stop all expansions at the end of the mount: the files stay stubs."""
        self.is_ending = True

    async def begin(self, path: bytes) -> "FileFill | None":
        """Start to expand a file; None if it is plain. Raises Busy, DedupdError, OSError."""
        fd = open_beneath(self.volume.data_fd, path, os.O_RDWR | os.O_NONBLOCK)
        # Opened for writing, so the file stays open with the same descriptor.
        file = await self.files.acquire_by_fd(fd)
        try:
            if file.is_filled:
                raise Busy(f"{file.where}: is already being expanded")
            file.is_filled = True
            try:
                return await self._begin(file)
            except BaseException:
                file.is_filled = False
                raise
        except BaseException:
            self.files.release(file)
            raise

    async def _begin(self, file: OpenFile) -> "FileFill | None":
        async with self.commit_lane.reshaping(file):
            stub = file.stub
            if stub is not None:
                filling = await trio.to_thread.run_sync(filling_of, self.volume, stub, file.where)
                return FileFill(self, file, stub, filling)
        file.is_filled = False
        self.files.release(file)
        return None


class FileFill:
    """One file that is being expanded, for one client of the control socket.

    It becomes plain, or :meth:`take_back` ends it, even if its client dies. Then it is closed.
    """

    def __init__(self, lane: FillLane, file: OpenFile, stub: SparseStub, filling: StubFill) -> None:
        self._lane = lane
        self._file = file
        self._stub = stub
        self._filling = filling
        self._is_closed = False

    @property
    def where(self) -> str:
        """The current name of the file, for messages."""
        return self._file.where

    @property
    def filled_bytes(self) -> int:
        return self._filling.filled_bytes

    async def go_on(self) -> bool:
        """Expand some pieces; return True when the file is plain.

        Raises NoSpace, Damaged, OSError; then call :meth:`take_back`.
        """
        filling, end_s = self._filling, time.monotonic() + STEP_S
        while self._is_stub and not filling.is_complete:
            await trio.to_thread.run_sync(filling.load)
            async with self._alone() as is_stub:
                if is_stub:
                    await trio.to_thread.run_sync(filling.fill)
            if filling.wants_sync:
                await self._sync(filling.write_out)
            if time.monotonic() > end_s or self._lane.is_ending:
                return False
        if self._is_stub:
            await self._sync(filling.sync)
            async with self._alone() as is_stub:
                if is_stub:
                    await trio.to_thread.run_sync(filling.finish)
                    self._file.stub = None
        self._close()
        return True

    @property
    def _is_stub(self) -> bool:
        """True if it is still the same stub: a user may have emptied the file."""
        return self._file.stub is self._stub

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[bool]:
        """Lock the file for one piece; yield False if the file is no longer this stub."""
        file, lane = self._file, self._lane
        async with lane.commit_lane.reshaping(file):
            if not self._is_stub:
                yield False
                return
            file.keeps_times = True
            try:
                path = path_in_tree(lane.volume.data_fd, file.fd)
                with lane.transitions.under_way([path]), unseen_step([file.ino]):
                    yield True
            finally:
                file.keeps_times = False

    async def _sync(self, sync: Callable[[], None]) -> None:
        """Sync without a lock, so that no user waits."""
        with self._file.noting_losses():
            await trio.to_thread.run_sync(sync)

    async def take_back(self) -> None:
        """Free the expanded blocks, unless the mount is ending: then there is no time.

        Blocks that cannot be freed stay in the file, and their content is correct.
        """
        try:
            more = not self._is_closed
            if more and not self._lane.is_ending:
                # Blocks that are being written to the disk cannot be punched yet.
                await self._sync(self._filling.write_out)
            while more and self._is_stub and not self._lane.is_ending:
                async with self._alone() as is_stub:
                    more = is_stub and await trio.to_thread.run_sync(self._filling.take_back)
        except (DedupdError, OSError) as error:
            log.error("%s: the expansion was not rolled back: %s", self._file.where, explain(error))
        finally:
            self._close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._filling.stop()
            self._file.is_filled = False
            self._lane.files.release(self._file)
