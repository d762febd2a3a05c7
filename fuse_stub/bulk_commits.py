"""Commits thousands of plain files at a time, in native code and in parallel.

It handles only files that no user has open. All other files, and those that native code rejects,
are committed one by one by the commit lane, which reports the reason of a failure. A file is held
until its commit is finished. A user who opens or changes it waits some milliseconds for the native
call on its group, and takes it over (``files/held_files.py``).
"""

import logging
import resource
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from dedupd_core import native
from dedupd_core.errors import DedupdError
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import cores
from dedupd_core.volume.commit import Outcome, Result
from dedupd_core.volume.commit_requests import CommitRequests
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.commit_lane import CommitLane
from fuse_stub.files.attributes import unseen_step
from fuse_stub.files.held_files import HeldFiles, HeldGroup
from fuse_stub.files.open_files import OpenFiles

log = logging.getLogger("dedupd.mount")

GROUP_FILES = 256
"""Files per native call: a user of one of them waits for all of them."""

FILES_MAX = 4096
"""Files that one client may hold; each uses a descriptor."""

_DONE = Result(Outcome.DONE)
_HALF_WAY = Result(Outcome.FAILED, "it could not be punched; the next job continues")


class _Begun(NamedTuple):
    """The started commits of a group: its places, and the position of each in the request."""

    group: HeldGroup
    positions: dict[int, int]


class BulkCommit:
    """The files that one client commits together: ``count`` files in groups, and the inodes of
    files that are committed alone, by position."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.groups: list[_Begun] = []
        self.alone: dict[int, int] = {}


class BulkCommits:
    """The bulk commits of all clients. Used by the event-loop thread between two awaits."""

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        files: OpenFiles,
        lane: CommitLane,
    ) -> None:
        self._volume = volume
        self._transitions = transitions
        self._files = files
        self._held: HeldFiles = files.held
        self._lane = lane
        self._under_way: set[BulkCommit] = set()
        self._has_ended = False
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.files_max = max(1, min(FILES_MAX, limit // 8))

    async def begin(
        self, plain: native.commit.PlainRequests
    ) -> tuple[BulkCommit, dict[int, Result]]:
        """Start the commits of the first ``files_max`` files at most: ``count`` is their number.

        Returns the results, by position, of commits that did not start. Raises OSError.
        """
        requests = CommitRequests(plain.part(0, self.files_max))
        bulk = BulkCommit(len(requests))
        self._transitions.begin(requests.paths)
        self._under_way.add(bulk)
        try:
            return bulk, await self._begin_all(bulk, requests)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.abandon(bulk)
            raise

    async def _begin_all(self, bulk: BulkCommit, requests: CommitRequests) -> dict[int, Result]:
        inodes = array("Q", requests.plain.inodes)
        left: list[int] = []
        for first in range(0, bulk.count, GROUP_FILES):
            positions = range(first, min(first + GROUP_FILES, bulk.count))
            begun = await self._begin_group(bulk, requests, inodes, positions)
            left += [at for at in positions if at not in begun]
        results: dict[int, Result] = {}
        for at in left:
            if self._has_ended:
                results[at] = Result(Outcome.IN_USE, "the volume is being unmounted")
                continue
            [result] = await self._lane.begin([requests[at]])
            if result.outcome is Outcome.DONE:
                bulk.alone[at] = inodes[at]
            else:
                results[at] = result
        return results

    async def _begin_group(
        self, bulk: BulkCommit, requests: CommitRequests, inodes: Sequence[int], positions: range
    ) -> set[int]:
        """Start the ordinary commits of some files; return their positions."""
        free: dict[int, int] = {}  # each inode only once
        if not self._lane.are_refused and not self._has_ended:
            free = {inodes[at]: at for at in positions if self._is_free(inodes[at])}
        if not free:
            return set()
        ordinary = sorted(free.values())
        group = self._group(requests.plain.pick(ordinary))
        begun = _Begun(group, {})
        bulk.groups.append(begun)
        async with _alone(group):
            self._held.hold(group)
            try:
                with unseen_step(group.inodes):
                    flags = await trio.to_thread.run_sync(group.batch.begin, group.requests)
            except BaseException:
                await self._let_go_of_all(group)
                raise
            for place, flag in enumerate(flags):
                if flag:
                    begun.positions[place] = ordinary[place]
                else:
                    self._held.drop(group, place)
        return set(begun.positions.values())

    def _is_free(self, ino: int) -> bool:
        return self._files.get(ino) is None and ino not in self._held

    def _group(self, requests: native.commit.PlainRequests) -> HeldGroup:
        volume = self._volume
        batch = native.commit.CommitBatch(
            volume.data_fd,
            volume.space.name,
            volume.space.seeds,
            volume.block_bytes,
            cores(),
            False,
            volume.disk.door,
        )
        return HeldGroup(batch, requests)

    async def finish(self, bulk: BulkCommit) -> dict[int, Result]:
        """Finish the commits, after the attributes have become durable: punch the blocks.

        Returns results by position. Files without a result from either step are done.
        """
        results: dict[int, Result] = {}
        try:
            for begun in bulk.groups:
                results |= await self._finish_group(bulk, begun)
            for at, ino in bulk.alone.items():
                [results[at]] = await self._lane.finish([ino])
        finally:
            with trio.CancelScope(shield=True):
                await self.abandon(bulk)
        return results

    async def _finish_group(self, bulk: BulkCommit, begun: _Begun) -> dict[int, Result]:
        """Finish the ordinary commits of a group. Files that users took over are left for later."""
        group, positions = begun
        results: dict[int, Result] = {}
        async with _alone(group):
            places = self._held.places(group)
            with unseen_step([group.inodes[place] for place in places]):
                flags, freed_bytes = await trio.to_thread.run_sync(group.batch.finish)
            for place in places:
                at = positions[place]
                if flags[place]:
                    self._held.drop(group, place)
                elif not self._held.hand_over(group, place):
                    results[at] = _HALF_WAY
        done = [place for place in positions if flags[place]]
        if done:
            results[positions[done[0]]] = _DONE._replace(freed_bytes=freed_bytes)
        for place, at in positions.items():
            if not flags[place] and at not in results:
                bulk.alone[at] = group.inodes[place]
        return results

    async def abandon(self, bulk: BulkCommit) -> None:
        """Roll back the started commits that are not finished."""
        if bulk not in self._under_way:
            return
        self._under_way.discard(bulk)
        for group, positions in bulk.groups:
            async with _alone(group):
                if self._held.places(group):
                    await self._let_go_of_all(group)
            group.batch.close()
            await self._lane.abandon([group.inodes[place] for place in positions])
        await self._lane.abandon(list(bulk.alone.values()))
        self._transitions.end()

    async def _let_go_of_all(self, group: HeldGroup) -> None:
        """Roll back the commits of a group's files that no user has taken over.

        In-place writes can reach the disk before the journal, so the removal of the attributes is
        made durable first. If that fails, the file is a stub with all its blocks, to be settled
        later.
        """
        places = self._held.places(group)
        try:
            with unseen_step([group.inodes[place] for place in places]):
                failed = await trio.to_thread.run_sync(self._take_back, group)
        except (DedupdError, OSError) as error:
            failed = 1
            log.error("commits could not be rolled back durably: %s", explain(error))
        if failed:
            log.error(
                "%d commits were not rolled back; these files are settled when they are opened",
                failed,
            )
        for place in places:
            self._held.drop(group, place)

    def _take_back(self, group: HeldGroup) -> int:
        failed = sum(group.batch.revert())
        self._volume.disk.sync_file_system(self._volume.data_fd)
        return failed

    async def abandon_all(self) -> None:
        """Roll back all commits and start no more, at the end of the mount."""
        self._has_ended = True
        for bulk in list(self._under_way):
            await self.abandon(bulk)


@asynccontextmanager
async def _alone(group: HeldGroup) -> AsyncIterator[None]:
    """Make users of a group's files wait during a native call on the group and its follow-up."""
    while group.resting is not None:
        await group.resting.wait()
    event = group.resting = trio.Event()
    try:
        yield
    finally:
        group.resting = None
        event.set()
