"""Decoders against damaged and forged input, for as long as one has time."""

import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SECONDS_SLOW = int(os.environ.get("DEDUPD_FUZZ_SECONDS", "60"))
"""Of each target in `make test-slow`."""

_EXAMPLES = 50
"""So many of one seed: what hypothesis remembers of its inputs grows with them."""


def fuzz(seconds: float, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> int:
    """Check inputs of one seed after the other; returns how many seeds there were."""
    end, number = time.monotonic() + seconds, 0
    quietly = settings(
        max_examples=_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    def one(value: Any) -> None:
        check(value)

    while time.monotonic() < end:
        seed(number)(quietly(given(strategy)(one)))()
        number += 1
    return number


def damaged(samples: list[bytes]) -> st.SearchStrategy[bytes]:
    """Samples with a few changes: flipped bits, other bytes, cut, repeated, drawn out."""
    place = st.integers(0, 1 << 20)
    change = st.tuples(
        st.sampled_from(["flip", "set", "cut", "repeat", "extend", "insert"]),
        place,
        st.integers(0, 255),
    )

    def changed(sample: bytes, changes: list[tuple[str, int, int]]) -> bytes:
        data = bytearray(sample)
        for kind, at, value in changes:
            at %= max(1, len(data))
            if kind == "flip" and data:
                data[at] ^= 1 << value % 8
            elif kind == "set" and data:
                data[at] = value
            elif kind == "cut":
                del data[at:]
            elif kind == "repeat":
                data[at:at] = data[at : at + value]
            elif kind == "extend":
                data += bytes(value)
            else:
                data[at:at] = bytes([value])
        return bytes(data)

    return st.builds(changed, st.sampled_from(samples), st.lists(change, min_size=1, max_size=4))
