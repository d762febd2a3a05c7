"""The records that identify a volume or a store: text, with a checksum among the fields."""

import json
from typing import Any

import xxhash

NOT_VALID = (ValueError, KeyError, TypeError, AttributeError)
"""The errors of :func:`decoded`, and of using its fields, if the record is invalid."""


def encoded(fields: dict[str, Any]) -> bytes:
    """Encode a record with these fields, for its file."""
    return json.dumps(with_check(fields), indent=2).encode() + b"\n"


def with_check(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record with their checksum."""
    return {**fields, "check": check_of(fields)}


def decoded(data: bytes) -> dict[str, Any]:
    """Decode the fields of a record. Raises one of :data:`NOT_VALID`."""
    fields: dict[str, Any] = json.loads(data)
    take_check(fields)
    return fields


def take_check(fields: dict[str, Any]) -> None:
    """Remove the checksum from the fields. Raises one of :data:`NOT_VALID` if it does not match."""
    if fields.pop("check") != check_of(fields):
        raise ValueError("its checksum is wrong")


def check_of(fields: dict[str, Any]) -> str:
    """Return the checksum of a record's other fields.

    With a wrong name of the attribute, every stub would look like a plain file of zeros.
    """
    return xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode())
