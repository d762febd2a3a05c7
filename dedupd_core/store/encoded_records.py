"""Records of recipes, and of repaired chunks, as they are appended."""

from array import array

from dedupd_core import native
from dedupd_core.format import container as fmt


def encode_records(
    data: bytes, starts: "array[int]", lengths: "array[int]"
) -> native.codec.Encoded:
    """Records of recipes, and of repaired chunks, compressed: the level is no matter of policy."""
    return native.codec.encode(
        data,
        starts,
        lengths,
        level=3,
        saving_min=fmt.COMPRESSION_SAVING_MIN,
        header_bytes=fmt.RECORD_HEADER_BYTES,
        align_bytes=fmt.ALIGN_BYTES,
    )


def encoded_payload(raw: bytes) -> tuple[int, bytes, int]:
    """Codec, payload and the payload's checksum of one record, compressed where that pays."""
    encoded = encode_records(raw, array("I", [0]), array("I", [len(raw)]))
    (stored,) = memoryview(encoded.stored_lengths).cast("I")
    (checksum,) = memoryview(encoded.checksums).cast("Q")
    payload = bytes(memoryview(encoded)[fmt.RECORD_HEADER_BYTES :][:stored])
    return encoded.codecs[0], payload, checksum


def encoded_alone(raw: bytes, fingerprint: bytes) -> tuple[fmt.Record, bytes]:
    """A record of a chunk that leans on no other one, as ``append_copies`` takes it, and its
    payload."""
    codec, payload, checksum = encoded_payload(raw)
    record = fmt.Record(
        kind=fmt.RecordKind.COPY,
        codec=codec,
        raw_length=len(raw),
        stored_length=len(payload),
        fingerprint=fingerprint,
        checksum=checksum,
    )
    return record, payload
