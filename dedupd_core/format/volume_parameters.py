"""Format parameters of a volume: chosen once, when it is enabled, and kept in ``volume.json``."""

import json
import uuid as uuidlib
from dataclasses import asdict, dataclass, replace

from dedupd_core import native
from dedupd_core.errors import Damaged, UnknownFormat, UsageError
from dedupd_core.format.checked_json import NOT_VALID, encoded, take_check
from dedupd_core.units import KIB

FORMAT = 3

POLYNOMIAL = 0x1_6D43
"""Irreducible, of degree 16; docs/design/chunking.md describes the choice."""

PATTERN = 0xCB6B
"""The value that the low bits of the fingerprint must equal. Its low bits are not zero for any
preset and regression, so that runs of zeros never match and are cut at S_max."""

FINGERPRINTS = ("blake3", "sha256")
"""The first is the default."""

ATTRIBUTES = ("trusted.dedupd", "user.dedupd")
"""Names for the attribute of stubs: hidden from users, or on a volume that a user owns."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """Regression Rabin chunking (seed 003, 4.3); lengths in bytes."""

    polynomial: int
    bits: int
    pattern: int
    regression: int
    min_bytes: int
    max_bytes: int

    @property
    def average_bytes(self) -> int:
        """The approximate length of chunks of most contents."""
        return (self.min_bytes + self.max_bytes) // 2


def _preset(bits: int) -> Chunking:
    return Chunking(
        POLYNOMIAL, bits, PATTERN & ((1 << bits) - 1), 4, 1 << (bits - 1), 1 << (bits + 1)
    )


LARGE = Chunking(POLYNOMIAL, 16, PATTERN, 4, 64 * KIB, 256 * KIB)
"""A polynomial of degree 16 gives no more than 16 bits: a cut comes 64 KiB after the minimum."""

PRESETS = {"128k": LARGE} | {f"{1 << (bits - 10)}k": _preset(bits) for bits in (16, 15, 14, 13, 12)}
"""Chunkings by the average length of a chunk, the largest first. ``128k`` is for large cold files
and for clusters; those below the default are for the study."""

DEFAULT_PRESET = "64k"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The content of ``volume.json``. ``attribute`` is the name of the stub attribute."""

    uuid: str
    chunking: Chunking
    fingerprint: str
    attribute: str
    format: int = FORMAT

    @property
    def uuid_bytes(self) -> bytes:
        return uuidlib.UUID(self.uuid).bytes

    def like(self, other: "Parameters") -> "Parameters":
        """Return these with another's chunking, so that equal content is found there."""
        return replace(self, chunking=other.chunking, fingerprint=other.fingerprint)

    def chunker(self, path: str | None = None) -> native.chunker.Chunker:
        """Return a chunker for this volume, on the fastest code path (or ``path``)."""
        return native.chunker.Chunker(
            **asdict(self.chunking), fingerprint=self.fingerprint, path=path
        )

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Parameters":
        """Raises Damaged, or UnknownFormat for a volume of another version."""
        try:
            fields = json.loads(data)
            version = fields["format"]
            if version != FORMAT:
                raise UnknownFormat.of(where, "volume format", version, FORMAT)
            take_check(fields)
            chunking = Chunking(**fields.pop("chunking"))
            parameters = cls(chunking=chunking, **fields)
            uuidlib.UUID(parameters.uuid)
            if parameters.fingerprint not in FINGERPRINTS:
                raise ValueError(f"fingerprint {parameters.fingerprint!r}")
            if parameters.attribute not in ATTRIBUTES:
                raise ValueError(f"attribute {parameters.attribute!r}")
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: not a valid volume file ({error}); restore it from a backup"
            ) from error
        return parameters


def uuid_of(data: bytes) -> str:
    """Return the uuid in ``volume.json`` of any version, which identifies its mount. Raises
    ValueError if there is none."""
    try:
        return str(uuidlib.UUID(json.loads(data)["uuid"]))
    except NOT_VALID as error:
        raise ValueError("has no uuid") from error


def new_parameters(chunk_size: str, fingerprint: str, attribute: str) -> Parameters:
    """Return the parameters of a new volume. Raises UsageError."""
    if chunk_size not in PRESETS:
        raise UsageError(f"chunk size {chunk_size!r}: choose one of {', '.join(PRESETS)}")
    if fingerprint not in FINGERPRINTS:
        raise UsageError(f"fingerprint {fingerprint!r}: choose one of {', '.join(FINGERPRINTS)}")
    return Parameters(str(uuidlib.uuid4()), PRESETS[chunk_size], fingerprint, attribute)
