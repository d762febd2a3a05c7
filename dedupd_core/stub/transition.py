"""Plain → stub: one file's transition, step by step (docs/design/format.md, "States of a file"),
and what becomes of one that a crash interrupted, also on the way back (``filling.py``).

The steps that set an attribute, and that punch and settle, are native code (``native/src/commit``).
A batch of plain files takes the same native steps in one call, and comes here with those that turn
out to be anything else: :func:`begin_commit` and :func:`finish_commit` say what is wrong with them.

The invariant that every step keeps: *a block that is present in the file holds the file's current
content; a hole below ``covered`` stands for what the recipe says.* So it never matters how many
blocks a crash has left behind: they are read where they are present, and else from the store.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import AttributesFull, CopiedStub, Damaged, FileChanged
from dedupd_core.failpoint import define
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import (
    Flag,
    StubAttribute,
    attribute_seed,
    binding,
    binding_in,
    decode_stub,
    encode_stub,
)
from dedupd_core.stub.content import StoreContent
from dedupd_core.system.disk import Disk
from dedupd_core.system.extents import drop_unwritten, has_unwritten
from dedupd_core.units import align_down, align_up, in_64_bits

# Native code passes these four.
define("stub.attribute-set", "the attribute is set, blocks are all present")
define("stub.punched", "the blocks are punched, the times not yet restored")
define("stub.trimmed", "the blocks behind the end are freed, the times not yet restored")
define("stub.times-set", "the times are restored, the attribute still says committing")

CAPABILITY = b"security.capability"
"""Lets a program do what is else root's alone. The kernel takes it from a file whose blocks change,
whether they are punched or filled up, with the same content."""
LARGE_UNITS = "is on a realtime device with extents of several blocks"
"""Of a file whose blocks cannot be freed one by one (:func:`native.system.has_large_units`)."""
LENGTH_BYTES_MAX = (1 << 63) - (64 << 10)
"""Of a stub: the end of its last block has to be an offset too, whatever the size of a block."""

_COMMITTING_DIRECT = Flag.COMMITTING | Flag.DIRECT


class FileIdentity(NamedTuple):
    """What must be the same for a file to be the one that was read.

    A time before 1677 or after 2262 becomes the first or last one that 64 bits hold, as in native
    code.
    """

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def changed_ns(self) -> int:
        """When the file was last changed, in whatever way."""
        return max(self.mtime_ns, self.ctime_ns)

    @classmethod
    def of(cls, status: os.stat_result) -> "FileIdentity":
        mtime_ns, ctime_ns = in_64_bits(status.st_mtime_ns), in_64_bits(status.st_ctime_ns)
        return cls(status.st_ino, status.st_size, mtime_ns, ctime_ns)


FULL_OF_ATTRIBUTES = "its attributes leave no space for that of a stub"

_BLOCKS_PER_ATTRIBUTE = 16
"""More than any file system takes for an attribute."""


class Begun(NamedTuple):
    """A commit under way: the file's identity with the attribute set, and that attribute.

    ``previous`` is the attribute that it replaced, None where the file was plain.
    """

    identity: FileIdentity
    stub: StubAttribute
    previous: bytes | None


@dataclass(frozen=True, slots=True)
class AttributeSpace:
    """Where a volume keeps its stub attribute, and how it recognises its own.

    ``instance_seed`` is that of :meth:`dedupd_core.format.instance.Instance.seed`.
    """

    name: bytes
    volume_id: bytes
    instance_seed: int

    @property
    def seeds(self) -> tuple[int, int]:
        """Those of the checksum and of the binding, for native code."""
        return attribute_seed(self.volume_id), self.instance_seed

    def read(self, fd: int, where: str) -> StubAttribute | None:
        """The attribute of an open file; None where it is plain.

        Raises DamagedStub; CopiedStub, which is one, where it is the attribute of another file.
        """
        value = native.system.fgetxattr(fd, self.name)
        return None if value is None else self.decode(value, fd, where)

    def decode(self, value: bytes, fd: int, where: str) -> StubAttribute:
        """The attribute ``value`` of the file that ``fd`` (``O_PATH``, too) is open on.

        Raises as :meth:`read`.
        """
        stub = decode_stub(value, self.volume_id, where)
        if binding_in(value) != self.binding_of(fd):
            raise CopiedStub(
                f"{where}: a program copied or moved the stub here below the mount, so its content"
                " is unknown; restore the file from a backup, or see docs/guide/backup.md for"
                " `dedupd adopt`"
            )
        return stub

    def decode_met(self, value: bytes, fd: int, where: str) -> StubAttribute:
        """As :meth:`decode`, of a value that a walk has met before ``fd`` was opened by name.

        Raises FileNotFoundError where the name leads to another file by now.
        """
        try:
            return self.decode(value, fd, where)
        except CopiedStub:
            with suppress(OSError):  # it is plain
                if os.getxattr(b"/proc/self/fd/%d" % fd, self.name) == value:
                    raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from None

    def encode(self, stub: StubAttribute, fd: int) -> bytes:
        """The value that makes the open file this stub."""
        return encode_stub(stub, self.volume_id, self.binding_of(fd))

    def binding_of(self, fd: int) -> int:
        """What ties an attribute to the file that ``fd`` (``O_PATH``, too) is open on."""
        return binding(self.instance_seed, os.fstat(fd).st_ino, native.system.generation(fd))


@dataclass(frozen=True, slots=True)
class StubFiles:
    """How the stubs of a volume are changed: by which attribute, on which disk, in what blocks."""

    space: AttributeSpace
    disk: Disk
    block_bytes: int

    def write(self, fd: int, stub: StubAttribute) -> None:
        """Set the attribute of an open file. Raises OSError, also for a file that cannot be a stub
        because its blocks cannot be freed one by one."""
        if native.system.has_large_units(fd):
            raise OSError(errno.EOPNOTSUPP, LARGE_UNITS)
        self.disk.set_attribute(fd, self.space.name, self.space.encode(stub, fd))


def open_stub(fd: int, stub: StubAttribute, files: StubFiles) -> native.stub.OpenStub:
    """What changes the blocks of an open stub."""
    name, seed = files.space.name, files.space.seeds[0]
    value = files.space.encode(stub, fd)
    return native.stub.OpenStub(fd, value, name, seed, files.block_bytes, files.disk.door)


def committing(identity: FileIdentity, ref: RecipeRef) -> StubAttribute:
    """The stub of a whole file while it is being committed."""
    flags = _COMMITTING_DIRECT if ref.direct else Flag.COMMITTING
    return StubAttribute(ref.recipe, ref.digest, identity.size, identity.mtime_ns, flags)


def begin_commit(
    fd: int,
    expected: FileIdentity,
    ref: RecipeRef,
    files: StubFiles,
    previous: bytes | None = None,
) -> "Begun":
    """Make a file a stub of the recipe ``ref`` with all its blocks still present.

    ``previous`` is the attribute of a stub whose content the recipe is now; None for a plain file.
    Either way a block that is present equals what the recipe says, and nothing is lost by a crash.
    Returns what to hand to :func:`finish_commit` once the attribute is durable.
    Raises FileChanged where the file is not the one that was read; AttributesFull; OSError.
    """
    stub = committing(expected, ref)
    name, value = files.space.name, files.space.encode(stub, fd)
    try:
        after = native.commit.exchange_attribute(
            fd, expected, name, previous, value, files.disk.door
        )
    except OSError as error:
        # ext4 says ENOSPC for a full disk as well as for a file whose attributes fill their block.
        if error.errno == errno.ENOSPC and os.fstatvfs(fd).f_bavail >= _BLOCKS_PER_ATTRIBUTE:
            raise AttributesFull(FULL_OF_ATTRIBUTES) from error
        raise
    if after is None:
        if native.system.fgetxattr(fd, name) != previous:
            raise FileChanged("it became a stub, or another stub, at the same time")
        if native.system.fgetxattr(fd, CAPABILITY) is not None:
            raise FileChanged("it has capabilities, which it would lose")
        if native.system.has_large_units(fd):
            raise FileChanged(f"it {LARGE_UNITS}")
        raise FileChanged("it changed since it was read")
    begun = FileIdentity(*after)
    if (begun.size, begun.mtime_ns) != (expected.size, expected.mtime_ns):
        # Setting the attribute has moved the ctime on; this is what still tells of a writer.
        put_back(fd, previous, files)
        raise FileChanged("it changed while it was being committed")
    return Begun(begun, stub, previous)


def finish_commit(fd: int, begun: "Begun", files: StubFiles) -> int:
    """Punch a stub whose attribute, and whose chunks, are durable; returns how many bytes of blocks
    it has given up.

    Raises FileChanged, with the file as it was, where it was touched since :func:`begin_commit`.
    """
    status = os.fstat(fd)
    if FileIdentity.of(status) != begun.identity:
        revert_commit(fd, begun, files)
        raise FileChanged("it changed while it was being committed")
    # The change time is still the one of setting the attribute, so the attribute is what was set.
    settled = replace(begun.stub, flags=begun.stub.flags & Flag.DIRECT)
    return native.commit.punch_and_settle(
        fd,
        align_up(status.st_size, files.block_bytes),
        (status.st_atime_ns, begun.stub.mtime_ns),
        files.space.name,
        files.space.encode(settled, fd),
        files.disk.door,
    )


def revert_commit(fd: int, begun: "Begun", files: StubFiles) -> None:
    """Take back a commit that has begun but not finished: all blocks are there."""
    put_back(fd, begun.previous, files)


def put_back(fd: int, previous: bytes | None, files: StubFiles) -> None:
    """Give a file the attribute that it had before; None where it had none."""
    if previous is None:
        files.disk.remove_attribute(fd, files.space.name)
    else:
        files.disk.set_attribute(fd, files.space.name, previous)


def needs_settling(fd: int, stub: StubAttribute) -> bool:
    """Whether :func:`settle` would find anything to do."""
    status = os.fstat(fd)
    if stub.flags.transient or stub.covered > status.st_size:
        return True
    return status.st_blocks > 0 and has_unwritten(fd, status.st_size)


def settle(
    fd: int,
    stub: StubAttribute,
    content: Callable[[], StoreContent],
    files: StubFiles,
) -> StubAttribute:
    """Finish what a crash interrupted; returns the attribute as it is now. Idempotent.

    Before a stub is written to it is settled; nothing else may use it meanwhile.
    A commit is carried through block by block: those that the store gives back byte for byte are
    punched. A block that differs was written after the commit began, in place, and reached the disk
    before the removal of the attribute did: it stays, as a local one. So do all that the store
    cannot give back; then the damage is for the reader of the holes to report.
    """
    status, disk = os.fstat(fd), files.disk
    mtime_ns = stub.mtime_ns
    with keeping_capability(fd, disk):
        if status.st_blocks > 0:
            drop_unwritten(fd, status.st_size, disk)
        if stub.flags & Flag.COMMITTING:
            # After a kill the attribute may be in memory only; no block may go before it is
            # durable.
            disk.sync_file(fd)
            try:
                end = _whole_blocks(stub, status.st_size, files.block_bytes)
                found = open_stub(fd, stub, files)
                if not content().repairing(partial(found.punch_equal_by, end=end)):
                    mtime_ns = status.st_mtime_ns
            except Damaged:
                pass
            if os.fstat(fd).st_blocks > 0:
                disk.truncate(fd, status.st_size)  # frees what is allocated behind the end
    settled = stub
    if stub.flags & (Flag.COMMITTING | Flag.RESTORING):
        disk.set_times(fd, status.st_atime_ns, mtime_ns)
        flags = stub.flags & ~(Flag.COMMITTING | Flag.RESTORING)
        if native.system.present_ranges(fd, 0, status.st_size):
            flags |= Flag.WRITTEN  # they are not counted
        settled = replace(settled, flags=flags)
    if stub.covered > status.st_size:
        # It was truncated, and the attribute did not follow. What it grows by from here is zeros.
        settled = replace(settled, covered=status.st_size)
    if settled != stub:
        files.write(fd, settled)
    return settled


@contextmanager
def keeping_capability(fd: int, disk: Disk) -> Iterator[None]:
    """Around a change of a file's blocks that leaves its content. Since it became a stub it may
    have become a program with capabilities. Nothing else may write to it meanwhile."""
    value = native.system.fgetxattr(fd, CAPABILITY)
    try:
        yield
    finally:
        if value is not None:
            disk.set_attribute(fd, CAPABILITY, value)


def _whole_blocks(stub: StubAttribute, size: int, block_bytes: int) -> int:
    """The end of the blocks that are the recipe's alone: what a file grew by shares the last."""
    covered = min(stub.covered, size)
    return covered if covered == size else align_down(covered, block_bytes)


def local_ranges(fd: int, size: int) -> list[tuple[int, int]]:
    """(start, end) ranges of a stub that lie in the file itself."""
    return native.system.written_ranges(fd, size)
