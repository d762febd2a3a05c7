"""The chunker's definition, written down the plain way: the oracle of the tests.

Everything here follows the text of docs/design/chunking.md, byte after byte, and is as slow as
that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dedupd_core.format.volume_parameters import Chunking

WINDOW = 64


@dataclass(frozen=True)
class Match:
    """A place where a chunk may end: ``end`` bytes into the data, ``bits`` low bits matching."""

    end: int
    bits: int


def remainder(window: bytes, polynomial: int) -> int:
    """The bytes as one polynomial over GF(2), first byte highest, modulo ``polynomial``."""
    value = int.from_bytes(window)
    while value.bit_length() > 16:
        value ^= polynomial << (value.bit_length() - 17)
    return value


def window_fingerprints(data: bytes, polynomial: int) -> Iterator[int]:
    """``remainder`` of every window of 64 bytes, by rolling; the first ends after byte 63."""
    overflow = [remainder(bytes([byte, 0, 0]), polynomial) for byte in range(256)]
    leaving = [remainder(bytes([byte]) + bytes(WINDOW), polynomial) for byte in range(256)]
    value = 0
    for index, byte in enumerate(data):
        value = (value & 0xFF) << 8 ^ byte ^ overflow[value >> 8]
        if index >= WINDOW:
            value ^= leaving[data[index - WINDOW]]
        if index >= WINDOW - 1:
            yield value


def matches(data: bytes, chunking: Chunking) -> list[Match]:
    """All places where at least ``bits - regression`` low bits of the fingerprint match."""
    found = []
    for end, value in enumerate(window_fingerprints(data, chunking.polynomial), WINDOW):
        bits = chunking.bits
        while bits >= chunking.bits - chunking.regression and bits > 0:
            if (value ^ chunking.pattern) & ((1 << bits) - 1) == 0:
                found.append(Match(end, bits))
                break
            bits -= 1
    return found


def cut(data: bytes, chunking: Chunking, final: bool = True) -> list[int]:
    """Ends of the chunks of ``data``; without ``final`` only those that no later byte can move."""
    found = matches(data, chunking)
    ends: list[int] = []
    start = 0
    while start < len(data):
        end = _next_end(found, start, len(data), chunking)
        if end is None:
            if final:
                ends.append(len(data))
            break
        ends.append(end)
        start = end
    return ends


def _next_end(found: Sequence[Match], start: int, size: int, chunking: Chunking) -> int | None:
    """None where the data ends before the chunk does."""
    shortest, longest = start + chunking.min_bytes, start + chunking.max_bytes
    reachable = [match for match in found if shortest <= match.end <= longest]
    for match in reachable:
        if match.bits == chunking.bits:
            return match.end
    if size < longest:
        return None
    if not reachable:
        return longest
    return max(reachable, key=lambda match: (match.bits, match.end)).end
