"""The secret of a store, the source of its containers' seeds (docs/design/format.md, "Seeds").

With the seed of a container, a user could write bytes into a file that look like a record there.
Each container stores its own seed, so the loss of a secret only makes a rescue harder.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Self

from dedupd_core.errors import Damaged
from dedupd_core.format.checked_json import NOT_VALID, decoded, encoded
from dedupd_core.format.container import Kind

KEY_BYTES = 32
KEYS_MAX = 16
"""The limit for the keys of a secret: the newest key makes seeds, the others help to rescue
containers from before a rotation."""

_CONTAINER = struct.Struct("<BII")


@dataclass(frozen=True, slots=True)
class StoreSecret:
    """``keys``: 32 random bytes each, the newest one last; at least one."""

    keys: tuple[bytes, ...]

    def rotated(self, key: bytes) -> "StoreSecret":
        """Return this secret with a new key, which makes the seeds from now on."""
        return StoreSecret((*self.keys, key)[-KEYS_MAX:])

    def seed(self, kind: Kind, container: int, generation: int) -> int:
        """Return the seed of a new generation of a container, never 0."""
        return _seed(self.keys[-1], kind, container, generation)

    def seeds(self, kind: Kind, container: int, generation: int) -> list[int]:
        """Return the possible seeds of a generation of a container, the newest key's first."""
        return [_seed(key, kind, container, generation) for key in reversed(self.keys)]

    def to_json(self) -> bytes:
        return encoded({"keys": [key.hex() for key in self.keys]})

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Return the recipe with this number. Raises Damaged."""
        try:
            keys = tuple(bytes.fromhex(key) for key in decoded(data)["keys"])
            if not keys or {len(key) for key in keys} != {KEY_BYTES}:
                raise ValueError("not a list of keys")
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: the secret of the store is damaged ({error}); `dedupd run scrub`"
                " restores it from its second copy, or creates a new one"
            ) from error
        return cls(keys)


def _seed(key: bytes, kind: Kind, container: int, generation: int) -> int:
    identity = _CONTAINER.pack(kind, container, generation)
    digest = hashlib.blake2b(identity, key=key, digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
