"""Compressed sizes of chunks; a cache avoids compressing the same content again."""

import threading
import time

import numpy as np
from numpy.typing import NDArray

from analysis.collection.chunk_log import Timing
from dedupd_core import native

SLOTS = 1 << 22
"""Direct-mapped, 12 bytes each: 50 MB. An evicted chunk is only compressed again."""

_SLOT_MASK = np.uint64(SLOTS - 1)


class CompressedSizes:
    """The sizes that the product would store with a threshold of zero; shared by all chunkings.

    The same content always has the same size, so the cache does not influence the result.
    """

    def __init__(self, level: int) -> None:
        self._level = level
        self._keys = np.zeros(SLOTS, np.uint64)
        self._sizes = np.zeros(SLOTS, np.uint32)
        self._lock = threading.Lock()

    def of(
        self,
        data: memoryview,
        starts: NDArray[np.uint32],
        lengths: NDArray[np.uint32],
        fingerprints: tuple[NDArray[np.uint64], NDArray[np.uint64]],
        timing: Timing,
    ) -> NDArray[np.uint32]:
        """Return the stored size of the chunks of ``data`` at ``starts``, without headers."""
        high, low = fingerprints
        slots = high & _SLOT_MASK
        with self._lock:
            sizes: NDArray[np.uint32] = self._sizes[slots]
            missing = np.flatnonzero(self._keys[slots] != low)
        if not len(missing):
            return sizes
        _, first, inverse = np.unique(low[missing], return_index=True, return_inverse=True)
        once = missing[first]
        began = time.thread_time()
        encoded = native.codec.encode(
            data,
            starts[once].tobytes(),
            lengths[once].tobytes(),
            level=self._level,
            saving_min=0.0,
            header_bytes=0,
            align_bytes=1,
        )
        timing.compress_s += time.thread_time() - began
        timing.compress_bytes += int(lengths[once].sum(dtype=np.uint64))
        found = np.frombuffer(encoded.stored_lengths, np.uint32)
        sizes[missing] = found[inverse]
        with self._lock:
            self._keys[slots[once]] = low[once]
            self._sizes[slots[once]] = found
        return sizes
