"""Group commit: what a batch of files needs becomes durable, then the files become stubs.

One group is on its way, in a thread of its own, while the next one is being ingested.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dedupd_core.native.commit import CommitRequests
from dedupd_core.stub.commit_steps import Result
from dedupd_core.volume.commit import Committer
from dedupd_core.volume.unfinished_files import Checkpoint
from jobs.optimize.store_session import StoreSession, StoreSync

RESTORE_GROUPS = 8
"""While a restore fills the volume groups are smaller by this: its writers wait for the space."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What became of a group, and the seconds that its sync and its commit took.

    ``checkpoint`` is that of a file in the middle of which the group ends; it is durable now.
    """

    requests: CommitRequests
    results: Sequence[Result]
    checkpoint: Checkpoint | None
    sync_s: float
    commit_s: float


class GroupCommit:
    """Commits groups of files one after the other. ``on_done`` hears of each in the main thread."""

    def __init__(
        self, store: StoreSession, committer: Committer, on_done: Callable[[GroupResult], None]
    ) -> None:
        self._store = store
        self._committer = committer
        self._on_done = on_done
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._pending: Future[GroupResult] | None = None
        self._stored: Future[None] = Future()

    @property
    def pending(self) -> bool:
        """Whether a group is on its way."""
        return self._pending is not None

    def submit(self, requests: CommitRequests, checkpoint: Checkpoint | None = None) -> None:
        """Commit files whose chunks and recipes were all appended, after the group before them.

        Raises NoSpace, and whatever went wrong with the group before.
        """
        self.wait()
        noted = self._store.begin_sync()
        self._stored = Future()
        self._pending = self._thread.submit(self._commit, noted, requests, checkpoint)

    def wait(self) -> None:
        """Wait for the group on its way. Raises what went wrong with it."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._on_done(pending.result())

    def wait_stored(self) -> None:
        """Wait until the group on its way needs the session no more: all that its files name is
        durable, and they go on to become stubs. Raises what went wrong until then."""
        if self._pending is not None and self._stored.exception() is not None:
            self.wait()

    def close(self) -> None:
        """Wait for the thread, whatever comes of it."""
        self._thread.shutdown(wait=True)

    def _commit(
        self,
        noted: StoreSync,
        requests: CommitRequests,
        checkpoint: Checkpoint | None,
    ) -> GroupResult:
        began = time.perf_counter()
        try:
            self._store.finish_sync(noted)
            if requests:
                self._store.keep(noted)
        except BaseException as error:
            self._stored.set_exception(error)
            raise
        synced = time.perf_counter()
        self._stored.set_result(None)
        results = self._committer.commit(requests) if requests else []
        done = time.perf_counter()
        return GroupResult(requests, results, checkpoint, synced - began, done - synced)
