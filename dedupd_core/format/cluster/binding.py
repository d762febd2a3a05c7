"""The link from a volume to a store in a cluster: ``cluster.json`` in its ``.dedupd``."""

from dataclasses import asdict, dataclass

from dedupd_core.errors import Damaged
from dedupd_core.format.checked_json import NOT_VALID, decoded, encoded


@dataclass(frozen=True, slots=True)
class StoreBinding:
    """The store with the versions that a volume's stubs name: its address, and its uuid, which must
    match the store there. ``cache_bytes``: the size of this host's cache of its chunks."""

    address: str
    store: str
    cache_bytes: int

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "StoreBinding":
        """Raises Damaged."""
        try:
            return cls(**decoded(data))
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: the file that names the store of the volume is damaged ({error});"
                " restore it from a backup"
            ) from error
