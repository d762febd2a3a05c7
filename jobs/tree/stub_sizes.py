"""What the stubs of a volume stand for, by the type of their files."""

import os
from collections import Counter

from dedupd import native
from dedupd.system.processes import cores
from dedupd.volume.partition_map import type_of, type_of_suffix
from dedupd.volume.volume import Volume
from jobs.tree.walk import Check

DIRECTORIES_AT_ONCE = 1024
"""Read by all threads, in one call."""


def stub_bytes_by_type(volume: Volume, check: Check, threads: int = 0) -> Counter[str]:
    """Logical bytes of all stubs of the tree, those of several names once.

    Neither their paths nor what they name comes up to Python: a hundred thousand files take a
    quarter of a second. What vanishes meanwhile, or cannot be read, is passed over. ``threads`` 0
    stands for all cores.
    """
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    pending = [b""]
    while pending:
        check()
        batch, pending = pending[-DIRECTORIES_AT_ONCE:], pending[:-DIRECTORIES_AT_ONCE]
        paths = [path or b"." for path in batch]
        found = native.tree.stub_sizes(
            volume.data_fd, paths, volume.space.name, threads or cores(), check
        )
        for path, listed in zip(batch, found, strict=True):
            if isinstance(listed, int):
                continue
            names, files, by_suffix = listed
            pending += [os.path.join(path, name) for name in names]
            for name, (inode, size, _, _), _, _, attribute in files:
                if attribute is not None and inode not in seen:
                    seen.add(inode)
                    sizes[type_of(name)] += size
            for suffix, size in by_suffix:
                sizes[type_of_suffix(suffix)] += size
    return sizes
