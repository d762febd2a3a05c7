"""Arguments and answers of the object classes ``lock`` and ``cmpomap`` of the OSDs, encoded.

This is Ceph's own encoding: each struct starts with its version, the oldest version that can read
it, and its length. Atomic changes use these methods, and the bindings have no calls for them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

LOCK_NAME = "lease"
LOCK_XATTR = f"lock.{LOCK_NAME}"
_EXCLUSIVE = 1
_MUST_RENEW = 2
_COMPARE_STRINGS = 1
_EQUAL = 1

_HEAD = struct.Struct("<BBI")
_U32 = struct.Struct("<I")


def _struct(body: bytes) -> bytes:
    return _HEAD.pack(1, 1, len(body)) + body


def _string(text: str) -> bytes:
    data = text.encode()
    return _U32.pack(len(data)) + data


def _duration(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("<II", whole, int((seconds - whole) * 1e9))


def lock_request(
    cookie: str, description: str, duration_s: float, *, renews: bool = False
) -> bytes:
    """``lock.lock``: take the lease for ``duration_s`` by the clock of the OSD.

    ``renews``: only if this ``cookie`` still holds it.
    """
    return _struct(
        _string(LOCK_NAME)
        + bytes([_EXCLUSIVE])
        + _string(cookie)
        + _string("")
        + _string(description)
        + _duration(duration_s)
        + bytes([_MUST_RENEW if renews else 0])
    )


def unlock_request(cookie: str) -> bytes:
    """``lock.unlock``."""
    return _struct(_string(LOCK_NAME) + _string(cookie))


def info_request() -> bytes:
    """``lock.get_info``."""
    return _struct(_string(LOCK_NAME))


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock: the session, and the end by the OSD's clock (s since 1970)."""

    cookie: str
    until_s: float


def decode_holder(answer: bytes) -> Holder | None:
    """Decode the answer of ``lock.get_info``: None if the lock is free now."""
    at = _HEAD.size
    (count,) = _U32.unpack_from(answer, at)
    if not count:
        return None
    at += 4 + _HEAD.size + 9  # the number of lockers; the first one's head, and its entity
    (length,) = _U32.unpack_from(answer, at)
    cookie = answer[at + 4 : at + 4 + length].decode()
    at += 4 + length + _HEAD.size
    seconds, nanoseconds = struct.unpack_from("<II", answer, at)
    return Holder(cookie, seconds + nanoseconds / 1e9)


def absent_keys(keys: Sequence[str]) -> bytes:
    """``cmpomap.cmp_vals``: no key has a value. (A missing key counts as empty.)"""
    pairs = b"".join(_string(key) + _U32.pack(0) for key in sorted(keys))
    default = b"\1" + _U32.pack(0)
    return _struct(bytes([_COMPARE_STRINGS, _EQUAL]) + _U32.pack(len(keys)) + pairs + default)
