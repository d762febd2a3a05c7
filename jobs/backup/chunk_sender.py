"""Sends each chunk of a stream once, or only its fingerprint if the receiver has it; numbers it."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice, takewhile

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format import stream
from dedupd_core.format.ids import container_of
from dedupd_core.format.stream import FINGERPRINT_BYTES, Frame, FrameKind
from dedupd_core.store.encoded_records import encoded_payload
from dedupd_core.stub.content import checked_record, described_record
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.backup.frame_io import FrameReader, FrameWriter
from jobs.backup.rows import Key, Row
from jobs.backup.sent_points import CutNumbers, Numbers, Point, decode_rows, encode_row

PORTION_BYTES = 2 * MIB
"""Bytes of uncompressed chunks that one native call turns into frames."""

MADE_AT_ONCE = 16
"""Chunks that the store does not have, compressed at once."""


class ChunkSender:
    """Sends chunks of a volume. ``sent`` counts the sent chunks, ``known`` those that the receiver
    already has. ``pool`` compresses chunks that the store does not have in the form to be sent."""

    def __init__(
        self,
        volume: Volume,
        out: FrameWriter,
        back: FrameReader | None,
        pool: ThreadPoolExecutor,
        since: Point,
        ahead_bytes: int,
    ) -> None:
        """``since``: what the receiver has. ``back``: the receiver's answers, if it negotiates.
        ``ahead_bytes``: limit for reading ahead in the store."""
        self._volume = volume
        self._out = out
        self._back = back
        self._pool = pool
        self._since = since
        self._since_cut = since.cut_fingerprints()
        self._threads = cores()
        self._room = volume.room()
        self._ahead = native.store.BlocksAhead(ahead_bytes)
        self._numbers = Numbers()
        self._cut_numbers = CutNumbers()
        self._log_fd: int | None = None
        self._log_at = 0
        self.count = 0
        self.sent = 0
        self.known = 0

    def take_numbers(self, rows: bytes) -> None:
        """Number the chunks of an earlier stream that the receiver has, in the same order."""
        for record_id, fingerprint in decode_rows(rows):
            self._give_number(record_id, fingerprint)

    def log_to(self, fd: int, log_bytes: int) -> None:
        """Log the numbers to ``fd`` from now on, after its first ``log_bytes``."""
        self._log_fd, self._log_at = fd, log_bytes

    def number(self, row: Row) -> int:
        """Return the number of a chunk, counted from 1; 0 if the receiver does not know it yet."""
        if not row.fingerprint:
            return self._numbers.get(row.chunk)
        return self._cut_numbers.get(row.fingerprint)

    def send(self, rows: Iterable[Row]) -> dict[Key, bytes]:
        """Make all chunks of these rows known to the receiver; return their fingerprints.

        Raises Damaged, OSError, PipeClosed.
        """
        real = {row.key: row for row in rows if not row.is_hole}
        new = {key: row for key, row in real.items() if not self.number(row)}
        theirs = {key for key, row in new.items() if self._is_theirs(row)}
        found: dict[Key, bytes] = {}
        if self._back is not None:
            self._find(real.values(), found)
            asked = [key for key in new if key not in theirs]
            theirs |= self._offered(self._back, asked, found) if asked else set()
        for is_theirs, group in groupby(new.values(), lambda row: row.key in theirs):
            if is_theirs:
                self._put_known(list(group), found)
            else:
                self._put_ours(list(group), found)
        self._find(real.values(), found)
        return found

    # --- numbers ------------------------------------------------------------------------------

    def _give_number(self, record_id: int, fingerprint: bytes) -> None:
        self.count += 1
        if record_id:
            self._numbers.put(record_id, self.count)
        else:
            self._cut_numbers.put(fingerprint, self.count)

    def _note(self, rows: list[Row], found: dict[Key, bytes]) -> None:
        """Number chunks. The numbers are logged before a chunk is sent: a receiver can only report
        chunks that are in the log."""
        log = bytearray()
        for row in rows:
            record_id = 0 if row.fingerprint else row.chunk
            self._give_number(record_id, row.fingerprint)
            log += encode_row(record_id, found[row.key])
        if self._log_fd is not None:
            self._room.require(len(log), "the log of sent chunks")
            self._volume.disk.write_at(self._log_fd, [log], self._log_at)
            self._log_at += len(log)

    def _find(self, rows: Iterable[Row], found: dict[Key, bytes]) -> None:
        """Look up the missing fingerprints. Raises DamagedContainer, including for a record that
        does not match the recipe."""
        records = self._volume.chunk_records
        for row in rows:
            if row.key not in found:
                found[row.key] = row.fingerprint or described_record(records, row.span).fingerprint

    # --- what the receiver has ----------------------------------------------------------------

    def _is_theirs(self, row: Row) -> bool:
        if not row.fingerprint:
            return row.chunk in self._since.ids
        return row.fingerprint in self._since_cut

    def _offered(self, back: FrameReader, keys: list[Key], found: dict[Key, bytes]) -> set[Key]:
        """Offer chunks to the receiver; return those that it reports to have."""
        data = b"".join(found[key] for key in keys)
        self._out.write(Frame(FrameKind.OFFER, 0, len(data), data))
        self._out.flush()
        answer = back.read()
        if answer.kind is not FrameKind.ANSWER or len(answer.payload) != len(keys):
            raise Damaged("the receiver: not an answer to the offer")
        return {key for key, has in zip(keys, answer.payload, strict=True) if has}

    def _put_known(self, rows: list[Row], found: dict[Key, bytes]) -> None:
        self._find(rows, found)
        self._note(rows, found)
        data = stream.encode_known([(found[row.key], row.length) for row in rows])
        self._out.write(Frame(FrameKind.KNOWN, 0, len(data), data))
        self.known += len(rows)

    # --- what it lacks ------------------------------------------------------------------------

    def _put_ours(self, rows: list[Row], found: dict[Key, bytes]) -> None:
        """Send chunks with the payloads that the store has; native code makes their frames."""
        self.sent += len(rows)
        while rows:
            portion = list(_portion(rows))
            count = self._put_stored(portion, found) if portion else 0
            rows = rows[count:]
            if count < len(portion):
                made = rows[:1]  # it cannot be read
            else:
                made = list(islice(takewhile(lambda row: not row.chunk, rows), MADE_AT_ONCE))
            if made:
                self._put_made(made, found)
                rows = rows[len(made) :]

    def _put_stored(self, rows: list[Row], found: dict[Key, bytes]) -> int:
        """Send the first rows, up to a chunk that native code cannot read. Returns their number."""
        wanted = [(row.chunk, row.length, row.check) for row in rows]
        frame_chunks = self._volume.chunk_records.frame_chunks

        def make(sequence: int, seed: int) -> tuple[bytes, int]:
            frames, joined, _ = frame_chunks(wanted, sequence, seed, self._ahead, self._threads)
            count = len(joined) // FINGERPRINT_BYTES
            for at, row in enumerate(rows[:count]):
                found[row.key] = joined[at * FINGERPRINT_BYTES : (at + 1) * FINGERPRINT_BYTES]
            if count:
                self._note(rows[:count], found)
            return frames, count

        return self._out.write_frames(make)

    def _put_made(self, rows: list[Row], found: dict[Key, bytes]) -> None:
        """Send chunks that the store does not have, or that only a repair can read."""
        frames = list(self._pool.map(self._frame, rows))
        for row, frame in zip(rows, frames, strict=True):
            found[row.key] = frame.fingerprint
        self._note(rows, found)
        for frame in frames:
            self._out.write(frame)

    def _frame(self, row: Row) -> Frame:
        fingerprint, raw = row.fingerprint, row.raw
        if row.chunk:
            record, raw = checked_record(self._volume.chunk_records, row.span)
            fingerprint = record.fingerprint
        codec, payload, _ = encoded_payload(raw)
        return Frame(FrameKind.CHUNK, codec, len(raw), fingerprint + payload)


def _portion(rows: list[Row]) -> Iterator[Row]:
    """Yield the first rows that one native call can process: chunks of one container."""
    size, number = 0, container_of(rows[0].chunk)
    for row in rows:
        if not row.chunk or container_of(row.chunk) != number or size >= PORTION_BYTES:
            return
        size += row.length
        yield row
