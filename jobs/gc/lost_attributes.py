"""Plain files that may have been stubs, and lost their attribute.

A program that leaves attributes out makes plain files of stubs, whose content is in the store.
Such a file has a hole, or zeros, where the stub had no block of its own. So a file without a hole,
and without a block of zeros, was no stub that needs the store.
"""

import os
from collections.abc import Callable

from dedupd_core import native
from dedupd_core.native.system import read_uncached
from dedupd_core.system.file_reader import open_unnoticed
from dedupd_core.system.files import opened
from dedupd_core.system.page_cache import new_buffer
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.units import GIB, MIB, format_size
from dedupd_core.volume.volume import Volume
from jobs.tree.walk import TreeFile, walk

READ_BYTES_MAX = 4 * GIB
"""Of one tree, in some ten seconds. Of a larger one it cannot be told."""

_PORTION_BYTES = MIB


def suspect(volume: Volume, safe_point: Callable[[], None]) -> str:
    """Return what about the plain files of a tree without stubs may come from the loss of
    attributes; empty if nothing does."""
    remaining = READ_BYTES_MAX
    unreadable: list[str] = []
    for file in walk(volume, b"", unreadable, safe_point):
        size, where = file.identity.size, show_path(file.path)
        if file.allocated_bytes < size:
            return f"{where} has holes"
        remaining -= size
        if remaining < 0:
            return (
                f"they have more than {format_size(READ_BYTES_MAX)}, which is too much to examine"
            )
        try:
            if _has_zeros(volume, file, safe_point):
                return f"{where} has blocks of zeros"
        except OSError as error:
            return f"{where} cannot be read ({error.strerror})"
    return unreadable[0] if unreadable else ""


def _has_zeros(volume: Volume, file: TreeFile, safe_point: Callable[[], None]) -> bool:
    block, buffer = volume.block_bytes, memoryview(new_buffer(_PORTION_BYTES))

    def open_file(flags: int) -> int:
        return open_beneath(volume.data_fd, file.path, flags)

    with opened(open_unnoticed(open_file)) as fd:
        size = os.fstat(fd).st_size
        for start in range(0, size, _PORTION_BYTES):
            safe_point()
            length = read_uncached(fd, buffer[: min(_PORTION_BYTES, size - start)], start)
            for at in range(0, length, block):
                if native.hashing.is_zero(buffer[at : min(at + block, length)]):
                    return True
    return False
