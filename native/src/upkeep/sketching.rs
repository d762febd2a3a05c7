//! The chunks of a container as a refine run looks at them first: their sketches, and samples.

use std::os::fd::RawFd;

use super::sketch::{Sketch, sketch};
use crate::codec::delta::RAW_BYTES_MAX;
use crate::codec::encode::check;
use crate::format::codec::Codec;
use crate::format::ids::{Checksum, RecordId};
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{EntryBytes, State, TableEntry};
use crate::store::bases::Bases;
use crate::store::record_reader::{BaseBytes, CacheUse, decode_with};
use crate::system::reads::fill_at;
use crate::threads::pool;

/// Read at once.
const WINDOW_BYTES: u64 = 8 << 20;

/// A container that is looked at.
#[derive(Clone, Copy)]
pub struct SketchedContainer<'a> {
    pub data: RawFd,
    /// Of the checksums of record headers and table entries.
    pub seed: u64,
    pub bases: &'a Bases,
}

impl SketchedContainer<'_> {
    /// The sketches of the records of a part of a table, which begins with the ordinal `first`.
    /// Those that are not live, not intact, or the difference to others, have none. Read past the
    /// page cache.
    pub fn sketches(&self, entries: &[&EntryBytes], first: u32, threads: usize) -> Vec<Sketch> {
        let mut sketches = vec![Sketch::default(); entries.len()];
        let wanted: Vec<(usize, TableEntry)> = entries
            .iter()
            .enumerate()
            .filter_map(|(at, bytes)| Some((at, self.wanted(bytes)?)))
            .collect();
        let mut rest = &wanted[..];
        let mut buffer = Vec::new();
        while let Some((_, head)) = rest.first() {
            let start = head.offset;
            let is_near =
                |entry: &TableEntry| end_of(entry).is_some_and(|end| end - start <= WINDOW_BYTES);
            let later = |(_, entry): &&(usize, TableEntry)| entry.offset >= start && is_near(entry);
            let count = rest.iter().take_while(later).count().max(1);
            let (window, after) = rest.split_at(count);
            rest = after;
            let end = window.last().and_then(|(_, last)| end_of(last)).unwrap_or(start);
            let Some(length) = end.checked_sub(start).filter(|&length| length <= 2 * WINDOW_BYTES)
            else {
                continue;
            };
            buffer.resize(length as usize, 0);
            if fill_at(self.data, start, &mut buffer).is_err() {
                continue;
            }
            let buffer = &buffer[..];
            let found = pool::map(window.len(), threads.saturating_sub(1), |number| {
                let (at, entry) = &window[number];
                let record = &buffer[(entry.offset - start) as usize..];
                self.raw_of(record, entry, first + *at as u32).map(|raw| sketch(&raw))
            });
            for ((at, _), found) in window.iter().zip(found) {
                sketches[*at] = found.unwrap_or_default();
            }
        }
        sketches
    }

    /// The raw bytes of some records of a part of a table, `bytes_max` in all, spread evenly over
    /// those that are live and intact; and how many bytes all have. Read past the page cache.
    pub fn samples(
        &self,
        entries: &[&EntryBytes],
        first: u32,
        bytes_max: usize,
    ) -> (Vec<Vec<u8>>, usize) {
        let all = entries.iter().enumerate();
        let wanted: Vec<_> =
            all.filter_map(|(at, bytes)| Some((at, self.wanted(bytes)?))).collect();
        let raw_bytes = wanted.iter().map(|(_, entry)| entry.raw_length as usize).sum();
        let step = usize::max(1, raw_bytes / bytes_max.max(1) + 1);
        let mut samples = Vec::new();
        let (mut buffer, mut left) = (Vec::new(), bytes_max);
        for (at, entry) in wanted.iter().step_by(step) {
            let length = end_of(entry).map_or(0, |end| end - entry.offset);
            buffer.resize(length as usize, 0);
            if entry.raw_length as usize > left
                || fill_at(self.data, entry.offset, &mut buffer).is_err()
            {
                continue;
            }
            if let Some(raw) = self.raw_of(&buffer, entry, first + *at as u32) {
                left -= raw.len();
                samples.push(raw);
            }
        }
        (samples, raw_bytes)
    }

    /// The entry of a record that is looked at.
    fn wanted(&self, bytes: &EntryBytes) -> Option<TableEntry> {
        let entry = TableEntry::sound(bytes, self.seed)?;
        let is_wanted = entry.state == State::LIVE
            && entry.codec.may_be_base()
            && entry.raw_length as usize <= RAW_BYTES_MAX
            && entry.stored_length as usize <= RAW_BYTES_MAX;
        is_wanted.then_some(entry)
    }

    /// The raw bytes of a record with this entry, which `bytes` begin with.
    fn raw_of(&self, bytes: &[u8], entry: &TableEntry, ordinal: u32) -> Option<Vec<u8>> {
        let (header, payload) = bytes.split_first_chunk()?;
        let payload = payload.get(..entry.stored_length as usize)?;
        let header = RecordHeader::of_entry(header, self.seed, entry, ordinal)?;
        let payload = Payload {
            codec: entry.codec,
            leans_on: RecordId(header.leans_on().unwrap_or_default()),
            raw_length: entry.raw_length as usize,
            checksum: header.checksum,
            stored: payload,
        };
        payload.raw(self.bases)
    }
}

fn end_of(entry: &TableEntry) -> Option<u64> {
    entry.offset.checked_add(RECORD_HEADER_BYTES as u64 + u64::from(entry.stored_length))
}

/// A payload as it is stored.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    pub codec: Codec,
    /// The record without which it cannot be decoded; a hole where there is none.
    pub leans_on: RecordId,
    pub raw_length: usize,
    pub checksum: Checksum,
    pub stored: &'a [u8],
}

impl Payload<'_> {
    /// The raw bytes. None where anything is not as expected.
    pub fn raw(&self, bases: &Bases) -> Option<Vec<u8>> {
        check(self.stored, self.codec, self.raw_length, self.checksum).ok()?;
        let mut raw = vec![0; self.raw_length];
        let other = Some((bases as &dyn BaseBytes, self.leans_on));
        decode_with(self.stored, self.codec, other, CacheUse::Uncached, &mut raw).ok()?;
        Some(raw)
    }
}
