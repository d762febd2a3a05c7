"""Fingerprints and checksums."""

from typing_extensions import Buffer

HASH_BYTES: int

def fingerprint(data: Buffer, algorithm: str = "blake3") -> bytes:
    """Return the 32-byte fingerprint (``blake3`` or ``sha256``) of one buffer."""

def fingerprints(data: Buffer, ends: Buffer, algorithm: str = "blake3", threads: int = 1) -> bytes:
    """Return fingerprints of the consecutive ranges of ``data`` that end at ``ends`` (u32)."""

def xxh3_64(data: Buffer, seed: int = 0) -> int: ...
def is_zero(data: Buffer) -> bool: ...
