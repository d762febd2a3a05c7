"""Committing optimized files in batches: attributes, one sync, then the punches.

Where a process serves the mount, it does both steps itself, under its own inode locks; the job
only syncs in between. Otherwise the job does them, holding the mount's lock so that no mount can
begin meanwhile.
"""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from dedupd_core import native
from dedupd_core.errors import Busy, DedupdError, NoSpace, ServiceUnreachable
from dedupd_core.failpoint import define, reach
from dedupd_core.native.commit import CommitRequests
from dedupd_core.stub.commit_steps import DONE, Outcome, Result, result_of
from dedupd_core.stub.transition import settle
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume

_BEGUN = define("commit.begun", "the attributes of a batch are set, not yet synced")
_DURABLE = define("commit.durable", "the attributes of a batch are durable, nothing is punched")
_FINISHED = define("commit.finished", "a batch is punched")

BATCH_FILES_MAX = 4096
"""Files per batch, if the limit of descriptors allows it: each batch costs a sync. The process that
serves a mount may take fewer."""


class Committer(Protocol):
    """Commits a batch of files whose chunks and recipes are durable."""

    def commit(self, requests: CommitRequests) -> list[Result]:
        """One result per request. Raises NoSpace, ServiceUnreachable."""
        ...


class VolumeCommitter:
    """Chooses, for every batch, between the mount's process and doing it here."""

    def __init__(self, volume: Volume, threads: int = 1) -> None:
        """Where it does it here, many files at once on up to ``threads`` threads."""
        self._volume = volume
        self._threads = threads

    def let_go(self) -> None:
        """Have the mount, if there is one, close the files that it keeps open for writing and that
        nobody writes to just now: they would pass for files in use."""
        with self._told("let_go"):
            pass

    def commit(self, requests: CommitRequests) -> list[Result]:
        results: list[Result] = []
        self._volume.note_stubs()
        while len(results) < len(requests):
            results += self._commit_batch(requests, len(results))
        return results

    @contextmanager
    def awaited(self, freed_bytes: Callable[[], int]) -> Iterator[None]:
        """Let the process that serves the mount, if there is one, know of a run while it lasts: a
        restore waits for it. ``freed_bytes`` is asked where the run went to its end, or to that of
        the space; one that was stopped or killed says nothing."""
        with self._told("run_begin") as client:
            try:
                yield
            except NoSpace:
                _end_run(client, freed_bytes())
                raise
            _end_run(client, freed_bytes())

    @contextmanager
    def _told(self, operation: str) -> Iterator[ControlClient | None]:
        """For a block during which a connection to the mount lasts that has told it something."""
        with ExitStack() as stack:
            client = None
            # Where the process has gone, or serves a copy, it has nothing to do with this volume.
            with suppress(Busy, ServiceUnreachable):
                client = self._volume.mount_client()
                if client is not None:
                    stack.callback(client.close)
                    client.call(operation)
            yield client

    def _commit_batch(self, requests: CommitRequests, start: int) -> list[Result]:
        """Results of the next few requests."""
        with self._volume.mount_or_lock() as held:
            if isinstance(held, ControlClient):
                batch = requests.part(start, start + BATCH_FILES_MAX)
                return _commit_by_mount(self._volume, held, batch)
            settle_noted(self._volume, held)
            batch = requests.part(start, start + descriptors_to_spare())
            with held.under_way(batch.paths):
                return _commit_here(self._volume, batch, self._threads)


def _end_run(client: ControlClient | None, freed_bytes: int) -> None:
    if client is not None:
        with suppress(ServiceUnreachable):
            client.call("run_end", freed_bytes=freed_bytes)


def descriptors_to_spare() -> int:
    """How many files to hold open for a batch; raises the limit of descriptors where it may."""
    wanted = 2 * BATCH_FILES_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(BATCH_FILES_MAX, soft // 2))


def _commit_here(volume: Volume, requests: CommitRequests, threads: int) -> list[Result]:
    """Commit files together here, in one native call for each of the two steps."""
    results = [DONE] * len(requests)
    with closing(new_batch(volume, threads, is_shared=True)) as batch:
        try:
            refusals = batch.begin(requests)
        except BaseException:
            batch.revert()
            raise
        reach(_BEGUN)
        try:
            volume.sync()
        except BaseException:
            batch.revert()
            raise
        reach(_DURABLE)
        unfinished, freed_bytes = batch.finish()
        reach(_FINISHED)
    for at, refusal in (*refusals, *unfinished):
        results[at] = result_of(refusal)
    if DONE in results:
        results[results.index(DONE)] = DONE._replace(freed_bytes=freed_bytes)
    return results


def new_batch(volume: Volume, threads: int, *, is_shared: bool) -> "native.commit.CommitBatch":
    """To commit files of a volume together."""
    files = volume.stub_files
    return native.commit.CommitBatch(
        volume.data_fd, *files.fields, threads, is_shared, files.disk.door
    )


def settle_interrupted(volume: Volume, path: bytes) -> None:
    """Finish the transition in which a crash left the stub at ``path``.

    Where the volume is mounted this is left to the process that serves it: it settles whatever it
    opens. Raises Damaged, OSError.
    """
    try:
        with volume.mount_lock() as transitions:
            settle_noted(volume, transitions)
            with transitions.under_way([path]):
                settle_stub(volume, path)
    except Busy:
        pass


def settle_stub(volume: Volume, path: bytes) -> None:
    """As :func:`settle_interrupted`, by the holder of the mount's lock."""
    with opened(open_beneath(volume.data_fd, path, os.O_RDWR | os.O_NONBLOCK)) as fd:
        where = show_path(path)
        stub = volume.space.read(fd, where)
        if stub is not None and stub.flags.transient:
            load = partial(volume.content, stub, where)
            settle(fd, stub, load, volume.stub_files)


def settle_noted(volume: Volume, transitions: Transitions) -> None:
    """Finish the transitions in which the last holder of the mount's lock was interrupted.

    What cannot be settled now is when it is opened, or by the next optimize job.
    """
    noted = transitions.interrupted()
    for path in noted:
        try:
            settle_stub(volume, path)
        except (DedupdError, OSError, ValueError):
            continue
    if noted:
        transitions.clear()


def _raise_failure(volume: Volume, reply: dict[str, Any]) -> None:
    if "results" not in reply:
        raise ServiceUnreachable(
            f"{volume.root}: the mount process could not commit:"
            f" {reply.get('error', 'it gave no reason')}; run the job again"
        )


def _commit_by_mount(
    volume: Volume, client: ControlClient, requests: CommitRequests
) -> list[Result]:
    """Commit files together. The mount may take fewer: the results are of the first ones."""
    reply = client.call_with("commit_many", requests.to_bytes())
    _raise_failure(volume, reply)
    reach(_BEGUN)
    results = [DONE] * reply["taken"]
    volume.sync()
    reach(_DURABLE)
    finished = client.call("commit_done")
    _raise_failure(volume, finished)
    for at, row in (*reply["results"], *finished["results"]):
        results[at] = result_from_json(row)
    reach(_FINISHED)
    return results


def result_to_json(result: Result) -> dict[str, Any]:
    return result._asdict()


def result_from_json(row: dict[str, Any]) -> Result:
    return Result(Outcome(row["outcome"]), row["reason"], row["freed_bytes"])
