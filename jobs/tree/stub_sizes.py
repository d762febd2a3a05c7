"""Sums over the files of a volume, by owner or by type."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from dedupd_core import native
from dedupd_core.format.stub import attribute_seed
from dedupd_core.native.tree import StubUsage, Unreadable
from dedupd_core.system.processes import cores
from dedupd_core.volume.partition_map import type_of, type_of_suffix
from dedupd_core.volume.volume import Volume
from jobs.tree.walk import FirstNames, SafePoint, each_directory


def summed(
    volume: Volume,
    directories: Sequence[bytes],
    safe_point: SafePoint,
    by: Literal["", "owner", "type"] = "",
    threads: int = 0,
) -> list[StubUsage | Unreadable]:
    """The files of directories, summed up natively: all together, or by owner or type. ``threads``
    0 stands for all cores."""
    return native.tree.sum_up(
        volume.data_fd,
        directories,
        volume.space.name,
        threads or cores(),
        safe_point,
        seed=attribute_seed(volume.space.volume_id),
        by=by,
    )


def stub_bytes_by_type(volume: Volume, safe_point: SafePoint, threads: int = 0) -> Counter[str]:
    """Logical bytes of all stubs of the tree, those of several names once. Files that vanish during
    the walk, or cannot be read, do not count."""

    def look(paths: Sequence[bytes]) -> list[StubUsage | Unreadable]:
        return summed(volume, paths, safe_point, "type", threads)

    sizes: Counter[str] = Counter()
    names = FirstNames()
    for _, _, here in each_directory(look, safe_point):
        if isinstance(here, Unreadable):
            continue
        for file in here.files:
            if file.attribute is not None and names.has(file):
                sizes[type_of(file.name)] += file.identity[1]
        for suffix, sums in here.sums.items():
            if sums.stubs:
                sizes[type_of_suffix(suffix)] += sums.optimized_bytes
    return sizes
