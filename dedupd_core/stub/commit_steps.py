"""The two steps that make a file a stub, and their results in words.

Native code carries out the steps (``native/src/commit``), for one open file or for many files at a
time, and returns the reason if a file does not become a stub.
"""

import enum
import errno
import os
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import DedupdError
from dedupd_core.failpoint import define
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.stub.transition import (
    FULL_OF_ATTRIBUTES,
    LARGE_UNITS,
    FileIdentity,
    StubFiles,
    put_back,
)

# Native code passes these four.
define("stub.attribute-set", "the attribute is set, blocks are all present")
define("stub.punched", "the blocks are punched, the times not yet restored")
define("stub.trimmed", "the blocks behind the end are freed, the times not yet restored")
define("stub.times-set", "the times are restored, the attribute still says committing")

_NOT_THE_FILE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE),
    *(errno.EISDIR, errno.ENXIO),  # a directory, or a socket, has its name now
)


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
    """The outcome of a request, with a reason unless it is DONE.

    ``freed_bytes``: of blocks that files have given up, this one and others without a word of
    their own.
    """

    outcome: Outcome
    reason: str = ""
    freed_bytes: int = 0


DONE = Result(Outcome.DONE)

_RESULTS: "dict[native.commit.Why, Result]" = {
    "unoffered": Result(Outcome.CHANGED, "the mount that recorded its writes has ended"),
    "in use": Result(Outcome.IN_USE, "it is open in another process"),
    "opened": Result(Outcome.IN_USE, "it was opened in another process"),
    "other stub": Result(Outcome.CHANGED, "it became a stub, or another stub, at the same time"),
    "capable": Result(Outcome.CHANGED, "it has capabilities, which it would lose"),
    "large units": Result(Outcome.CHANGED, f"it {LARGE_UNITS}"),
    "changed": Result(Outcome.CHANGED, "it changed since it was read"),
    "touched": Result(Outcome.CHANGED, "it changed while it was being committed"),
    "full": Result(Outcome.FULL, FULL_OF_ATTRIBUTES),
    "half way": Result(Outcome.FAILED, "it could not be punched; the next job continues"),
}


def result_of(refusal: "native.commit.Refusal") -> Result:
    """What to report of a file that native code did not make a stub."""
    if refusal.why == "unopened":
        return open_failure(refusal.errno)
    return io_failure(refusal.errno) if refusal.why == "io" else _RESULTS[refusal.why]


def open_failure(number: int) -> Result:
    """What to report of a file that cannot be opened for its commit."""
    if number in _NOT_THE_FILE:
        return Result(Outcome.GONE, "it was moved or deleted during the commit")
    if number in (errno.ETXTBSY, errno.EBUSY, errno.EAGAIN):  # the last one: a lease
        return Result(Outcome.IN_USE, "it is in use")
    if number == errno.EPERM:
        return Result(Outcome.PROTECTED, "it cannot be changed")
    return Result(Outcome.FAILED, os.strerror(number))


def io_failure(number: int) -> Result:
    """What to report of a file for which a step of the commit failed."""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return Result(Outcome.FAILED, "no space left for the attribute of the stub")
    return Result(Outcome.FAILED, os.strerror(number))


class NotCommitted(DedupdError):
    """A file does not become a stub; ``result`` has the reason."""

    def __init__(self, refusal: "native.commit.Refusal") -> None:
        self.result = result_of(refusal)
        super().__init__(self.result.reason)


class OpenCommit(NamedTuple):
    """A commit in progress: the file's identity with the attribute set, its identity when it was
    read, and its recipe.

    ``previous`` is the attribute that was replaced, None for a plain file.
    """

    identity: FileIdentity
    expected: FileIdentity
    recipe: RecipeRef
    previous: bytes | None = None

    @property
    def stub(self) -> StubAttribute:
        """The attribute of the file during the commit."""
        expected, ref = self.expected, self.recipe
        flags = Flag.COMMITTING | Flag.DIRECT if ref.direct else Flag.COMMITTING
        return StubAttribute(ref.recipe, ref.digest, expected.size, expected.mtime_ns, flags)


def begin_commit(
    fd: int,
    expected: FileIdentity,
    ref: RecipeRef,
    files: StubFiles,
    previous: bytes | None = None,
) -> OpenCommit:
    """Make a file a stub of the recipe ``ref`` with all its blocks still present.

    ``previous`` is the attribute of a stub whose content the recipe is now; None for a plain file.
    Either way a block that is present equals what the recipe says, and nothing is lost by a crash.
    Returns the input of :func:`finish_commit`, for when the attribute is durable. Raises
    NotCommitted.
    """
    begun = native.commit.begin(fd, (expected, ref, previous), files.fields, files.disk.door)
    if isinstance(begun, native.commit.Refusal):
        raise NotCommitted(begun)
    return OpenCommit(FileIdentity._make(begun), expected, ref, previous)


def finish_commit(fd: int, begun: OpenCommit, files: StubFiles) -> int:
    """Punch a stub whose attribute, and whose chunks, are durable; returns how many bytes of blocks
    it has freed.

    Raises NotCommitted. A file that was touched since :func:`begin_commit` is as before.
    """
    file = begun.expected, begun.recipe, begun.previous
    freed = native.commit.finish(fd, begun.identity, file, files.fields, files.disk.door)
    if isinstance(freed, native.commit.Refusal):
        raise NotCommitted(freed)
    return freed


def revert_commit(fd: int, begun: OpenCommit, files: StubFiles) -> None:
    """Take back a commit that has started but not finished: all blocks exist."""
    put_back(fd, begun.previous, files)
