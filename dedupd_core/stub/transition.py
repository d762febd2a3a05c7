"""The states of a file between plain and stub (docs/design/format.md, "States of a file"), and how
a state is settled that a crash left, including on the way back (``filling.py``). For the steps from
plain to stub, see ``commit_steps.py``.

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
from dedupd_core.errors import CopiedStub, Damaged
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
from dedupd_core.units import align_down, in_64_bits

CAPABILITY = b"security.capability"
"""Lets a program do what is else root's alone. The kernel takes it from a file whose blocks change,
whether they are punched or filled up, with the same content."""
LARGE_UNITS = "is on a realtime device with extents of several blocks"
"""Of a file whose blocks cannot be freed one by one (:func:`native.system.has_large_units`)."""
LENGTH_BYTES_MAX = (1 << 63) - (64 << 10)
"""Of a stub: the end of its last block has to be an offset too, whatever the size of a block."""


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

    @property
    def fields(self) -> tuple[bytes, tuple[int, int], int]:
        """Those that native code needs."""
        return self.space.name, self.space.seeds, self.block_bytes

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
