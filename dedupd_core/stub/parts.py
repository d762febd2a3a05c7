"""A busy file becomes a stub by those parts of it that are quiet (docs/design/format.md, "Becoming
a stub in parts").

The recipe says nothing right of the other parts: their blocks stay, and win. So the attribute needs
no state of its own between the two steps: it may be set, and stay, while users write. What is
punched is what nobody has written to since it was read.
"""

import os
from collections.abc import Iterable

from dedupd_core import native
from dedupd_core.errors import FileChanged
from dedupd_core.failpoint import define, reach
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import NO_FLAGS, Flag, StubAttribute
from dedupd_core.stub.transition import CAPABILITY, StubFiles, keeping_capability
from dedupd_core.units import align_down, align_up

_SET = define("parts.attribute-set", "a busy file has the new recipe, and all its blocks")
_PUNCHED = define(
    "parts.punched", "some of its unchanged blocks are punched, the times not restored"
)


def begin_parts(fd: int, ref: RecipeRef, covered: int, files: StubFiles) -> StubAttribute:
    """Make a file a stub of a recipe that is right of all holes of it below ``covered``; returns
    its attribute. Nothing else may use the file meanwhile. Raises FileChanged, OSError."""
    if native.system.fgetxattr(fd, CAPABILITY) is not None:
        raise FileChanged("it has capabilities, which it would lose")
    flags = Flag.WRITTEN | Flag.PARTIAL | (Flag.DIRECT if ref.direct else NO_FLAGS)
    made = StubAttribute(ref.recipe, ref.digest, covered, 0, flags)
    files.write(fd, made)
    reach(_SET)
    return made


def punch_parts(fd: int, ranges: Iterable[tuple[int, int]], files: StubFiles) -> int:
    """Punch the whole blocks inside of ranges whose bytes the durable recipe has; returns how many
    bytes of blocks that gave. Nothing else may use the file meanwhile. Raises OSError."""
    status, disk = os.fstat(fd), files.disk
    with keeping_capability(fd, disk):
        for start, end in ranges:
            # A block that is punched in part stays, and wins, with zeros in it.
            start, end = align_up(start, files.block_bytes), align_down(end, files.block_bytes)
            if start < end:
                disk.punch(fd, start, end - start)
    reach(_PUNCHED)
    disk.set_times(fd, status.st_atime_ns, status.st_mtime_ns)
    return max(0, status.st_blocks - os.fstat(fd).st_blocks) * 512
