"""Compresses payloads of records if that saves space, and decompresses them."""

from typing import Final, final

from typing_extensions import Buffer

class CorruptPayload(Exception):
    """Stored bytes do not match their checksum, or do not decode to the stated length."""

@final
class Encoded:
    """Payloads ready to be appended: gaps for record headers, then the stored bytes.

    Supports the writable buffer protocol; the caller fills the header gaps in place.
    """

    starts: Final[bytes]
    """u32 offset of each record's header gap; the payload follows the gap directly."""
    stored_lengths: Final[bytes]
    """u32 stored payload bytes of each record."""
    codecs: Final[bytes]
    """u8 codec of each record: 0 raw, 1 zstd."""
    checksums: Final[bytes]
    """u64 XXH3-64 of each stored payload."""
    def __len__(self) -> int:
        """Total bytes of the buffer, including padding."""
    def retained(self, kept: Buffer) -> Encoded:
        """Return only the records whose item of ``kept`` is not 0, before they are sealed. Raises
        ValueError."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def encode(
    data: Buffer,
    starts: Buffer,
    lengths: Buffer,
    *,
    level: int,
    saving_min: float,
    header_bytes: int,
    align_bytes: int,
) -> Encoded:
    """Compress the selected ranges (u32 ``starts``, ``lengths``) of ``data`` if that saves space.

    A range is stored raw if samples of it are incompressible, if ``level`` is 0, or if zstd saves
    less than ``saving_min`` (a fraction) of it. Zeros pad records to ``align_bytes``.
    """

def decode(
    stored: Buffer, codec: int, raw_length: int, checksum: int, base: Buffer | None = None
) -> bytes:
    """Verify XXH3-64 of ``stored`` and decompress. Codecs 2 and 3 need the raw bytes of their
    ``base``, or dictionary. Raises CorruptPayload."""
