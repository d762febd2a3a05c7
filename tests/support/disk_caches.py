"""Caches of what was read of a store in a cluster."""

import os
import time
from pathlib import Path

from dedupd_core.rados.reading.disk_cache import DiskCache
from dedupd_core.system.disk import Disk


def cache_in(directory: Path, bytes_max: int = 1 << 20, disk: Disk | None = None) -> DiskCache:
    directory.mkdir(exist_ok=True)
    return DiskCache(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), bytes_max, disk or Disk())


def flush(cache: DiskCache) -> None:
    """Wait until what was kept is written."""
    while cache.native.expected:
        time.sleep(0.001)
