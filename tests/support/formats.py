"""Strategies for fields of formats, and data with a flipped bit."""

from hypothesis import strategies as st

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HASH = st.binary(min_size=32, max_size=32)
UUID = st.binary(min_size=16, max_size=16)


def flipped(data: bytes, bit: int) -> bytes:
    """The data with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
