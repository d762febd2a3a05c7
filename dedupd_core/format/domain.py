"""Domains: files share chunks only inside one (docs/design/partitions.md, "Domains").

A domain is 16 bytes in the header of a container. The bytes themselves identify the domain, so that
domains stay separate even if hints are lost.
"""

import hashlib
import struct
from typing import NamedTuple

DOMAIN_BYTES = 16
VOLUME = bytes(DOMAIN_BYTES)
"""The domain of all files, if the policy defines no others."""

_OWNER, _FOLDER, _LOST = 1, 2, 3
"""The first byte of any other domain."""

_NUMBER = struct.Struct("<B3xI8x")


class PartitionKey(NamedTuple):
    """A partition of a domain. Each domain numbers its partitions from 0."""

    domain: bytes = VOLUME
    number: int = 0

    @property
    def is_of_volume(self) -> bool:
        """True if all files of the volume share its chunks."""
        return self.domain == VOLUME


FIRST = PartitionKey()
"""The first partition of the volume's domain."""


def of_owner(uid: int) -> bytes:
    """Return the domain of the files of a user."""
    return _NUMBER.pack(_OWNER, uid)


def of_folder(volume_id: bytes, name: bytes) -> bytes:
    """Return the domain of the files below a top-level folder of a volume; ``name`` is empty for
    files at the top."""
    digest = hashlib.blake2b(name, digest_size=DOMAIN_BYTES - 1, key=volume_id)
    return bytes([_FOLDER]) + digest.digest()


def of_lost(container: int) -> bytes:
    """Return the domain of a container whose domain is lost: it gets no files, and no other
    container has it."""
    return _NUMBER.pack(_LOST, container)


NOWHERE = of_lost(0)
"""The domain of no container."""


def owner_of(domain: bytes) -> int | None:
    """Return the user whose files are in a domain; None for a domain of another sort."""
    return _NUMBER.unpack(domain)[1] if domain[0] == _OWNER else None


def show_domain(domain: bytes) -> str:
    """Format a domain for messages."""
    if domain == VOLUME:
        return "the volume"
    if domain[0] == _OWNER:
        return f"owner {owner_of(domain)}"
    if domain[0] == _FOLDER:
        return f"folder {domain[1:5].hex()}"
    return f"unknown {_NUMBER.unpack(domain)[1]}"


def salt_of(domain: bytes) -> int:
    """Return 64 bits that differ for each domain, and are 0 for the volume's."""
    if domain == VOLUME:
        return 0
    return int.from_bytes(hashlib.blake2b(domain, digest_size=8).digest(), "little")
