//! Payloads that nothing needs and whose blocks are still there.

use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Mutex;

use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{EntryBytes, State, TableEntry};
use crate::system::extents::has_data;
use crate::system::reads::fill_at;
use crate::threads::lock::locked;
use crate::threads::scoped;

/// Entries that a thread takes at once.
const BATCH: usize = 64;

/// The whole blocks inside the payload of a dead record.
pub type DeadPayload = (u32, Range<u64>);

/// A container, open for reading, and the entries of its table.
pub struct Container<'a> {
    pub data: RawFd,
    pub entries: &'a [&'a EntryBytes],
    /// Of the checksums of record headers and table entries.
    pub seed: u64,
    /// Of the file system.
    pub block_bytes: u64,
    /// All records were seen where their entries say, and nothing was written here since.
    pub is_seen: bool,
}

impl Container<'_> {
    /// The payloads of orphaned, merged and collected records that have data in whole blocks of
    /// their own, by ordinal. Left out is one whose record is not what its entry says: an entry is
    /// only a guide, and the bytes at the place that it names may be those of another record. So is
    /// one where the entry of a needed record leads.
    pub fn dead_payloads(&self, threads: usize) -> Result<Vec<DeadPayload>> {
        let needed = Needed::of(self.entries, self.seed);
        let batches = self.entries.chunks(BATCH).enumerate();
        let found = Mutex::new((Vec::new(), None::<Error>));
        scoped::for_each(batches, threads, |(batch, entries)| {
            let first = batch * BATCH;
            let payloads: Result<Vec<DeadPayload>> = entries
                .iter()
                .enumerate()
                .filter_map(|(at, entry)| {
                    self.dead((first + at) as u32, entry, &needed).transpose()
                })
                .collect();
            let mut found = locked(&found);
            match payloads {
                Ok(payloads) => found.0.extend(payloads),
                Err(error) => found.1 = Some(error),
            }
        });
        let (mut payloads, error) = found.into_inner().unwrap_or_else(|broken| broken.into_inner());
        if let Some(error) = error {
            return Err(error);
        }
        payloads.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        Ok(payloads)
    }

    fn dead(
        &self,
        ordinal: u32,
        entry: &EntryBytes,
        needed: &Needed,
    ) -> Result<Option<DeadPayload>> {
        let Some(entry) = TableEntry::sound(entry, self.seed) else { return Ok(None) };
        if !matches!(entry.state, State::ORPHANED | State::MERGED | State::TOMBSTONE) {
            return Ok(None);
        }
        let blocks = whole_blocks(&entry, self.block_bytes);
        if blocks.is_empty() || needed.meets(&blocks) || !has_data(self.data, &blocks)? {
            return Ok(None);
        }
        // A tombstone was none of those that are seen.
        if self.is_seen && entry.state == State::ORPHANED {
            return Ok(Some((ordinal, blocks)));
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        let is_read = fill_at(self.data, entry.offset, &mut header).is_ok();
        let found = RecordHeader::sound(&header, self.seed).filter(|_| is_read);
        let is_own = |found: RecordHeader| {
            found.ordinal == ordinal
                && found.stored_length == entry.stored_length
                && found.kind.has_bytes()
        };
        Ok(found.is_some_and(is_own).then_some((ordinal, blocks)))
    }
}

/// The places to which the entries of needed records lead, ascending, each with the end of all up to
/// it: scrub may have had an entry lead to bytes that went astray into the payload of another one.
struct Needed(Vec<(u64, u64)>);

impl Needed {
    fn of(entries: &[&EntryBytes], seed: u64) -> Needed {
        let mut places: Vec<(u64, u64)> = entries
            .iter()
            .filter_map(|entry| TableEntry::sound(entry, seed))
            .filter(|entry| matches!(entry.state, State::LIVE | State::QUARANTINED))
            .map(|entry| {
                let length = RECORD_HEADER_BYTES as u64 + u64::from(entry.stored_length);
                (entry.offset, entry.offset.saturating_add(length))
            })
            .collect();
        places.sort_unstable();
        let mut last = 0;
        for (_, end) in &mut places {
            last = last.max(*end);
            *end = last;
        }
        Needed(places)
    }

    fn meets(&self, blocks: &Range<u64>) -> bool {
        let before = self.0.partition_point(|(start, _)| *start < blocks.end);
        before.checked_sub(1).is_some_and(|last| self.0[last].1 > blocks.start)
    }
}

fn whole_blocks(entry: &TableEntry, block_bytes: u64) -> Range<u64> {
    let start = entry.offset.saturating_add(RECORD_HEADER_BYTES as u64);
    let end = start.saturating_add(entry.stored_length.into());
    // Nothing is rounded up beyond what a file can have: such a range is empty.
    start.checked_next_multiple_of(block_bytes).unwrap_or(u64::MAX)..end / block_bytes * block_bytes
}
