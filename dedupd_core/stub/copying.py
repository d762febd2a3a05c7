"""Copies of a stub that share its recipe (copy_file_range(2)): no byte of data is read or written.

A copy is made in an empty file, or goes on in one that is the recipe's beginning. The attribute
comes first, then the length: both are metadata of one file, and become durable in that order. A
crash between them leaves a stub that covers more than it is long, which is settled to its length:
as after a copy of data, a beginning of it is there.
"""

import os

from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import StubFiles, put_back


def can_share(source: SparseStub) -> bool:
    """Whether all bytes of a stub are its recipe's, or zeros behind it."""
    return source.attribute.is_clean and os.fstat(source.fd).st_blocks == 0


def goes_on(source: SparseStub, copy: SparseStub | None, start: int, size: int) -> bool:
    """Whether a file of a length, ``copy`` where it is a stub, is the beginning of ``source`` up to
    ``start``, or empty where that is 0."""
    if start != size:
        return False
    if copy is None:
        return start == 0
    one, other = source.attribute, copy.attribute
    same = (one.recipe, one.digest, one.flags) == (other.recipe, other.digest, other.flags)
    is_whole = start % copy.block_bytes == 0 and other.covered == min(start, one.covered)
    return same and is_whole and can_share(copy)


def share(fd: int, source: StubAttribute, end: int, files: StubFiles) -> StubAttribute:
    """Have the file ``fd``, for which :func:`goes_on` holds, be the beginning of a stub up to
    ``end``; returns its attribute. Raises OSError, and then the file is as it was.
    """
    before = os.getxattr(fd, files.space.name) if os.fstat(fd).st_size else None
    flags, covered = source.flags & Flag.DIRECT, min(end, source.covered)
    made = StubAttribute(source.recipe, source.digest, covered, 0, flags)
    files.write(fd, made)
    try:
        files.disk.truncate(fd, end)
    except OSError:
        put_back(fd, before, files)
        raise
    return made
