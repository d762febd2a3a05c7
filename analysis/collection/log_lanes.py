"""Chunking: a lane processes every batch in the order of reading, and makes rows of the log."""

import hashlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.collection.chunk_log import (
    HOLE_MARK,
    NOT_MEASURED,
    Columns,
    Timing,
    logged_share,
)
from analysis.collection.chunkings import Cuts, Cutter, Segments, cutter
from analysis.collection.compression_trial import CompressedSizes
from analysis.collection.file_batches import Batch, Segment, SegmentRows

_WORD = (1 << 64) - 1


def _factor(salt: int) -> np.uint64:
    """Return a pseudo-random odd number, so that samples of different salts are independent.

    The finaliser of SplitMix64 (Steele et al. 2014).
    """
    word = (salt + 1) * 0x9E37_79B9_7F4A_7C15 & _WORD
    word = (word ^ word >> 30) * 0xBF58_476D_1CE4_E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D0_49BB_1331_11EB & _WORD
    return np.uint64((word ^ word >> 31) | 1)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects by content the distinct chunks that are logged, and those that are compressed.

    All copies of a chunk have the same result, so duplicates stay duplicates.
    """

    sample: float
    salt: int

    def logged(self, low: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which chunks are logged, by the second word of their fingerprints."""
        return self._chosen(low, logged_share(self.sample))

    def measured(self, low: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which chunks are compressed; all of these are logged."""
        return self._chosen(low, self.sample)

    def _chosen(self, low: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
        if share >= 1:
            return np.ones(len(low), np.bool_)
        place = (low * _factor(self.salt)) >> np.uint64(32)
        chosen: NDArray[np.bool_] = place < np.uint64(round(share * (1 << 32)))
        return chosen


class WholeFiles:
    """Fingerprints and lengths of whole files, combined from those of their chunks.

    The fingerprint depends only on the content and the chunking. It is independent of batches, and
    of zeros being read or in a hole. A file of one chunk has the fingerprint of the chunk.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._digest = bytes.fromhex(state.get("digest", ""))
        self._zeros = int(state.get("zeros", 0))
        self._data_bytes = int(state.get("data_bytes", 0))
        self._zero_bytes = int(state.get("zero_bytes", 0))
        self._hole_bytes = int(state.get("hole_bytes", 0))
        self._rows: list[tuple[int, int, int, int, int, bytes]] = []
        self._single: list[dict[str, NDArray[Any]]] = []

    def state(self) -> dict[str, Any]:
        """Return the state of the unfinished file, for a checkpoint."""
        return {
            "digest": self._digest.hex(),
            "zeros": self._zeros,
            "data_bytes": self._data_bytes,
            "zero_bytes": self._zero_bytes,
            "hole_bytes": self._hole_bytes,
        }

    def drop(self) -> None:
        """Discard the unfinished file."""
        self._digest, self._zeros = b"", 0
        self._data_bytes = self._zero_bytes = self._hole_bytes = 0

    def add(
        self, fingerprints: Sequence[bytes], zero: Sequence[bool], lengths: Sequence[int]
    ) -> None:
        """Add the next chunks of the file."""
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

    def add_blank(self, length: int) -> None:
        """Count bytes of the file that are in holes, including bytes of later chunks."""
        self._data_bytes -= length
        self._zero_bytes -= length
        self._hole_bytes += length

    def add_hole(self, length: int) -> None:
        """Add chunks that are in a hole."""
        self._zeros += length
        self._data_bytes += length
        self._zero_bytes += length

    def _end_of_zeros(self) -> None:
        run = b"zeros" + struct.pack("<Q", self._zeros)
        self._digest = hashlib.blake2b(self._digest + run, digest_size=16).digest()
        self._zeros = 0

    def finish(self, dataset: int, file: int) -> None:
        """Add the row of a complete file."""
        if self._zeros:
            self._end_of_zeros()
        # Chunks that are only partly zeros can include bytes in holes.
        sizes = self._data_bytes, max(0, self._zero_bytes), self._hole_bytes
        self._rows.append((dataset, file, *sizes, self._digest))
        self.drop()

    def add_single(self, segments: SegmentRows, fingerprints: NDArray[np.uint64]) -> None:
        """Add the rows of complete files of one chunk each, without zeros."""
        nothing = np.zeros(len(segments), np.uint64)
        self._single.append(
            {
                "dataset": segments["dataset"],
                "file": segments["file"],
                "length_bytes": (segments["end"] - segments["start"]).astype(np.uint64),
                "zero_bytes": nothing,
                "hole_bytes": nothing,
                "fp_high": fingerprints[:, 0],
                "fp_low": fingerprints[:, 1],
            }
        )

    def take_rows(self) -> Columns | None:
        parts, self._single = self._single, []
        rows, self._rows = self._rows, []
        if rows:
            digests = np.frombuffer(b"".join(row[5] for row in rows), np.uint64).reshape(-1, 2)
            parts.append(
                {
                    "dataset": np.array([row[0] for row in rows], np.uint16),
                    "file": np.array([row[1] for row in rows], np.uint32),
                    "length_bytes": np.array([row[2] for row in rows], np.uint64),
                    "zero_bytes": np.array([row[3] for row in rows], np.uint64),
                    "hole_bytes": np.array([row[4] for row in rows], np.uint64),
                    "fp_high": digests[:, 0],
                    "fp_low": digests[:, 1],
                }
            )
        return _joined(parts)


def _joined(parts: list[dict[str, NDArray[Any]]]) -> Columns | None:
    if not parts:
        return None
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass(slots=True)
class Stream:
    """The state of one chunking. ``pending`` bytes of the file are not in a chunk yet."""

    name: str
    pending: int
    timing: Timing
    whole: WholeFiles | None = None
    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    rows: int = 0

    def take_rows(self) -> Columns | None:
        parts, self.parts = self.parts, []
        self.rows = 0
        return _joined(parts)


class Lane:
    """Chunkings of the same average, in sequence, so that they compress a chunk only once."""

    def __init__(
        self, streams: Sequence[Stream], selection: Selection, sizes: CompressedSizes | None
    ) -> None:
        self.streams = streams
        self._cutters = [cutter(stream.name) for stream in streams]
        self._selection = selection
        self._sizes = sizes

    def feed(self, batch: Batch) -> None:
        """Process the next batch."""
        data = memoryview(batch.buffer)
        segments = batch.segments
        for stream, cut in zip(self.streams, self._cutters, strict=True):
            self._feed(stream, cut, data, segments)

    def _feed(self, stream: Stream, cut: Cutter, data: memoryview, segments: SegmentRows) -> None:
        whole = segments[~segments["failed"]]
        if len(whole):
            begins = whole["start"] - np.where(whole["first"], 0, stream.pending)
            ends = whole["end"]
            ranges = Segments(begins, ends, whole["final"] & (whole["hole"] == 0))
            began = time.thread_time()
            cuts = cut.process(data, ranges)
            stream.timing.chunk_s += time.thread_time() - began
            stream.timing.chunk_bytes += int((ends - whole["start"]).sum())
            self._log_chunks(stream, data, whole, begins, cuts)
            self._after(stream, cut.max_bytes, Segment(*whole[-1].item()), int(begins[-1]), cuts)
        if len(whole) < len(segments):
            stream.pending = 0
            if stream.whole is not None:
                stream.whole.drop()

    def _after(
        self, stream: Stream, max_bytes: int, segment: Segment, start: int, cuts: Cuts
    ) -> None:
        """Process the rest of the last segment, and the hole after it."""
        last = int(cuts.ends[-1]) if cuts.counts[-1] else start
        stream.pending = segment.end - last
        if segment.hole:
            length = stream.pending + segment.hole
            inside = length if segment.final else length // max_bytes * max_bytes
            if inside:
                position = segment.position + segment.end - segment.start - stream.pending
                _append_hole(stream, segment, position, inside)
                if stream.whole is not None:
                    stream.whole.add_hole(inside)
            stream.pending = length - inside
        if segment.final and stream.whole is not None and segment.hole:
            stream.whole.finish(segment.dataset, segment.file)

    def _log_chunks(
        self,
        stream: Stream,
        data: memoryview,
        segments: SegmentRows,
        begins: NDArray[np.int64],
        cuts: Cuts,
    ) -> None:
        counts = cuts.counts
        ends = cuts.ends
        heads = np.cumsum(counts, dtype=np.int64) - counts
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        cut_at_all = counts > 0
        starts[heads[cut_at_all]] = begins[cut_at_all]
        lengths = ends - starts
        if stream.whole is not None:
            _whole_files(stream.whole, segments, cuts, lengths, heads)
        offsets = (starts + np.repeat(segments["position"] - segments["start"], counts)).astype(
            np.uint64
        )
        owner = np.repeat(np.arange(len(segments)), counts)
        keep, logged = self._choose(cuts, lengths, owner)
        if not len(keep):
            return
        zero = cuts.zero[keep]
        high = np.where(zero, np.uint64(0), cuts.fingerprints[keep, 0])
        low = np.where(zero, np.uint64(0), cuts.fingerprints[keep, 1])
        compressed = np.where(zero, np.uint32(0), logged)
        if self._sizes is not None:
            measured = ~zero & self._selection.measured(low)
            compressed[~zero & ~measured] = NOT_MEASURED
            compressed[measured] = self._sizes.of(
                data,
                starts[keep][measured],
                lengths[keep][measured],
                (high[measured], low[measured]),
                stream.timing,
            )
        of = segments[owner[keep]]
        _append(stream, of["dataset"], of["file"], offsets[keep], logged, compressed, high, low)

    def _choose(
        self, cuts: Cuts, lengths: NDArray[np.uint32], owner: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
        """Return indices and lengths of the rows to log; adjacent chunks of zeros are one row."""
        zero = cuts.zero
        if zero.any():
            head = np.ones(len(zero), np.bool_)
            head[1:] = ~(zero[1:] & zero[:-1] & (owner[1:] == owner[:-1]))
            keep = np.flatnonzero(head)
            lengths = np.add.reduceat(lengths, keep)
        else:
            keep = np.arange(len(zero))
        chosen = self._selection.logged(cuts.fingerprints[keep, 1]) | zero[keep]
        return keep[chosen], lengths[chosen]


def _whole_files(
    whole: WholeFiles,
    segments: SegmentRows,
    cuts: Cuts,
    lengths: NDArray[np.uint32],
    heads: NDArray[np.int64],
) -> None:
    """Add the chunks of each segment, which start at the index in ``heads``, to ``whole``."""
    unbroken = (segments["hole"] == 0) & (segments["blank"] == 0)
    single = segments["first"] & segments["final"] & unbroken & (cuts.counts == 1)
    single[single] = ~cuts.zero[heads[single]]
    whole.add_single(segments[single], cuts.fingerprints[heads[single], :2])
    for at in np.flatnonzero(~single).tolist():
        segment = Segment(*segments[at].item())
        some = slice(int(heads[at]), int(heads[at]) + int(cuts.counts[at]))
        words = np.ascontiguousarray(cuts.fingerprints[some, :2])
        whole.add(
            [row.tobytes() for row in words], cuts.zero[some].tolist(), lengths[some].tolist()
        )
        whole.add_blank(segment.blank + segment.hole)
        if segment.final and not segment.hole:
            whole.finish(segment.dataset, segment.file)


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


def _append_hole(stream: Stream, segment: Segment, position: int, length: int) -> None:
    _append(
        stream,
        np.array([segment.dataset], np.uint16),
        np.array([segment.file], np.uint32),
        np.array([position], np.uint64),
        np.array([length], np.uint64),
        np.array([0], np.uint32),
        np.array([0], np.uint64),
        np.array([HOLE_MARK], np.uint64),
    )
