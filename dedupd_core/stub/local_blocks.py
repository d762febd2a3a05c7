"""The blocks of a stub's own, held against those that its attribute counts.

The extent map says which bytes of a stub are its own (docs/design/format.md, "Stub"). A program
that works below the mount can change it without changing a byte that a reader of the file would
see: dig holes where there are zeros, or fill holes with zeros.
"""

from dedupd_core import native
from dedupd_core.errors import TamperedStub
from dedupd_core.format.stub import StubAttribute
from dedupd_core.stub.transition import StubFiles


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
    space = files.space
    value = space.encode(stub, fd)
    more = native.stub.uncounted_bytes(fd, value, space.seeds[0], files.block_bytes)
    if more == 0:
        return
    if more < 0:
        problem = f"{-more} bytes of its local blocks are missing"
    else:
        problem = f"it has {more} bytes in blocks that do not belong to it"
    raise TamperedStub(
        f"{where}: {problem}: a program changed its holes below the mount, so its content is"
        " unknown; restore the file from a backup"
    )
