"""Chunking: a lane takes every batch in the order of reading and turns it into rows of the log."""

import hashlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.batches import Batch, Piece
from analysis.chunkings import Cuts, Cutter, cutter
from analysis.compressed import CompressedSizes
from analysis.log import HOLE_MARK, Timing

_WORD = (1 << 64) - 1


def _factor(salt: int) -> np.uint64:
    """An odd number without structure, so that samples of different salts are independent.

    The finaliser of SplitMix64 (Steele et al. 2014).
    """
    word = (salt + 1) * 0x9E37_79B9_7F4A_7C15 & _WORD
    word = (word ^ word >> 30) * 0xBF58_476D_1CE4_E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D0_49BB_1331_11EB & _WORD
    return np.uint64((word ^ word >> 31) | 1)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which distinct chunks are logged: the fraction ``sample`` of them, by content.

    A chunk is in or out wherever it occurs, so duplicates stay duplicates.
    """

    sample: float
    salt: int

    @property
    def everything(self) -> bool:
        return self.sample >= 1

    def of(self, low: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether the chunk is logged, by the second word of its fingerprint."""
        chosen: NDArray[np.bool_] = (low * _factor(self.salt)) >> np.uint64(32) < np.uint64(
            round(self.sample * (1 << 32))
        )
        return chosen


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, column by column."""

    columns: dict[str, NDArray[Any]]
    count: int


class WholeFiles:
    """Fingerprints and lengths of whole files, put together from those of their chunks.

    The fingerprint depends on the content and the chunking alone: not on batches, and not on
    whether zeros are read or a hole. A file of one chunk has that chunk's.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._digest = bytes.fromhex(state.get("digest", ""))
        self._zeros = int(state.get("zeros", 0))
        self._data_bytes = int(state.get("data_bytes", 0))
        self._zero_bytes = int(state.get("zero_bytes", 0))
        self._hole_bytes = int(state.get("hole_bytes", 0))
        self._rows: list[tuple[int, int, int, int, int, bytes]] = []

    def state(self) -> dict[str, Any]:
        """The file that is unfinished, for a checkpoint."""
        return {
            "digest": self._digest.hex(),
            "zeros": self._zeros,
            "data_bytes": self._data_bytes,
            "zero_bytes": self._zero_bytes,
            "hole_bytes": self._hole_bytes,
        }

    def drop(self) -> None:
        """Forget the unfinished file."""
        self._digest, self._zeros = b"", 0
        self._data_bytes = self._zero_bytes = self._hole_bytes = 0

    def add(
        self, fingerprints: Sequence[bytes], zero: Sequence[bool], lengths: Sequence[int]
    ) -> None:
        """The next chunks of the file."""
        for fingerprint, is_zero, length in zip(fingerprints, zero, lengths, strict=True):
            self._data_bytes += length
            if is_zero:
                self._zeros += length
                self._zero_bytes += length
                continue
            if self._zeros:
                self._end_of_zeros()
            self._digest = (
                hashlib.blake2b(self._digest + fingerprint, digest_size=16).digest()
                if self._digest
                else fingerprint[:16]
            )

    def add_hole(self, length: int) -> None:
        self._zeros += length
        self._hole_bytes += length

    def _end_of_zeros(self) -> None:
        run = b"zeros" + struct.pack("<Q", self._zeros)
        self._digest = hashlib.blake2b(self._digest + run, digest_size=16).digest()
        self._zeros = 0

    def finish(self, dataset: int, file: int) -> None:
        """The file is complete: its row."""
        if self._zeros:
            self._end_of_zeros()
        sizes = self._data_bytes, self._zero_bytes, self._hole_bytes
        self._rows.append((dataset, file, *sizes, self._digest))
        self.drop()

    def take_rows(self) -> Rows | None:
        rows, self._rows = self._rows, []
        if not rows:
            return None
        digests = np.frombuffer(b"".join(row[5] for row in rows), np.uint64).reshape(-1, 2)
        columns: dict[str, NDArray[Any]] = {
            "dataset": np.array([row[0] for row in rows], np.uint16),
            "file": np.array([row[1] for row in rows], np.uint32),
            "length_bytes": np.array([row[2] for row in rows], np.uint64),
            "zero_bytes": np.array([row[3] for row in rows], np.uint64),
            "hole_bytes": np.array([row[4] for row in rows], np.uint64),
            "fp_high": np.ascontiguousarray(digests[:, 0]),
            "fp_low": np.ascontiguousarray(digests[:, 1]),
        }
        return Rows(columns, len(rows))


@dataclass(slots=True)
class Stream:
    """One chunking's way through the bytes. ``pending`` of the file are not in a chunk yet."""

    name: str
    pending: int
    timing: Timing
    whole: WholeFiles | None = None
    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    rows: int = 0

    def take_rows(self) -> Rows | None:
        parts, self.parts = self.parts, []
        count, self.rows = self.rows, 0
        if not parts:
            return None
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Rows(joined, count)


class Lane:
    """Chunkings of the same average, one after the other, so that they compress a chunk once."""

    def __init__(
        self, streams: Sequence[Stream], selection: Selection, sizes: CompressedSizes | None
    ) -> None:
        self.streams = streams
        self._cutters = [cutter(stream.name) for stream in streams]
        self._selection = selection
        self._sizes = sizes

    def feed(self, batch: Batch) -> None:
        """Take in the next batch."""
        data = memoryview(batch.buffer)
        for stream, cut in zip(self.streams, self._cutters, strict=True):
            self._feed(stream, cut, data, batch.pieces)

    def _feed(self, stream: Stream, cut: Cutter, data: memoryview, pieces: Sequence[Piece]) -> None:
        whole = [piece for piece in pieces if not piece.failed]
        segments = []
        for piece in whole:
            start = piece.start - (0 if piece.first else stream.pending)
            segments.append((start, piece.end, piece.final and not piece.hole))
        if segments:
            began = time.thread_time()
            cuts = cut.process(data, segments)
            stream.timing.chunk_s += time.thread_time() - began
            stream.timing.chunk_bytes += sum(piece.end - piece.start for piece in whole)
            self._log_chunks(stream, data, whole, segments, cuts)
            self._after(stream, cut.max_bytes, whole[-1], segments[-1][0], cuts)
        if len(whole) < len(pieces):
            stream.pending = 0
            if stream.whole is not None:
                stream.whole.drop()

    def _after(self, stream: Stream, max_bytes: int, piece: Piece, start: int, cuts: Cuts) -> None:
        """What is left of the last piece, and the hole behind it."""
        last = int(cuts.ends[-1]) if cuts.counts[-1] else start
        stream.pending = piece.end - last
        if piece.hole:
            length = stream.pending + piece.hole
            inside = length if piece.final else length // max_bytes * max_bytes
            if inside:
                position = piece.position + piece.end - piece.start - stream.pending
                _append_hole(stream, piece, position, inside)
                if stream.whole is not None:
                    stream.whole.add_hole(inside)
            stream.pending = length - inside
        if piece.final and stream.whole is not None and piece.hole:
            stream.whole.finish(piece.dataset, piece.file)

    def _log_chunks(
        self,
        stream: Stream,
        data: memoryview,
        pieces: Sequence[Piece],
        segments: Sequence[tuple[int, int, bool]],
        cuts: Cuts,
    ) -> None:
        counts = cuts.counts
        ends = cuts.ends
        heads = np.cumsum(counts, dtype=np.int64) - counts
        begins = np.array([segment[0] for segment in segments], np.uint32)
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        cut_at_all = counts > 0
        starts[heads[cut_at_all]] = begins[cut_at_all]
        lengths = ends - starts
        if stream.whole is not None:
            _whole_files(stream.whole, pieces, cuts, lengths)
        shift = np.array([piece.position - piece.start for piece in pieces], np.int64)
        offsets = (starts + np.repeat(shift, counts)).astype(np.uint64)
        segment = np.repeat(np.arange(len(pieces)), counts)
        keep, logged = self._choose(cuts, lengths, segment)
        if not len(keep):
            return
        zero = cuts.zero[keep]
        high = np.where(zero, np.uint64(0), cuts.fingerprints[keep, 0])
        low = np.where(zero, np.uint64(0), cuts.fingerprints[keep, 1])
        compressed = logged.copy()
        compressed[zero] = 0
        if self._sizes is not None and not zero.all():
            some = ~zero
            compressed[some] = self._sizes.of(
                data,
                starts[keep][some],
                lengths[keep][some],
                (high[some], low[some]),
                stream.timing,
            )
        datasets = np.array([piece.dataset for piece in pieces], np.uint16)
        files = np.array([piece.file for piece in pieces], np.uint32)
        of = segment[keep]
        _append(stream, datasets[of], files[of], offsets[keep], logged, compressed, high, low)

    def _choose(
        self, cuts: Cuts, lengths: NDArray[np.uint32], segment: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
        """Indices and lengths of the rows to log. Neighbouring chunks of zeros become one row."""
        zero = cuts.zero
        if zero.any():
            head = np.ones(len(zero), np.bool_)
            head[1:] = ~(zero[1:] & zero[:-1] & (segment[1:] == segment[:-1]))
            keep = np.flatnonzero(head)
            lengths = np.add.reduceat(lengths, keep)
        else:
            keep = np.arange(len(zero))
        if self._selection.everything:
            return keep, lengths
        chosen = self._selection.of(cuts.fingerprints[keep, 1]) | zero[keep]
        return keep[chosen], lengths[chosen]


def _whole_files(
    whole: WholeFiles, pieces: Sequence[Piece], cuts: Cuts, lengths: NDArray[np.uint32]
) -> None:
    packed = np.ascontiguousarray(cuts.fingerprints[:, :2]).tobytes()
    zero = cuts.zero.tolist()
    sizes = lengths.tolist()
    at = 0
    for piece, count in zip(pieces, cuts.counts.tolist(), strict=True):
        stop = at + count
        fingerprints = [packed[16 * i : 16 * i + 16] for i in range(at, stop)]
        whole.add(fingerprints, zero[at:stop], sizes[at:stop])
        at = stop
        if piece.final and not piece.hole:
            whole.finish(piece.dataset, piece.file)


def _append(stream: Stream, *columns: NDArray[Any]) -> None:
    datasets, files, offsets, lengths, compressed, high, low = columns
    stream.parts.append(
        {
            "dataset": datasets,
            "file": files,
            "offset_bytes": offsets,
            "length_bytes": lengths.astype(np.uint64),
            "compressed_bytes": compressed,
            "fp_high": high,
            "fp_low": low,
        }
    )
    stream.rows += len(files)


def _append_hole(stream: Stream, piece: Piece, position: int, length: int) -> None:
    _append(
        stream,
        np.array([piece.dataset], np.uint16),
        np.array([piece.file], np.uint32),
        np.array([position], np.uint64),
        np.array([length], np.uint64),
        np.array([0], np.uint32),
        np.array([0], np.uint64),
        np.array([HOLE_MARK], np.uint64),
    )
