"""The place where a volume was made; distinguishes it from copies (docs/design/format.md,
"Instance")."""

import struct
from dataclasses import asdict, dataclass

import xxhash

from dedupd_core.errors import Damaged
from dedupd_core.format.checked_json import NOT_VALID, decoded, encoded

_DIRECTORY = struct.Struct("<QI")


@dataclass(frozen=True, slots=True)
class Instance:
    """The identity of a volume's place: its file system, and the inode of its directory ``data``.

    A copy that is made file by file is another instance. A copy of the entire file system, block by
    block, is the same instance, and so is a snapshot.
    """

    file_system: str
    inode: int
    generation: int

    def seed(self, volume_id: bytes) -> int:
        """Return the seed of the bindings of the volume's stubs to their inodes."""
        place = _DIRECTORY.pack(self.inode, self.generation) + self.file_system.encode()
        return xxhash.xxh3_64_intdigest(volume_id + place)

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Instance":
        """Return the recipe with this number. Raises Damaged."""
        try:
            instance = cls(**decoded(data))
            _DIRECTORY.pack(instance.inode, instance.generation)
        except (*NOT_VALID, struct.error) as error:
            raise Damaged(f"{where}: not a valid record of the volume's place ({error})") from error
        return instance
