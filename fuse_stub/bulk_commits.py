"""Commits thousands of files at a time, in native code and in parallel.

It handles only plain files that no user has open. The commit lane commits all other files one by
one. A file is held until its commit is finished. A user who opens or changes it waits some
milliseconds for the native call on its group, and takes it over (``files/held_files.py``).
"""

import logging
import resource
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from dedupd_core.errors import DedupdError
from dedupd_core.native.commit import CommitRequests
from dedupd_core.stub.commit_steps import DONE, Outcome, Result, result_of
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import cores
from dedupd_core.volume.commit import new_batch
from dedupd_core.volume.commit_requests import CommitRequest
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


class _OpenGroup(NamedTuple):
    """The started commits of a group: its places, and the position of each in the request."""

    group: HeldGroup
    positions: dict[int, int]


class BulkCommit:
    """The files that one client commits together: ``count`` files in groups, and the inodes of
    files that are committed alone, by position."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.groups: list[_OpenGroup] = []
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

    async def begin(self, asked: CommitRequests) -> tuple[BulkCommit, dict[int, Result]]:
        """Start the commits of the first ``files_max`` files at most: ``count`` is their number.

        Returns the results, by position, of commits that did not start. Raises OSError.
        """
        requests = asked.part(0, self.files_max)
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
        inodes = array("Q", requests.inodes)
        are_plain, alone = requests.are_plain, list[int]()
        results: dict[int, Result] = {}
        for first in range(0, bulk.count, GROUP_FILES):
            positions = range(first, min(first + GROUP_FILES, bulk.count))
            free: dict[int, int] = {}  # each inode once
            if not self._lane.are_refused and not self._has_ended:
                is_free = self._is_free
                free = {inodes[at]: at for at in positions if are_plain[at] and is_free(inodes[at])}
            together = sorted(free.values())
            if together:
                results |= await self._begin_group(bulk, requests, together)
            alone += [at for at in positions if free.get(inodes[at]) != at]
        for at in alone:
            if self._has_ended:
                results[at] = Result(Outcome.IN_USE, "the volume is being unmounted")
                continue
            [result] = await self._lane.begin([CommitRequest.of(requests[at])])
            if result.outcome is Outcome.DONE:
                bulk.alone[at] = inodes[at]
            else:
                results[at] = result
        return results

    async def _begin_group(
        self, bulk: BulkCommit, requests: CommitRequests, positions: Sequence[int]
    ) -> dict[int, Result]:
        """Start commits of files that no user has open. Returns the results of refused files."""
        batch = new_batch(self._volume, cores(), is_shared=False)
        group = HeldGroup(batch, requests.pick(positions))
        begun = _OpenGroup(group, dict(enumerate(positions)))
        results: dict[int, Result] = {}
        bulk.groups.append(begun)
        async with _alone(group):
            self._held.hold(group)
            try:
                with unseen_step(group.inodes):
                    refusals = await trio.to_thread.run_sync(batch.begin, group.requests)
            except BaseException:
                await self._let_go_of_all(group)
                raise
            for place, refusal in refusals:
                results[begun.positions.pop(place)] = result_of(refusal)
                self._held.drop(group, place)
        return results

    def _is_free(self, ino: int) -> bool:
        return self._files.get(ino) is None and ino not in self._held

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

    async def _finish_group(self, bulk: BulkCommit, begun: _OpenGroup) -> dict[int, Result]:
        """Finish the files of a group that no user has taken over; the others go alone."""
        group, positions = begun
        async with _alone(group):
            places = self._held.places(group)
            with unseen_step([group.inodes[place] for place in places]):
                refusals, freed_bytes = await trio.to_thread.run_sync(group.batch.finish)
            for place in places:
                self._held.drop(group, place)
        results = {positions[place]: result_of(refusal) for place, refusal in refusals}
        for place in positions.keys() - places:
            bulk.alone[positions[place]] = group.inodes[place]
        done = next((at for at in map(positions.get, places) if at not in results), None)
        if done is not None:
            results[done] = DONE._replace(freed_bytes=freed_bytes)
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
        failed = group.batch.revert()
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
