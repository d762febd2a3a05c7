"""Records that say what a volume or a store is: text, with a checksum among the fields."""

import json
from typing import Any

import xxhash

NOT_VALID = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of :func:`decoded`, and of what is made of its fields, where there is no such record."""


def encoded(fields: dict[str, Any]) -> bytes:
    """A record with these fields, as its file has it."""
    return json.dumps(with_check(fields), indent=2).encode() + b"\n"


def with_check(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record, and their checksum."""
    return {**fields, "check": check_of(fields)}


def decoded(data: bytes) -> dict[str, Any]:
    """The fields of a record. Raises one of :data:`NOT_VALID`."""
    fields: dict[str, Any] = json.loads(data)
    take_check(fields)
    return fields


def take_check(fields: dict[str, Any]) -> None:
    """Take the checksum from the fields. Raises one of :data:`NOT_VALID` where they fail it."""
    if fields.pop("check") != check_of(fields):
        raise ValueError("its checksum is wrong")


def check_of(fields: dict[str, Any]) -> str:
    """The checksum of a record's other fields.

    Were the name of the attribute read wrongly, every stub would look like a plain file of zeros.
    """
    return xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode())
