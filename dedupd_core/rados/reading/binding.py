"""Which store in a cluster a volume is on: it is read for every volume, so nothing else of clusters
is imported for it."""

from dedupd_core.format.cluster.binding import StoreBinding
from dedupd_core.system.files import read_if_there

BINDING_FILE = b"cluster.json"


def binding_at(base_fd: int, where: str) -> StoreBinding | None:
    """What the ``.dedupd`` that ``base_fd`` is open on says; None where the volume has a store of
    its own. Raises Damaged."""
    data = read_if_there(base_fd, BINDING_FILE)
    return None if data is None else StoreBinding.from_json(data, where)
