"""Committing optimized files in batches: attributes, one sync, then the punches.

Where a process serves the mount, it does both steps itself, under its own inode locks; the job
only syncs in between. Otherwise the job does them, holding the mount's lock so that no mount can
begin meanwhile.
"""

import enum
import errno
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

from dedupd_core import native
from dedupd_core.errors import (
    AttributesFull,
    Busy,
    DedupdError,
    FileChanged,
    NoSpace,
    ServiceUnreachable,
)
from dedupd_core.failpoint import define, reach
from dedupd_core.stub.transition import (
    FULL_OF_ATTRIBUTES,
    Begun,
    FileIdentity,
    begin_commit,
    committing,
    finish_commit,
    revert_commit,
    settle,
)
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.system.files import opened
from dedupd_core.system.leases import lease_exclusively
from dedupd_core.system.paths import DirectoryOpener, open_beneath, show_path
from dedupd_core.volume.commit_requests import CommitRequests, request_to_json
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume

_BEGUN = define("commit.begun", "the attributes of a batch are set, not yet synced")
_DURABLE = define("commit.durable", "the attributes of a batch are durable, nothing is punched")
_FINISHED = define("commit.finished", "a batch is punched")

BATCH_FILES_MAX = 512
"""Stubs per batch in the process that serves a mount, which takes them one by one."""

BATCH_FILES_HERE_MAX = 4096
"""Plain files per batch, and all of them here, where the limit of descriptors allows it: each batch
costs a sync. The process that serves a mount may take fewer."""


class Outcome(enum.StrEnum):
    """What became of one file."""

    DONE = "done"
    CHANGED = "changed"
    GONE = "gone"
    IN_USE = "in use"
    PROTECTED = "immutable or append-only"
    FULL = FULL_OF_ATTRIBUTES
    FAILED = "failed"


class Result(NamedTuple):
    """The outcome of a request, with a reason where it is not DONE.

    ``freed_bytes``: of blocks that files have given up, this one and others without a word of
    their own.
    """

    outcome: Outcome
    reason: str = ""
    freed_bytes: int = 0


_DONE = Result(Outcome.DONE)
_HALF_WAY = Result(Outcome.FAILED, "it could not be punched; the next job continues")


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
                is_plain = start < len(requests.plain)
                count = BATCH_FILES_HERE_MAX if is_plain else BATCH_FILES_MAX
                batch = requests.part(start, count)
                return _commit_by_mount(self._volume, held, batch)
            settle_noted(self._volume, held)
            batch = requests.part(start, descriptors_to_spare())
            with held.under_way(batch.paths):
                return _commit_here(self._volume, batch, self._threads)


def _end_run(client: ControlClient | None, freed_bytes: int) -> None:
    if client is not None:
        with suppress(ServiceUnreachable):
            client.call("run_end", freed_bytes=freed_bytes)


def descriptors_to_spare() -> int:
    """How many files to hold open for a batch; raises the limit of descriptors where it may."""
    wanted = 2 * BATCH_FILES_HERE_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(BATCH_FILES_HERE_MAX, soft // 2))


def _commit_here(volume: Volume, requests: CommitRequests, threads: int) -> list[Result]:
    with _Batch(volume, requests, threads) as batch:
        batch.begin()
        reach(_BEGUN)
        try:
            volume.sync()
        except BaseException:
            batch.revert()
            raise
        reach(_DURABLE)
        batch.finish()
        reach(_FINISHED)
        return batch.results


class _Batch:
    """Files that are committed together here.

    Plain files go through native code, all in one call each way. The files that it leaves, and
    stubs, go one by one, which says what is wrong with them.
    """

    def __init__(self, volume: Volume, requests: CommitRequests, threads: int) -> None:
        self._volume = volume
        self._requests = requests
        self._plain = native.commit.CommitBatch(
            volume.data_fd,
            volume.space.name,
            volume.space.seeds,
            volume.block_bytes,
            threads,
            True,
            volume.disk.door,
        )
        self._alone: dict[int, tuple[int, Begun]] = {}
        self._files = ExitStack()
        self.results: list[Result] = [_HALF_WAY] * len(requests)

    def __enter__(self) -> Self:
        self._files.callback(self._plain.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def begin(self) -> None:
        """Set the attributes; those that cannot be set have a result afterwards."""
        try:
            begun = self._plain.begin(self._requests.plain)
            with closing(DirectoryOpener(self._volume.data_fd)) as directories:
                for at in [*_zeros(begun), *range(len(begun), len(self._requests))]:
                    self._begin_alone(at, directories)
        except BaseException:
            self.revert()
            raise

    def _begin_alone(self, at: int, directories: DirectoryOpener) -> None:
        request, volume = self._requests[at], self._volume
        if request.in_parts:
            self.results[at] = Result(
                Outcome.CHANGED, "the mount that recorded its writes has ended"
            )
            return
        try:
            fd = directories.open_file(request.path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            self.results[at] = open_failure(error)
            return
        self._files.callback(os.close, fd)
        try:
            if not lease_exclusively(fd):
                raise Busy("it is open in another process")
            self._alone[at] = (
                fd,
                begin_commit(
                    fd,
                    request.identity,
                    request.recipe,
                    volume.stub_files,
                    request.previous,
                ),
            )
        except (AttributesFull, Busy, FileChanged, OSError) as error:
            self.results[at] = step_failure(error)

    def finish(self) -> None:
        """Punch what has begun, now that it is durable."""
        done, freed_bytes = self._plain.finish()
        self.results[: len(done)] = [
            _DONE if is_done else result
            for is_done, result in zip(done, self.results, strict=False)
        ]
        if 1 in done:
            at = done.index(1)
            self.results[at] = _DONE._replace(freed_bytes=freed_bytes)
        for at, (fd, begun) in self._unfinished(_zeros(done)):
            try:
                if not lease_exclusively(fd):
                    # The sync took longer than a lease keeps others waiting.
                    revert_commit(fd, begun, self._volume.stub_files)
                    raise Busy("it was opened in another process")
                freed_bytes = finish_commit(fd, begun, self._volume.stub_files)
                self.results[at] = _DONE._replace(freed_bytes=freed_bytes)
            except (Busy, FileChanged, OSError) as error:
                self.results[at] = step_failure(error)

    def revert(self) -> None:
        """Take back what has begun."""
        for _, (fd, begun) in self._unfinished(range(len(self._requests.plain))):
            revert_commit(fd, begun, self._volume.stub_files)

    def _unfinished(self, plain: Iterable[int]) -> Iterator[tuple[int, tuple[int, Begun]]]:
        """What has begun and is not finished, of plain files of these positions: position,
        descriptor, what is to be finished."""
        yield from self._alone.items()
        for at in plain:
            left = self._plain.begun(at)
            if left is not None:
                fd, identity = left
                request = self._requests[at]
                stub = committing(request.identity, request.recipe)
                yield at, (fd, Begun(FileIdentity._make(identity), stub, None))


def _zeros(flags: bytes) -> list[int]:
    """Where they are."""
    return [at for at, flag in enumerate(flags) if not flag]


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
    """Commit plain files all at once, or else files of which each has something to be said.

    The mount may take fewer files than these: the results are of the first ones.
    """
    if len(requests.plain):
        return _commit_many_by_mount(volume, client, requests.plain)
    reply = client.call("commit_begin", files=[request_to_json(r) for r in requests])
    _raise_failure(volume, reply)
    reach(_BEGUN)
    volume.sync()
    reach(_DURABLE)
    begun = [result_from_json(row) for row in reply["results"]]
    wanted = [at for at, result in enumerate(begun) if result.outcome is Outcome.DONE]
    finished = client.call("commit_finish", inodes=[requests[at].identity.inode for at in wanted])
    _raise_failure(volume, finished)
    for at, row in zip(wanted, finished["results"], strict=True):
        begun[at] = result_from_json(row)
    reach(_FINISHED)
    return begun


def _commit_many_by_mount(
    volume: Volume, client: ControlClient, plain: native.commit.PlainRequests
) -> list[Result]:
    reply = client.call_with("commit_many", plain.to_bytes())
    _raise_failure(volume, reply)
    reach(_BEGUN)
    results = [_DONE] * reply["taken"]
    volume.sync()
    reach(_DURABLE)
    finished = client.call("commit_done")
    _raise_failure(volume, finished)
    for at, row in (*reply["results"], *finished["results"]):
        results[at] = result_from_json(row)
    reach(_FINISHED)
    return results


_NOT_THE_FILE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE),
    *(errno.EISDIR, errno.ENXIO),  # a directory, or a socket, has its name now
)


def open_failure(error: OSError) -> Result:
    """What it means that a file could not be opened for its commit."""
    if error.errno in _NOT_THE_FILE:
        return Result(Outcome.GONE, "it was moved or deleted during the commit")
    if error.errno in (errno.ETXTBSY, errno.EBUSY, errno.EAGAIN):  # the last one: a lease
        return Result(Outcome.IN_USE, "it is in use")
    if error.errno == errno.EPERM:
        return Result(Outcome.PROTECTED, "it cannot be changed")
    return Result(Outcome.FAILED, os.strerror(error.errno or errno.EIO))


def step_failure(error: DedupdError | OSError) -> Result:
    """What it means that a step of the commit failed; a full disk is for the caller to see."""
    if isinstance(error, FileChanged):
        return Result(Outcome.CHANGED, str(error))
    if isinstance(error, Busy):
        return Result(Outcome.IN_USE, str(error))
    if isinstance(error, AttributesFull):
        return Result(Outcome.FULL, str(error))
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Result(Outcome.FAILED, "no space left for the attribute of the stub")
        return Result(Outcome.FAILED, os.strerror(error.errno or errno.EIO))
    if isinstance(error, NoSpace):
        return Result(Outcome.FAILED, str(error))
    raise error


def result_to_json(result: Result) -> dict[str, Any]:
    return result._asdict()


def result_from_json(row: dict[str, Any]) -> Result:
    return Result(Outcome(row["outcome"]), row["reason"], row["freed_bytes"])
