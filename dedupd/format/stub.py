"""The attribute that makes an inode a stub (docs/format.md, "Stub")."""

import enum
import struct
from dataclasses import dataclass
from functools import lru_cache

import xxhash

from dedupd.errors import DamagedStub

FORMAT = 1
HEAD_BYTES = 48
"""Little enough to fit into a 256-byte ext4 inode beside its other fields."""

_HEAD = struct.Struct("<BBHIQ16sQq")
_U32 = struct.Struct("<I")

_ADVICE = "if the file was never deduplicated here, remove its attribute (setfattr -x)"

assert _HEAD.size == HEAD_BYTES


class Flag(enum.IntFlag):
    """States of a stub."""

    COMMITTING = 1
    """The commit is under way: blocks may remain, all of them equal to the recipe's bytes, and the
    modification time is the one in the attribute."""
    RESTORING = 2
    """The stub is being filled: the modification time is the one in the attribute."""
    DIRECT = 4
    """The file is one chunk: ``recipe`` is that chunk's id, and there is no recipe record."""

    @property
    def transient(self) -> "Flag":
        """The flags of a change that is under way."""
        return self & ~Flag.DIRECT


NO_FLAGS = Flag(0)


@dataclass(frozen=True, slots=True)
class StubAttribute:
    """The decoded attribute.

    ``digest`` is the first half of the fingerprint of the recipe's record, or of the chunk's if
    DIRECT; ``covered`` is how many bytes from the start of the file the recipe stands for;
    ``mtime_ns`` is the time to be restored while COMMITTING or RESTORING.
    """

    recipe: int
    digest: bytes
    covered: int
    mtime_ns: int
    flags: Flag = NO_FLAGS


def encode_stub(stub: StubAttribute, volume_id: bytes) -> bytes:
    """The attribute's value."""
    value = _HEAD.pack(
        FORMAT,
        int(stub.flags),
        0,
        0,
        stub.recipe,
        stub.digest,
        stub.covered,
        stub.mtime_ns,
    )
    return value[:4] + _U32.pack(_check(value, volume_id)) + value[8:]


def decode_stub(value: bytes, volume_id: bytes, where: str) -> StubAttribute:
    """Raises DamagedStub."""
    if len(value) < HEAD_BYTES:
        raise DamagedStub(f"{where}: the stub attribute is cut short; {_ADVICE}")
    version, flags, reserved, check, recipe, digest, covered, mtime_ns = _HEAD.unpack_from(value)
    blank = value[:4] + b"\0\0\0\0" + value[8:]
    if check != _check(blank, volume_id):
        raise DamagedStub(
            f"{where}: the stub attribute fails its checksum, or belongs to another volume;"
            f" {_ADVICE}"
        )
    if version != FORMAT:
        raise DamagedStub(f"{where}: stub format {version}; this program reads {FORMAT}")
    if len(value) != HEAD_BYTES or reserved != 0:
        raise DamagedStub(f"{where}: the stub attribute has parts that this program does not know")
    return StubAttribute(recipe, digest, covered, mtime_ns, Flag(flags))


def _check(value: bytes, volume_id: bytes) -> int:
    return xxhash.xxh3_64_intdigest(value, seed=attribute_seed(volume_id)) & 0xFFFF_FFFF


@lru_cache(maxsize=16)
def attribute_seed(volume_id: bytes) -> int:
    """Seed of the attribute's checksum: an attribute of another volume fails it."""
    return xxhash.xxh3_64_intdigest(volume_id)
