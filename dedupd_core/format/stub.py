"""The attribute that makes an inode a stub (docs/design/format.md, "Stub")."""

import enum
import struct
from dataclasses import dataclass
from functools import lru_cache

import xxhash

from dedupd_core.errors import DamagedStub

FORMAT = 2
HEAD_BYTES = 64
"""As much as fits into a 256-byte ext4 inode besides its other fields."""

_HEAD = struct.Struct("<BBHIQ16sQqQQ")
_BOUND = struct.Struct("<QI")
_U32 = struct.Struct("<I")
_BINDING_AT = 48

_ADVICE = "if the file was never deduplicated here, remove its attribute (setfattr -x)"

assert _HEAD.size == HEAD_BYTES


class Flag(enum.IntFlag):
    """States of a stub."""

    COMMITTING = 1
    """The commit is running. Blocks may remain, all equal to the recipe's bytes, and the
    modification time is the one in the attribute."""
    RESTORING = 2
    """The stub is being expanded: the modification time is the one in the attribute."""
    DIRECT = 4
    """The file is one chunk: ``recipe`` is that chunk's id, and there is no recipe record."""
    WRITTEN = 8
    """Blocks may have been added to those in ``local_bytes``; without this flag, it is exact."""
    PARTIAL = 16
    """The recipe is no version of the file: it lacks the content of blocks that were local then."""

    @property
    def transient(self) -> "Flag":
        """The flags of a running change."""
        return self & (Flag.COMMITTING | Flag.RESTORING)


NO_FLAGS = Flag(0)
STUB_FLAGS = int(~NO_FLAGS)
"""All known flags. An attribute with another flag is of a later version, and this version would
handle it wrongly."""


@dataclass(frozen=True, slots=True)
class StubAttribute:
    """The decoded attribute.

    ``digest``: the first half of the fingerprint of the recipe's record, or of the chunk's if
    DIRECT. ``covered``: the length of the recipe's content, from the start of the file.
    ``mtime_ns``: the time to restore while COMMITTING or RESTORING. ``local_bytes``: the bytes in
    local blocks of the file, or the minimum if WRITTEN.
    """

    recipe: int
    digest: bytes
    covered: int
    mtime_ns: int
    flags: Flag = NO_FLAGS
    local_bytes: int = 0

    @property
    def is_clean(self) -> bool:
        """True if the file has no local block, and no change is running."""
        return self.flags in (NO_FLAGS, Flag.DIRECT) and not self.local_bytes


def encode_stub(stub: StubAttribute, volume_id: bytes, binding: int) -> bytes:
    """Return the attribute's value, for the inode that has this :func:`binding`."""
    value = _HEAD.pack(
        FORMAT,
        int(stub.flags),
        0,
        0,
        stub.recipe,
        stub.digest,
        stub.covered,
        stub.mtime_ns,
        binding,
        stub.local_bytes,
    )
    return value[:4] + _U32.pack(_check(value, volume_id)) + value[8:]


def decode_stub(value: bytes, volume_id: bytes, where: str) -> StubAttribute:
    """Decode the attribute, bound to any inode: see :func:`binding_in`. Raises DamagedStub."""
    if len(value) < HEAD_BYTES:
        raise DamagedStub(f"{where}: the stub attribute is truncated; {_ADVICE}")
    version, flags, reserved, check, recipe, digest, covered, mtime_ns, _, local_bytes = (
        _HEAD.unpack_from(value)
    )
    blank = value[:4] + b"\0\0\0\0" + value[8:]
    if check != _check(blank, volume_id):
        raise DamagedStub(
            f"{where}: the stub attribute has a wrong checksum, or belongs to another volume;"
            f" {_ADVICE}"
        )
    if version != FORMAT:
        raise DamagedStub(f"{where}: stub format {version}; this program reads {FORMAT}")
    if len(value) != HEAD_BYTES or reserved != 0 or flags & ~STUB_FLAGS:
        raise DamagedStub(
            f"{where}: the stub attribute has parts that this program does not support"
        )
    return StubAttribute(recipe, digest, covered, mtime_ns, Flag(flags), local_bytes)


def binding_in(value: bytes) -> int:
    """Return the binding of a valid attribute."""
    return int.from_bytes(value[_BINDING_AT : _BINDING_AT + 8], "little")


def binding(instance_seed: int, inode: int, generation: int) -> int:
    """Return the binding of an attribute to one inode of one instance of a volume: an attribute in
    another place is a copy."""
    return xxhash.xxh3_64_intdigest(_BOUND.pack(inode, generation), seed=instance_seed)


def _check(value: bytes, volume_id: bytes) -> int:
    return xxhash.xxh3_64_intdigest(value, seed=attribute_seed(volume_id)) & 0xFFFF_FFFF


@lru_cache(maxsize=16)
def attribute_seed(volume_id: bytes) -> int:
    """Return the seed of the attribute's checksum: attributes of another volume do not match it."""
    return xxhash.xxh3_64_intdigest(volume_id)
