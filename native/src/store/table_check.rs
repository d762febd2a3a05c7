//! A container against its table, in pieces: one thread reads them, several check what was read.
//!
//! The table says where records begin, so that no thread waits for another one's. Only what is
//! exactly as the table says is passed; `jobs/records.py` looks into everything else.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::fingerprint::Algorithm;
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use crate::format::table_entry::{EntryBytes, State, TableEntry, entries};
use crate::store::record_check::{self, Checked, Place, Status};
use crate::threads::read_ahead::{self, Source};

/// Read at once, and checked while it is in the processor's cache.
const PIECE_BYTES: u64 = 512 << 10;
/// No piece is begun after so long: the caller wants to stop, or to give way, at any time.
const CALL_TIME_MAX: Duration = Duration::from_millis(250);
/// A table that says more of a single record is not believed: none that we write is a MiB long.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A container, open for reading, and the entries of its table.
pub struct Container<'a> {
    pub data: RawFd,
    pub entries: &'a [&'a EntryBytes],
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
            let offset = TableEntry::unchecked(entry).offset;
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
        for (at, implied) in entries(&found.entries).map(TableEntry::unchecked).enumerate() {
            let next = found.next_ordinals[at] as usize;
            if found.ordinals[at] as usize != expected || next > piece.to.ordinal {
                return false;
            }
            let kind = RecordKind(found.kinds[at]);
            let is_intact = found.statuses[at] == Status::Intact as u8;
            let mut said = self.entries[expected..next].iter();
            if !said.all(|said| is_as_said(said, &implied, kind, is_intact, self.seed)) {
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
            let Some(said) = TableEntry::sound(entry, self.seed) else { return false };
            if !said.state.has_bytes() {
                return true;
            }
            if !read_at(self.data, said.offset, &mut header) {
                return false;
            }
            let Some(found) = RecordHeader::sound(&header, self.seed) else { return false };
            let implied = found.table_entry(said.offset);
            found.ordinal as usize == ordinal
                && is_as_said(entry, &implied, found.kind, true, self.seed)
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
    said: &EntryBytes,
    implied: &TableEntry,
    kind: RecordKind,
    is_intact: bool,
    seed: u64,
) -> bool {
    let Some(said) = TableEntry::sound(said, seed) else { return false };
    let is_same_place = said.fingerprint == implied.fingerprint
        && said.offset == implied.offset
        && said.stored_length == implied.stored_length
        && said.raw_length == implied.raw_length
        && said.codec == implied.codec;
    if !is_same_place {
        return false;
    }
    match said.state {
        State::LIVE => {
            let is_target_right = said.target.is_hole() || said.target == implied.target;
            is_intact && kind.has_bytes() && is_target_right
        }
        State::ORPHANED => is_intact && kind.has_bytes(),
        // Nobody reads them, so nobody asks what their bytes are.
        State::MERGED | State::TOMBSTONE => true,
        _ => false,
    }
}
