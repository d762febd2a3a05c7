"""Copies of volumes, and the proof that their stubs are unchanged, for adopt and restore.

The attribute has the number of bytes in a stub's local blocks (docs/design/format.md, "Stub"). A
stub without local blocks is complete if the attribute counts none: all of it is in the store. A
stub with local blocks is only complete if the copying program preserved the holes between them,
which only the user of that program knows.
"""

import os
from functools import cached_property
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format.container import FILE_HEADER_BYTES, Kind
from dedupd_core.format.instance import Instance
from dedupd_core.format.stub import Flag, StubAttribute, binding_in, decode_stub
from dedupd_core.store.container.container import data_name
from dedupd_core.store.container.files import container_numbers
from dedupd_core.stub.instance import recorded_instance
from dedupd_core.stub.local_blocks import refuse_tampered
from dedupd_core.stub.transition import AttributeSpace, StubFiles
from dedupd_core.system.files import opened
from dedupd_core.units import align_up
from dedupd_core.volume.volume import Volume


class VolumeCopy(Volume):
    """A volume, or a copy of one, in any place. Its stubs may be invalid."""

    def check_place(self) -> None:
        """Accept any place."""

    @cached_property
    def recorded(self) -> Instance | None:
        """The place in which it was a volume before; None if unknown."""
        try:
            return recorded_instance(self.base_fd, self.root)
        except Damaged:
            return None

    @property
    def is_the_volume(self) -> bool:
        """Return whether this is the volume itself, not a copy."""
        return self.recorded == self.instance

    @property
    def space_before(self) -> AttributeSpace | None:
        """The attribute space of stubs that were not copied: only the file system got a new uuid.

        Only if the generations of inodes are random. Those of btrfs are small numbers, which the
        inodes of a copy may have by chance.
        """
        recorded, here = self.recorded, self.instance
        if (
            recorded is None
            or self.is_the_volume
            or (recorded.inode, recorded.generation) != (here.inode, here.generation)
            or not native.system.file_system_kind(self.base_fd).has_random_generations
        ):
            return None
        return self.space_of(recorded)


TRUSTED_WITH = "use --trust-holes if the program that made the copy preserves holes"
NOT_TRUSTED = (
    "the file was written after it was deduplicated, and this copy did not preserve the holes of"
    " other stubs: --trust-holes does not help"
)


class Verdict(NamedTuple):
    """Why a stub is not proved; empty if it is proved. ``is_spoilt``: no option helps."""

    reason: str = ""
    is_spoilt: bool = False


_GOOD = Verdict()


class Proof(NamedTuple):
    """A stub's attribute, whether it is bound to this inode of this volume, and the verdict."""

    stub: StubAttribute
    is_own: bool
    verdict: Verdict


def prove(volume: VolumeCopy, fd: int, value: bytes, where: str) -> Proof:
    """Judge the open file ``fd`` that has the attribute ``value``.

    Raises DamagedStub, including TamperedStub if the stub is bound to this inode, but its local
    blocks differ from the counted ones.
    """
    stub = decode_stub(value, volume.space.volume_id, where)
    bound, before = binding_in(value), volume.space_before
    is_own = bound == volume.space.binding_of(fd)
    if is_own or (before is not None and bound == before.binding_of(fd)):
        refuse_tampered(fd, stub, volume.stub_files, where)
        return Proof(stub, is_own, _GOOD)
    return Proof(stub, False, _judged(fd, stub, volume.stub_files))


def _judged(fd: int, stub: StubAttribute, files: StubFiles) -> Verdict:
    """Judge whether a copied stub is unchanged."""
    size = os.fstat(fd).st_size
    found, _ = native.system.local_bytes(fd, align_up(size, files.block_bytes), True)
    if found < stub.local_bytes:
        lost = stub.local_bytes - found
        return Verdict(f"the copy has holes instead of {lost} bytes of local blocks", True)
    is_open = bool(stub.flags & (Flag.WRITTEN | Flag.COMMITTING | Flag.RESTORING))
    if found > stub.local_bytes and not is_open:
        return Verdict(f"the copy has {found - stub.local_bytes} bytes instead of holes", True)
    if stub.is_clean and native.system.present_ranges(fd, 0, size):
        # A file system without an extent map counts no blocks, but reports them as data.
        return Verdict("the copy has data instead of holes", True)
    if stub.is_clean and size >= stub.covered:
        return _GOOD
    if size < stub.covered:
        return Verdict("it is shorter than its recipe, which only happens if a user truncates it")
    return Verdict(
        "the file was written after it was deduplicated, and only a copy with preserved holes has"
        " the new data"
    )


def has_chunks(volume: VolumeCopy) -> bool:
    """Return whether the store of a copy has records that a stub could need."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with opened(os.open(volume.directory(Kind.CHUNKS), flags)) as fd:
        return any(
            os.stat(data_name(number), dir_fd=fd).st_size > FILE_HEADER_BYTES
            for number in container_numbers(fd)
        )
