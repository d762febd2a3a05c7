"""Which store in a cluster a volume is on: it is read for every volume, so nothing else of clusters
is imported for it."""

import os

from dedupd.format.cluster.binding import StoreBinding
from dedupd.system.files import opened, read_at

BINDING_FILE = b"cluster.json"


def binding_at(base_fd: int, where: str) -> StoreBinding | None:
    """What the ``.dedupd`` that ``base_fd`` is open on says; None where the volume has a store of
    its own. Raises Damaged."""
    try:
        fd = os.open(BINDING_FILE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=base_fd)
    except FileNotFoundError:
        return None
    with opened(fd):
        return StoreBinding.from_json(read_at(fd, os.fstat(fd).st_size, 0), where)
