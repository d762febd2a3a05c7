//! Checks all records of a container, and reports every difference from its redirection table.
//!
//! The table has the start of each record, so that some threads read portions and others check them.
//! Then all records are compared in their order. A record in another place than in the table is
//! judged last: if no record lies in the place that the table names, the table is wrong. If one
//! does, a write went to the wrong place, and the bytes belong to no record.
//!
//! Users choose the bytes of payloads. So a record inside a damaged one counts only if the table
//! names it there, or has the fingerprint of its bytes. The same holds for records after a gap if
//! users can compute the container's seed.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::fingerprint::Algorithm;
use crate::format::record_header::{
    CONTAINER_BYTES_MAX, RECORD_HEADER_BYTES, RecordKind, record_bytes,
};
use crate::format::table_entry::{ENTRY_BYTES, State, TableEntry, entries};
use crate::store::bases::Bases;
use crate::store::header_scan::{HeaderScan, ScannedHeader};
use crate::store::record_check::{self, CheckOptions, Checked, CheckedRecord, Status};
use crate::system::reads::read_readable;
use crate::threads::read_ahead::{self, Source};

/// Bytes that a thread reads at once, and checks while they are in the processor's cache.
const PORTION_BYTES: u64 = 512 << 10;
/// Read at once where the table does not tell where records begin.
const WINDOW_BYTES: u64 = 8 << 20;
/// A longer record is taken for an error of the table: none that dedupd writes is a MiB long.
const RECORD_BYTES_MAX: u64 = 4 << 20;
/// No portion is started after this time, so that the caller can stop or yield soon.
const CALL_TIME_MAX: Duration = Duration::from_millis(250);
const HEADER_BYTES: u64 = RECORD_HEADER_BYTES as u64;
const RECORDS_MAX: u32 = CONTAINER_BYTES_MAX / RECORD_HEADER_BYTES as u32;

/// A difference between a container and its table; `dedupd_core/native/store.pyi` has the kinds.
pub struct Difference {
    pub what: &'static str,
    pub ordinal: u32,
    pub range: Range<u64>,
    /// The entry that the record implies.
    pub entry: Option<TableEntry>,
}

/// The part of a container that a check has passed.
#[derive(Clone, Default)]
#[cfg_attr(feature = "python", pyo3::pyclass(frozen, get_all, module = "dedupd_core.native.store"))]
pub struct Reached {
    pub offset: u64,
    /// The ordinal that comes next.
    pub ordinal: u32,
    /// Not all came in order, so that a later check cannot continue here.
    pub is_disordered: bool,
    pub records: u64,
    pub raw_bytes: u64,
    pub read_bytes: u64,
    /// Records in quarantine whose bytes are intact.
    pub released: Vec<u32>,
    /// Live records whose own bytes are intact, but whose base cannot be read.
    pub without_base: Vec<u32>,
}

/// A range of a container, and the records in it.
struct Portion {
    place: Range<u64>,
    is_read: bool,
    /// None if the range cannot be read.
    found: Option<Checked>,
}

impl Portion {
    fn of(place: Range<u64>) -> Portion {
        Portion { place, is_read: false, found: None }
    }
}

/// The check of one container, from its start or from a place between two records.
#[derive(Default)]
pub struct ContainerCheck {
    data: RawFd,
    table: Vec<u8>,
    pub seed: u64,
    /// Users can compute the seed.
    pub is_forgeable: bool,
    pub bases: Option<Arc<Bases>>,
    pub algorithm: Algorithm,
    pub threads: usize,
    /// The offset after the last record.
    end: u64,
    pub reached: Reached,
    /// The records of a container without a table, and the ordinals that each stands for.
    pub implied: Vec<(Range<u32>, TableEntry)>,
    pub differences: Vec<Difference>,
    /// By ordinal.
    seen: Vec<bool>,
    is_untrusted: bool,
    gaps: Vec<Range<u64>>,
    displaced: Vec<(CheckedRecord, u32)>,
    /// Ranges of records that are not intact, by offset: a stray record may lie in the midst of
    /// one, or claim to be longer than it is.
    damaged: BTreeMap<u64, u64>,
    damaged_ordinals: HashSet<u32>,
    /// Ranges whose owner is known.
    owned: Vec<Range<u64>>,
}

impl ContainerCheck {
    /// From the record `ordinal` at `offset` to `end`. The caller sets the other public fields.
    pub fn new(
        data: RawFd,
        table: Vec<u8>,
        seed: u64,
        (ordinal, offset): (u32, u64),
        end: u64,
    ) -> ContainerCheck {
        let reached = Reached { offset, ordinal, ..Reached::default() };
        let seen = vec![true; (ordinal as usize).min(table.len() / ENTRY_BYTES)];
        ContainerCheck { data, table, seed, end, reached, seen, ..ContainerCheck::default() }
    }

    /// Checks about `bytes_max` bytes, or as many as a quarter of a second allows.
    pub fn step(&mut self, bytes_max: u64) -> io::Result<()> {
        let mut portions: Vec<Portion> =
            self.plan(bytes_max).into_iter().map(Portion::of).collect();
        let threads = if portions.len() == 1 { self.threads } else { 1 };
        let (begun, is_complete) = (Instant::now(), AtomicBool::new(true));
        let is_due = || begun.elapsed() < CALL_TIME_MAX && is_complete.load(Ordering::Relaxed);
        let tasks = portions.iter_mut().take_while(|_| is_due());
        let tasks = tasks.map(|portion| (portion.place.clone(), portion));
        read_ahead::for_each(&Source::new(self.data), tasks, self.threads, |portion, data| {
            portion.is_read = true;
            let options = CheckOptions { threads, ..self.options(portion.place.start) };
            portion.found = data.map(|data| record_check::check(data, &options));
            let is_whole = portion.found.as_ref().is_some_and(|found| {
                found.consumed as u64 == portion.place.end - portion.place.start
            });
            is_complete.fetch_and(is_whole, Ordering::Relaxed);
        });
        for portion in portions.into_iter().take_while(|portion| portion.is_read) {
            let Portion { place, found, .. } = portion;
            self.reached.read_bytes += place.end - place.start;
            if place.start != self.reached.offset {
                continue; // the portion before it holds something else
            }
            let found = match found {
                Some(found) => found,
                None => self.read_at(place.start, place.end - place.start)?,
            };
            if found.consumed == 0 {
                self.search()?;
            } else {
                self.reached.offset += found.consumed as u64;
                self.take(&found);
            }
        }
        Ok(())
    }

    /// The next portions, between records as far as the table's offsets ascend; at least one.
    fn plan(&self, bytes: u64) -> Vec<Range<u64>> {
        let (from, end) = (self.reached.offset, self.end);
        let (mut portions, mut start, mut last) = (Vec::new(), from, from);
        let done = (self.reached.ordinal as usize * ENTRY_BYTES).min(self.table.len());
        for entry in entries(&self.table[done..]) {
            let TableEntry { offset, state, .. } = TableEntry::unchecked(entry);
            // The next record states that this one was collected. A row of tombstones has one offset.
            if (state == State::TOMBSTONE && offset == 0) || offset == last {
                continue;
            }
            if offset < last || offset >= end || offset - last > RECORD_BYTES_MAX {
                break;
            }
            last = offset;
            if offset - start >= PORTION_BYTES {
                portions.push(start..offset);
                start = offset;
                if offset - from >= bytes {
                    return portions;
                }
            }
        }
        if end - last <= RECORD_BYTES_MAX {
            portions.push(start..end);
        } else if portions.is_empty() {
            portions.push(from..end.min(from + WINDOW_BYTES));
        }
        portions
    }

    /// Passes what is no record of a portion: a gap, or a record that is longer than the portion.
    fn search(&mut self) -> io::Result<()> {
        let start = self.reached.offset;
        let next = HeaderScan::new(self.data, self.seed, start, self.end).next_record()?;
        self.reached.offset = next.as_ref().map_or(self.end, |(offset, _)| *offset);
        if let Some((_, header)) = next.filter(|_| self.reached.offset == start) {
            let length = record_bytes(header.stored_length.into());
            self.reached.offset += length;
            self.take(&self.read_at(start, length)?);
        } else {
            self.gaps.push(start..self.reached.offset);
            self.reached.is_disordered = true;
            self.is_untrusted = self.is_forgeable;
        }
        Ok(())
    }

    /// Reports what only the end of a container tells, after its last step.
    pub fn finish(&mut self) -> io::Result<()> {
        self.compare_inside()?;
        self.judge_displaced();
        let displaced = self.displaced.iter().map(|(_, ordinal)| self.said_place(*ordinal));
        self.owned.extend(displaced.collect::<Vec<_>>());
        let mut is_excused = false;
        for ordinal in 0..(self.table.len() / ENTRY_BYTES) as u32 {
            if self.seen.get(ordinal as usize) == Some(&true) {
                continue;
            }
            let entry = self.said(ordinal);
            if entry.as_ref().is_some_and(is_without_bytes) {
                is_excused = true;
                continue;
            }
            self.owned.push(self.said_place(ordinal));
            self.report(if entry.is_some() { "missing" } else { "unknown" }, ordinal, None);
        }
        if !is_excused {
            self.owned.sort_unstable_by_key(|range| (range.start, range.end));
            let outside = self.gaps.iter().flat_map(|gap| outside(gap.clone(), &self.owned));
            let gaps =
                outside.map(|range| Difference { what: "gap", ordinal: 0, range, entry: None });
            self.differences.extend(gaps);
        }
        Ok(())
    }

    fn options(&self, offset: u64) -> CheckOptions<'_> {
        let (seed, algorithm, threads) = (self.seed, self.algorithm, self.threads);
        CheckOptions { seed, offset, algorithm, threads, bases: self.bases.as_deref() }
    }

    /// What the table says of a record.
    fn said(&self, ordinal: u32) -> Option<TableEntry> {
        let bytes = self.table.get(ordinal as usize * ENTRY_BYTES..)?.first_chunk()?;
        TableEntry::sound(bytes, self.seed).filter(|entry| entry.state.is_known())
    }

    /// The bytes that a record takes by its entry; none without an entry.
    fn said_place(&self, ordinal: u32) -> Range<u64> {
        self.said(ordinal).map_or(0..0, |said| {
            said.offset..said.offset.saturating_add(record_bytes(said.stored_length.into()))
        })
    }

    fn report(&mut self, what: &'static str, ordinal: u32, entry: Option<TableEntry>) {
        self.differences.push(Difference { what, ordinal, range: 0..0, entry });
    }

    fn see(&mut self, ordinal: u32) {
        let at = ordinal as usize;
        if at < self.table.len() / ENTRY_BYTES {
            self.seen.resize(self.seen.len().max(at + 1), false);
            self.seen[at] = true;
        }
    }

    /// The records in a range, with zeros for blocks that cannot be read.
    fn read_at(&self, offset: u64, length: u64) -> io::Result<Checked> {
        let mut bytes = vec![0; length as usize];
        let length = read_readable(self.data, offset, &mut bytes)?;
        Ok(record_check::check(&bytes[..length], &self.options(offset)))
    }

    fn take(&mut self, found: &Checked) {
        self.reached.records += found.records.len() as u64;
        self.reached.raw_bytes += found.raw_bytes();
        for record in &found.records {
            self.follow(record);
            ordinals(record).for_each(|ordinal| self.compare(record, ordinal, !self.is_untrusted));
            if self.table.is_empty() {
                self.implied.push((ordinals(record), record.entry));
            }
        }
    }

    /// Compares the records that begin within the bytes of damaged ones, these included.
    fn compare_inside(&mut self) -> io::Result<()> {
        let (mut searched, mut read) = (HashSet::new(), HashSet::new());
        let mut is_new = |(start, _): &(&u64, &u64)| searched.insert(**start);
        while let Some((start, stop)) = self.damaged.iter().find(&mut is_new) {
            let (inside, stop) = (start + HEADER_BYTES, *stop);
            let mut scan = HeaderScan::new(self.data, self.seed, inside, self.end);
            while let Some(found) = scan.next_part()? {
                let (offset, header) = match found {
                    ScannedHeader::Gap(gap) if gap.start < stop => continue,
                    ScannedHeader::Record { offset, header, .. } if offset < stop => {
                        (offset, header)
                    }
                    _ => break,
                };
                if !read.insert(offset) {
                    continue;
                }
                let length = record_bytes(header.stored_length.into());
                for record in &self.read_at(offset, length)?.records {
                    for ordinal in ordinals(record) {
                        self.owned.push(self.said_place(ordinal));
                        self.compare(record, ordinal, false);
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes the ordinal of a record, and reports it if the table cannot explain it.
    fn follow(&mut self, record: &CheckedRecord) {
        let (first, expected) = (record.ordinal, self.reached.ordinal);
        let is_gone = |ordinal| self.said(ordinal).as_ref().is_some_and(is_without_bytes);
        let is_excused = expected < first && (expected..first).all(is_gone);
        if first != expected && !is_excused {
            self.reached.is_disordered = true;
            if self.said(first).is_none() {
                let range = record.entry.offset..expected.into();
                let (what, entry) = ("order", None);
                self.differences.push(Difference { what, ordinal: first, range, entry });
            }
        }
        self.reached.ordinal = ordinals(record).end;
    }

    fn compare(&mut self, record: &CheckedRecord, ordinal: u32, is_trusted: bool) {
        let (said, place) = (self.said(ordinal), record.place());
        if !is_sound(record) {
            self.damaged.insert(place.start, place.end);
            self.reached.is_disordered = true;
        }
        if !is_trusted && !is_proved(record, said.as_ref()) {
            self.add_gap(place.start..place.start + HEADER_BYTES);
        } else if said.is_some_and(|said| said.offset != place.start) {
            self.displaced.push((record.clone(), ordinal));
            self.reached.is_disordered = true;
        } else {
            self.see(ordinal);
            if !is_sound(record) {
                self.damaged_ordinals.insert(ordinal);
                self.owned.push(place);
            }
            self.judge(record, ordinal);
        }
    }

    fn judge(&mut self, record: &CheckedRecord, ordinal: u32) {
        let said = self.said(ordinal);
        let is_in_table = (ordinal as usize) < self.table.len() / ENTRY_BYTES;
        if is_in_table && !said.is_some_and(|said| agrees(&said, record)) {
            self.report("entry", ordinal, Some(record.entry));
        }
        let said = said.filter(|said| !is_of_another(said, record));
        if let Some(said) = said.filter(is_without_bytes) {
            if said.state == State::QUARANTINED && record.status == Status::Intact {
                self.reached.released.push(ordinal);
            }
            return;
        }
        match record.status {
            Status::Intact => {}
            Status::Base if said.is_some_and(|said| said.state == State::LIVE) => {
                self.reached.without_base.push(ordinal);
            }
            Status::Base => {}
            Status::Payload => self.report("payload", ordinal, Some(record.entry)),
            Status::Fingerprint => self.report("fingerprint", ordinal, Some(record.entry)),
        }
    }

    /// Judges the records that lie elsewhere than the table says.
    fn judge_displaced(&mut self) {
        let displaced = std::mem::take(&mut self.displaced);
        for (record, ordinal) in &displaced {
            let is_damaged = self.damaged_ordinals.contains(ordinal);
            let is_seen = self.seen.get(*ordinal as usize) == Some(&true);
            let is_gone = self.said(*ordinal).is_some_and(|said| {
                matches!(said.state, State::MERGED | State::TOMBSTONE)
                    && !is_of_another(&said, record)
            });
            let place = record.place();
            if !is_sound(record) {
                // Its length may be false: only its header certainly lies here.
                self.add_gap(place.start..place.start + HEADER_BYTES);
            } else if is_gone || (is_seen && !is_damaged) {
                self.add_gap(place);
            } else {
                if self.damaged_ordinals.remove(ordinal) {
                    self.reached.released.push(*ordinal);
                }
                self.see(*ordinal);
                self.judge(record, *ordinal);
            }
        }
        self.displaced = displaced;
    }

    fn add_gap(&mut self, gap: Range<u64>) {
        if self.gaps.last() != Some(&gap) {
            self.gaps.push(gap);
        }
    }
}

/// The ordinals that a record stands for: its own, or those of a run of tombstones.
fn ordinals(record: &CheckedRecord) -> Range<u32> {
    let first = record.ordinal;
    first..record.next_ordinal.min(RECORDS_MAX.max(first.saturating_add(1)))
}

/// Returns whether the record's own bytes are intact, even if its base is not.
fn is_sound(record: &CheckedRecord) -> bool {
    matches!(record.status, Status::Intact | Status::Base)
}

/// Returns whether the bytes of a record with this entry are not needed, or known to be damaged.
fn is_without_bytes(said: &TableEntry) -> bool {
    matches!(said.state, State::QUARANTINED | State::MERGED | State::TOMBSTONE)
}

/// Returns whether an entry of a merged or collected record is that of another record.
fn is_of_another(said: &TableEntry, record: &CheckedRecord) -> bool {
    matches!(said.state, State::MERGED | State::TOMBSTONE)
        && said.fingerprint != record.entry.fingerprint
}

/// Returns whether a record can have this entry.
fn agrees(said: &TableEntry, record: &CheckedRecord) -> bool {
    let is_copy = said.state == State::LIVE && record.kind == RecordKind::COPY;
    let is_elsewhere = !said.target.is_hole() && said.target != record.entry.target;
    said.describes(&record.entry) && !(is_copy && is_elsewhere)
}

/// Whether a record that may be a user's bytes is one of the store.
fn is_proved(record: &CheckedRecord, said: Option<&TableEntry>) -> bool {
    let has_bytes = matches!(record.kind, RecordKind::DATA | RecordKind::COPY);
    said.is_some_and(|said| match said.offset == record.entry.offset {
        true => said.describes(&record.entry),
        false => {
            let is_same = said.fingerprint == record.entry.fingerprint;
            record.status == Status::Intact && has_bytes && is_same
        }
    })
}

/// The parts of a range that are in none of `owned`, which ascend by their starts.
fn outside(range: Range<u64>, owned: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut start, mut found) = (range.start, Vec::new());
    for one in owned.iter().filter(|one| one.start < range.end) {
        if start < one.start {
            found.push(start..one.start);
        }
        start = start.max(one.end);
    }
    if start < range.end {
        found.push(start..range.end);
    }
    found
}
