"""What the stubs of a volume stand for, by the type of their files."""

from collections import Counter
from collections.abc import Sequence

from dedupd_core import native
from dedupd_core.native.tree import StubSizes, Unreadable
from dedupd_core.system.processes import cores
from dedupd_core.volume.partition_map import type_of, type_of_suffix
from dedupd_core.volume.volume import Volume
from jobs.tree.walk import FirstNames, SafePoint, each_directory


def stub_bytes_by_type(volume: Volume, safe_point: SafePoint, threads: int = 0) -> Counter[str]:
    """Logical bytes of all stubs of the tree, those of several names once.

    Neither their paths nor their recipes come up to Python: a hundred thousand files take a quarter
    of a second. Files that vanish meanwhile, or cannot be read, are passed over. ``threads`` 0
    stands for all cores.
    """

    def look(paths: Sequence[bytes]) -> list[StubSizes | Unreadable]:
        return native.tree.stub_sizes(
            volume.data_fd, paths, volume.space.name, threads or cores(), safe_point
        )

    sizes: Counter[str] = Counter()
    names = FirstNames()
    for _, _, here in each_directory(look, safe_point):
        if isinstance(here, Unreadable):
            continue
        for file in here.files:
            if file.attribute is not None and names.has(file):
                sizes[type_of(file.name)] += file.identity[1]
        for suffix, size in here.bytes_by_suffix:
            sizes[type_of_suffix(suffix)] += size
    return sizes
