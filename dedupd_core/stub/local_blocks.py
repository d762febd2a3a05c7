"""The blocks of a stub's own, held against those that its attribute counts.

The extent map says which bytes of a stub are its own (docs/design/format.md, "Stub"). A program
that works below the mount can change it without changing a byte that a reader of the file would
see: dig holes where there are zeros, or fill holes with zeros.
"""

import os
from dataclasses import replace

from dedupd_core import native
from dedupd_core.errors import TamperedStub
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.stub.transition import StubFiles
from dedupd_core.units import align_up


def checked_stub(fd: int, files: StubFiles, where: str) -> StubAttribute | None:
    """The attribute of an open file whose content is to be read; None where it is plain.

    Raises DamagedStub: CopiedStub where it is that of another file, TamperedStub as
    :func:`refuse_tampered`.
    """
    stub = files.space.read(fd, where)
    if stub is not None:
        refuse_tampered(fd, stub, files, where)
    return stub


def refuse_tampered(fd: int, stub: StubAttribute, files: StubFiles, where: str) -> None:
    """Raises TamperedStub where a settled stub has other blocks of its own than its attribute says.

    A program that digs holes where it finds zeros, as ``fallocate -d`` does, would bring old bytes
    back; one that fills holes up with zeros would show these.
    """
    status = os.fstat(fd)
    if stub.flags.transient or (stub.is_clean and status.st_blocks == 0):
        return
    end = align_up(status.st_size, files.block_bytes)
    for sync in (False, True):  # what was written last may have no place on the disk yet
        found, pending = native.system.local_bytes(fd, end, sync)
        if stub.flags & Flag.WRITTEN and found >= stub.local_bytes:
            return
        if found == stub.local_bytes and (sync or not pending):
            return
    if found < stub.local_bytes:
        problem = f"{stub.local_bytes - found} bytes of its local blocks are missing"
    else:
        problem = f"it has {found - stub.local_bytes} bytes in blocks that do not belong to it"
    raise TamperedStub(
        f"{where}: {problem}: a program changed its holes below the mount, so its content is"
        " unknown; restore the file from a backup"
    )


def seal(fd: int, stub: StubAttribute, files: StubFiles) -> StubAttribute | None:
    """Have the attribute count the blocks of a stub's own: from then on a change below the mount is
    noticed. Returns the attribute as it is now; None where some blocks have no place on the disk
    yet. Nothing else may use the stub meanwhile.

    Needs no sync: extents and attributes of one file become durable in the order in which they
    were made (docs/design/crash-safety.md), and only extents that are there are counted.
    """
    if stub.flags.transient or not stub.flags & Flag.WRITTEN:
        return stub
    end = align_up(os.fstat(fd).st_size, files.block_bytes)
    written, pending = native.system.local_bytes(fd, end, False)
    if pending:
        return None
    sealed = replace(stub, flags=stub.flags & ~Flag.WRITTEN, local_bytes=written)
    files.write(fd, sealed)
    return sealed
