"""What ties a volume to a store in a cluster: ``cluster.json`` of its ``.dedupd``."""

import json
from dataclasses import asdict, dataclass

from dedupd.errors import Damaged
from dedupd.format.volume_parameters import check_of


@dataclass(frozen=True, slots=True)
class StoreBinding:
    """The store that a volume's stubs name versions of: its address, and its uuid, which must be
    the one that is found there. ``cache_bytes`` is what this host keeps of its chunks."""

    address: str
    store: str
    cache_bytes: int

    def to_json(self) -> bytes:
        fields = asdict(self)
        return json.dumps({**fields, "check": check_of(fields)}, indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "StoreBinding":
        """Raises Damaged."""
        try:
            fields = json.loads(data)
            if fields.pop("check") != check_of(fields):
                raise ValueError("it fails its checksum")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(
                f"{where}: says in which store the volume's chunks are, and is damaged ({error});"
                " restore it from a backup"
            ) from error
