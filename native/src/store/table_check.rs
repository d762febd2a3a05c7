//! A container against its table, in pieces: one thread reads them, several check what was read.
//!
//! The table says where records begin, so that no thread waits for another one's. Only what is
//! exactly as the table says is passed; `jobs/records.py` looks into everything else.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::fingerprint::Algorithm;
use crate::format::bytes::{u32_at, u64_at};
use crate::format::record_header::RECORD_HEADER_BYTES;
use crate::format::record_header::{KIND_FORWARD, KIND_TOMBSTONE};
use crate::format::table_entry;
use crate::format::table_entry::{
    ENTRY_BYTES, STATE_AT, STATE_LIVE, STATE_MERGED, STATE_ORPHANED, STATE_TOMBSTONE, entry_body,
};
use crate::store::record_check::{self, Checked, Place, Status};
use crate::threads::read_ahead::{self, Source};

/// Read at once, and checked while it is in the processor's cache.
const PIECE_BYTES: u64 = 512 << 10;
/// No piece is begun after so long: the caller wants to stop, or to give way, at any time.
const CALL_TIME_MAX: Duration = Duration::from_millis(250);
/// A table that says more of a single record is not believed: none that we write is a MiB long.
const RECORD_BYTES_MAX: u64 = 4 << 20;

const OFFSET_AT: usize = 32;
const TARGET_AT: usize = 40;
const LENGTHS: std::ops::Range<usize> = 48..56;
const CODEC_AT: usize = 61;

/// A container, open for reading, and the entries of its table.
pub struct Container<'a> {
    pub data: RawFd,
    pub entries: &'a [&'a [u8; ENTRY_BYTES]],
    /// Of the checksums of record headers and table entries.
    pub seed: u64,
}

/// A place between two records of a container.
#[derive(Clone, Copy)]
pub struct Position {
    pub ordinal: usize,
    pub offset: u64,
}

/// How far everything was as the table says, and what that was.
pub struct Passed {
    pub to: Position,
    pub records: u64,
    pub raw_bytes: u64,
    /// Including what was read in vain.
    pub read_bytes: u64,
}

struct Piece {
    from: Position,
    to: Position,
    is_read: bool,
    /// Records and raw bytes, where all of it is as the table says.
    sound: Option<(u64, u64)>,
}

impl Piece {
    fn new(from: Position, to: Position) -> Piece {
        Piece { from, to, is_read: false, sound: None }
    }
}

impl Container<'_> {
    /// Reads and checks what the table says lies behind `from` and before `end`, `bytes` of it, or
    /// as much as there is time for.
    pub fn pass(
        &self,
        from: Position,
        end: u64,
        bytes: u64,
        algorithm: Algorithm,
        threads: usize,
    ) -> Passed {
        let mut pieces = self.plan(from, end, bytes);
        let begun = Instant::now();
        let tasks = pieces
            .iter_mut()
            .take_while(|_| begun.elapsed() < CALL_TIME_MAX)
            .map(|piece| (piece.from.offset..piece.to.offset, piece));
        read_ahead::for_each(&Source::new(self.data), tasks, threads, |piece, data| {
            piece.is_read = true;
            piece.sound = data.and_then(|data| self.check(piece, data, algorithm));
        });
        let read = pieces.iter().filter(|piece| piece.is_read);
        let read_bytes = read.map(|piece| piece.to.offset - piece.from.offset).sum();
        let mut passed = Passed { to: from, records: 0, raw_bytes: 0, read_bytes };
        for piece in &pieces {
            let Some((records, raw_bytes)) = piece.sound else { break };
            passed.to = piece.to;
            passed.records += records;
            passed.raw_bytes += raw_bytes;
        }
        passed
    }

    /// Pieces one after the other, as far as the table's offsets ascend.
    fn plan(&self, from: Position, end: u64, bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut begin, mut last) = (from, from.offset);
        let rest = self.entries.iter().enumerate().skip(from.ordinal);
        for (ordinal, entry) in rest {
            let offset = u64_at(&entry[..], OFFSET_AT);
            // Ordinals of a row of tombstones lie at one place.
            if ordinal == from.ordinal || offset == last {
                continue;
            }
            if offset < last || offset >= end || offset - last > RECORD_BYTES_MAX {
                return pieces;
            }
            last = offset;
            if offset - begin.offset >= PIECE_BYTES {
                let to = Position { ordinal, offset };
                pieces.push(Piece::new(begin, to));
                begin = to;
                if offset - from.offset >= bytes {
                    return pieces;
                }
            }
        }
        if begin.offset < end && end - last <= RECORD_BYTES_MAX {
            let to = Position { ordinal: self.entries.len(), offset: end };
            pieces.push(Piece::new(begin, to));
        }
        pieces
    }

    fn check(&self, piece: &Piece, data: &[u8], algorithm: Algorithm) -> Option<(u64, u64)> {
        let place = Place { seed: self.seed, offset: piece.from.offset, algorithm, threads: 1 };
        let found = record_check::check(data, &place);
        let is_all = found.consumed == data.len() && self.agrees(&found, piece);
        is_all.then_some((found.kinds.len() as u64, found.raw_bytes))
    }

    /// Whether the records of a piece are those of its ordinals, all of them, and all in order.
    fn agrees(&self, found: &Checked, piece: &Piece) -> bool {
        let mut expected = piece.from.ordinal;
        for (at, implied) in found.entries.chunks_exact(ENTRY_BYTES).enumerate() {
            let next = found.next_ordinals[at] as usize;
            if found.ordinals[at] as usize != expected || next > piece.to.ordinal {
                return false;
            }
            let (kind, is_intact) = (found.kinds[at], found.statuses[at] == Status::Intact as u8);
            let mut said = self.entries[expected..next].iter();
            if !said.all(|said| is_as_said(said, implied, kind, is_intact, self.seed)) {
                return false;
            }
            expected = next;
        }
        expected == piece.to.ordinal
    }

    /// Whether every record of which the bytes are said to be there has the header that it must
    /// have; payloads are not read.
    pub fn headers_agree(&self) -> bool {
        let mut header = [0; RECORD_HEADER_BYTES];
        self.entries.iter().enumerate().all(|(ordinal, entry)| {
            let Some(said) = entry_body(entry, self.seed) else { return false };
            if !matches!(said[STATE_AT], STATE_LIVE | STATE_ORPHANED) {
                return true;
            }
            if !read_at(self.data, u64_at(said, OFFSET_AT), &mut header) {
                return false;
            }
            let Some(implied) = table_entry::entry_of(&header, u64_at(said, OFFSET_AT), self.seed)
            else {
                return false;
            };
            u32_at(&header, 4) as usize == ordinal
                && is_as_said(entry, &implied, header[8], true, self.seed)
        })
    }
}

fn read_at(fd: RawFd, offset: u64, out: &mut [u8]) -> bool {
    let Ok(offset) = libc::off_t::try_from(offset) else { return false };
    // SAFETY: `out` is writable for its length.
    let count = unsafe { libc::pread(fd, out.as_mut_ptr().cast(), out.len(), offset) };
    usize::try_from(count) == Ok(out.len())
}

/// Whether an entry is one that its record may have. `implied` is what the record says.
fn is_as_said(
    said: &[u8; ENTRY_BYTES],
    implied: &[u8],
    kind: u8,
    is_intact: bool,
    seed: u64,
) -> bool {
    let is_same_place = said[..TARGET_AT] == implied[..TARGET_AT]
        && said[LENGTHS] == implied[LENGTHS]
        && said[CODEC_AT] == implied[CODEC_AT];
    if !is_same_place || entry_body(said, seed).is_none() {
        return false;
    }
    let (target, repeated) = (u64_at(said, TARGET_AT), u64_at(implied, TARGET_AT));
    let has_bytes = !matches!(kind, KIND_FORWARD | KIND_TOMBSTONE);
    match said[STATE_AT] {
        STATE_LIVE => is_intact && has_bytes && (target == 0 || target == repeated),
        STATE_ORPHANED => is_intact && has_bytes,
        // Nobody reads them, so nobody asks what their bytes are.
        STATE_MERGED | STATE_TOMBSTONE => true,
        _ => false,
    }
}
