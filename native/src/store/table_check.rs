//! Compares a container with its table, portion by portion: some threads read, others check.
//!
//! The table tells where records begin, so that threads can check portions independently. Only
//! records that are exactly as the table says are passed; `jobs/check/record_check.py` handles all
//! others.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::fingerprint::Algorithm;
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use crate::format::table_entry::{EntryBytes, State, TableEntry, entries};
use crate::store::bases::Bases;
use crate::store::record_check::{self, Checked, Place, Status};
use crate::threads::read_ahead::{self, Buffer, Source};
use crate::threads::scoped;

/// Bytes that are read at once, and checked while they are in the processor's cache.
const PORTION_BYTES: u64 = 512 << 10;
/// No portion is begun after this time, so that the caller can stop or yield soon.
const CALL_TIME_MAX: Duration = Duration::from_millis(250);
/// Headers that a thread looks at before it takes the next ones.
const HEADERS_BATCH: usize = 64;
/// A longer record is taken for an error of the table: none that dedupd writes is a MiB long.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A container, open for reading, and the entries of its table.
pub struct Container<'a> {
    pub data: RawFd,
    pub entries: &'a [&'a EntryBytes],
    /// Of the checksums of record headers and table entries.
    pub seed: u64,
    /// Of the records that lean on others. Without it these do not pass.
    pub bases: Option<&'a Bases>,
}

/// A place between two records of a container.
#[derive(Clone, Copy)]
pub struct Position {
    pub ordinal: usize,
    pub offset: u64,
}

/// The end of the records that were as the table says, and their sums.
#[cfg_attr(feature = "python", pyo3::pyclass(frozen, get_all, module = "dedupd_core.native.store"))]
pub struct PassedRecords {
    pub ordinal: usize,
    pub offset: u64,
    pub records: u64,
    pub raw_bytes: u64,
    /// Including portions after the first that did not pass.
    pub read_bytes: u64,
}

struct Portion {
    from: Position,
    to: Position,
    is_read: bool,
    /// Records and raw bytes of the portion, where all of it is as the table says.
    sound: Option<(u64, u64)>,
}

impl Portion {
    fn new(from: Position, to: Position) -> Portion {
        Portion { from, to, is_read: false, sound: None }
    }
}

impl Container<'_> {
    /// Reads and checks the records from `from` to `end`: about `bytes` of them, or as many as the
    /// time allows.
    pub fn pass(
        &self,
        from: Position,
        end: u64,
        bytes: u64,
        algorithm: Algorithm,
        threads: usize,
    ) -> PassedRecords {
        let mut portions = self.plan(from, end, bytes);
        let begun = Instant::now();
        let tasks = portions
            .iter_mut()
            .take_while(|_| begun.elapsed() < CALL_TIME_MAX)
            .map(|portion| (portion.from.offset..portion.to.offset, portion));
        read_ahead::for_each(&Source::new(self.data), tasks, threads, |portion, data| {
            portion.is_read = true;
            portion.sound = data.and_then(|data| self.check(portion, data, algorithm));
        });
        let read = portions.iter().filter(|portion| portion.is_read);
        let read_bytes = read.map(|portion| portion.to.offset - portion.from.offset).sum();
        let Position { ordinal, offset } = from;
        let mut passed = PassedRecords { ordinal, offset, records: 0, raw_bytes: 0, read_bytes };
        for portion in &portions {
            let Some((records, raw_bytes)) = portion.sound else { break };
            (passed.ordinal, passed.offset) = (portion.to.ordinal, portion.to.offset);
            passed.records += records;
            passed.raw_bytes += raw_bytes;
        }
        passed
    }

    /// Consecutive portions, as far as the table's offsets ascend.
    fn plan(&self, from: Position, end: u64, bytes: u64) -> Vec<Portion> {
        let mut portions = Vec::new();
        let (mut start, mut last) = (from, from.offset);
        let rest = self.entries.iter().enumerate().skip(from.ordinal);
        let mut collected = None;
        for (ordinal, entry) in rest {
            let TableEntry { offset, state, .. } = TableEntry::unchecked(entry);
            if state == State::TOMBSTONE && offset == 0 {
                // The next record tells of it.
                collected.get_or_insert(ordinal);
                continue;
            }
            let ordinal = collected.take().unwrap_or(ordinal);
            // All ordinals of a row of tombstones have the same offset.
            if ordinal == from.ordinal || offset == last {
                continue;
            }
            if offset < last || offset >= end || offset - last > RECORD_BYTES_MAX {
                return portions;
            }
            last = offset;
            if offset - start.offset >= PORTION_BYTES {
                let to = Position { ordinal, offset };
                portions.push(Portion::new(start, to));
                start = to;
                if offset - from.offset >= bytes {
                    return portions;
                }
            }
        }
        if start.offset < end && end - last <= RECORD_BYTES_MAX {
            let to = Position { ordinal: self.entries.len(), offset: end };
            portions.push(Portion::new(start, to));
        }
        portions
    }

    fn check(&self, portion: &Portion, data: &[u8], algorithm: Algorithm) -> Option<(u64, u64)> {
        let (seed, offset, bases) = (self.seed, portion.from.offset, self.bases);
        let place = Place { seed, offset, algorithm, threads: 1, bases };
        let found = record_check::check(data, &place);
        let is_all = found.consumed == data.len() && self.agrees(&found, portion);
        is_all.then_some((found.kinds.len() as u64, found.raw_bytes))
    }

    /// Whether a portion holds the records of all of its ordinals, in order.
    fn agrees(&self, found: &Checked, portion: &Portion) -> bool {
        let mut expected = portion.from.ordinal;
        for (at, implied) in entries(&found.entries).map(TableEntry::unchecked).enumerate() {
            let next = found.next_ordinals[at] as usize;
            if found.ordinals[at] as usize != expected || next > portion.to.ordinal {
                return false;
            }
            let kind = RecordKind(found.kinds[at]);
            let status = found.statuses[at];
            let mut said = self.entries[expected..next].iter();
            if !said.all(|said| is_as_said(said, &implied, kind, status, self.seed)) {
                return false;
            }
            expected = next;
        }
        expected == portion.to.ordinal
    }

    /// Whether every record whose entry says that its bytes are there has the header that the entry
    /// implies; the first entry is that of the ordinal `first`. Payloads are not read; headers are
    /// those of the disk, where it can be read directly: by `threads` at once, each a wait for it.
    pub fn headers_agree(&self, first: usize, threads: usize) -> bool {
        let source = Source::new(self.data);
        let agree = AtomicBool::new(true);
        let batches = self.entries.chunks(HEADERS_BATCH).enumerate();
        scoped::for_each(batches, threads, |(batch, entries)| {
            let mut buffer = Buffer::default();
            let first = first + batch * HEADERS_BATCH;
            let is_so = |(at, entry): (usize, &&EntryBytes)| {
                agree.load(Ordering::Relaxed)
                    && self.header_agrees(&source, &mut buffer, first + at, entry)
            };
            if !entries.iter().enumerate().all(is_so) {
                agree.store(false, Ordering::Relaxed);
            }
        });
        agree.into_inner()
    }

    fn header_agrees(
        &self,
        source: &Source,
        buffer: &mut Buffer,
        ordinal: usize,
        entry: &EntryBytes,
    ) -> bool {
        let Some(said) = TableEntry::sound(entry, self.seed) else { return false };
        if !said.state.has_bytes() {
            return true;
        }
        let end = said.offset.checked_add(RECORD_HEADER_BYTES as u64);
        let Some(end) = end.filter(|&end| i64::try_from(end).is_ok()) else { return false };
        buffer.fill(source, &(said.offset..end));
        let header = buffer.data().and_then(<[u8]>::first_chunk);
        let found = header.and_then(|header| RecordHeader::sound(header, self.seed));
        let Some(found) = found else { return false };
        let implied = found.table_entry(said.offset);
        found.ordinal as usize == ordinal
            && is_as_said(entry, &implied, found.kind, Status::Intact as u8, self.seed)
    }
}

/// Whether an entry of the table is one that its record may have. `implied` is the entry that
/// follows from the record.
fn is_as_said(
    said: &EntryBytes,
    implied: &TableEntry,
    kind: RecordKind,
    status: u8,
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
    let is_intact = status == Status::Intact as u8;
    match said.state {
        State::LIVE => {
            let is_target_right = said.target.is_hole() || said.target == implied.target;
            is_intact && kind.has_bytes() && is_target_right
        }
        // What an orphan leans on may be gone.
        State::ORPHANED => (is_intact || status == Status::Base as u8) && kind.has_bytes(),
        // Their bytes are never read, and need not be intact.
        State::MERGED | State::TOMBSTONE => true,
        _ => false,
    }
}
