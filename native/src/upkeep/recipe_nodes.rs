//! Nodes of recipes, read in the order of their ids: what the needed part of each names.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::codec::encode::{check, decode};
use crate::format::ids::{ContainerNumber, RecordId};
use crate::format::recipe::rows_of;
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{EntryBytes, TableEntry, entries};
use crate::store::bases::{Bases, OpenContainer};
use crate::store::record_reader::CacheUse;
use crate::store::why::Why;
use crate::system::reads::fill_at;

/// Bytes that are read at once: recipes lie one after the other.
const WINDOW_BYTES: u64 = 4 << 20;

/// Entries of a table that are read at once.
const ENTRIES_AT_ONCE: u32 = 1 << 16;

/// What the needed part of a node names.
pub struct NamedRecords {
    /// Whether `ids` are chunks and holes. Else they are nodes.
    pub is_leaf: bool,
    pub ids: Vec<RecordId>,
    /// How many bytes of the last one are needed.
    pub last_bytes: u64,
    /// Bytes of the needed part of a leaf that are no holes.
    pub present: u64,
}

impl NamedRecords {
    /// What the first `end` bytes of a node name. None if the payload is not a node, or has lengths
    /// that do not add up.
    pub fn by(payload: &[u8], end: u64) -> Option<NamedRecords> {
        let (level, length, rows) = rows_of(payload)?;
        let (is_leaf, ids) = (level == 0, Vec::with_capacity(rows.len()));
        let mut named = NamedRecords { is_leaf, ids, last_bytes: end, present: 0 };
        let mut start = 0u64;
        for row in rows {
            named.ids.push(row.id);
            if is_leaf && !row.id.is_hole() {
                named.present += row.length.min(end.saturating_sub(start));
            }
            let next = start.checked_add(row.length)?;
            if end < length && next >= end {
                named.last_bytes = end - start;
                return Some(named);
            }
            start = next;
        }
        (end >= length && !named.ids.is_empty()).then_some(named)
    }

    /// The nodes that it names, and how many bytes of each are needed. None of a leaf.
    pub fn nodes(&self) -> impl Iterator<Item = (RecordId, u64)> {
        let last = self.ids.len() - 1;
        let end_of = move |at| if at == last { self.last_bytes } else { u64::MAX };
        let nodes = if self.is_leaf { &[][..] } else { &self.ids[..] };
        nodes.iter().enumerate().map(move |(at, &id)| (id, end_of(at)))
    }

    /// The chunks and holes that it names. None of any other node.
    pub fn chunks(&self) -> impl Iterator<Item = RecordId> {
        let chunks = if self.is_leaf { &self.ids[..] } else { &[] };
        chunks.iter().copied()
    }
}

/// Reads nodes of a container, given by ordinal and by how many bytes of each are needed. Ordinals
/// ascend and may repeat. `found` gets the place of each node in `needed`, and what it names or why
/// it cannot be read. A merged node stands for the node into which it was merged.
pub fn each_node(
    recipes: &Bases,
    number: ContainerNumber,
    needed: &[(u32, u64)],
    mut found: impl FnMut(usize, Result<NamedRecords, Why>),
) {
    let container = recipes.open(number).map_err(|error| Why::of(&error));
    let mut first = 0;
    while let Some(&(start, _)) = needed.get(first) {
        let near = needed[first..].iter().take_while(|node| node.0 - start < ENTRIES_AT_ONCE);
        let part = &needed[first..first + near.count()];
        let opened = container.as_ref().map_err(|&why| why);
        match opened.and_then(|container| Part::of(recipes, number, container, part)) {
            Ok(mut read) => {
                for (at, &(ordinal, end)) in part.iter().enumerate() {
                    let named = read
                        .payload(ordinal)
                        .and_then(|payload| NamedRecords::by(&payload, end).ok_or(Why::Damaged));
                    found(first + at, named);
                }
            }
            Err(why) => (first..first + part.len()).for_each(|at| found(at, Err(why))),
        }
        first += part.len();
    }
}

/// Nodes that lie near one another.
struct Part<'a> {
    recipes: &'a Bases,
    number: ContainerNumber,
    data: &'a File,
    seed: u64,
    /// Of the records from the ordinal `first` on.
    table: Vec<u8>,
    first: u32,
    /// The end of the last node to read, according to the table.
    end: u64,
    base: u64,
    window: Vec<u8>,
}

impl<'a> Part<'a> {
    fn of(
        recipes: &'a Bases,
        number: ContainerNumber,
        container: &'a OpenContainer,
        needed: &[(u32, u64)],
    ) -> Result<Part<'a>, Why> {
        let (first, last) = (needed[0].0, needed[needed.len() - 1].0);
        let table = container.entries(first, last.saturating_add(1))?;
        let end = entries(&table).last().map(TableEntry::unchecked).map_or(0, |last| {
            last.offset.saturating_add(RECORD_HEADER_BYTES as u64 + u64::from(last.stored_length))
        });
        let (data, seed) = (&container.data, container.seed);
        Ok(Part { recipes, number, data, seed, table, first, end, base: 0, window: Vec::new() })
    }

    fn entry(&self, ordinal: u32) -> Option<&EntryBytes> {
        let start = (ordinal - self.first) as usize * size_of::<EntryBytes>();
        self.table.get(start..)?.first_chunk()
    }

    /// The raw bytes of a node, verified.
    fn payload(&mut self, ordinal: u32) -> Result<Vec<u8>, Why> {
        let entry = self.entry(ordinal).and_then(|entry| TableEntry::sound(entry, self.seed));
        let entry = entry.ok_or(Why::Damaged)?;
        if !entry.state.has_bytes() || !entry.codec.stands_alone() {
            return self.recipes.of_end(RecordId::new(self.number, ordinal), CacheUse::Any);
        }
        let (seed, stored) = (self.seed, entry.stored_length as usize);
        let record = self.bytes(entry.offset, RECORD_HEADER_BYTES + stored).ok_or(Why::Damaged)?;
        let (header, payload) = record.split_first_chunk().ok_or(Why::Damaged)?;
        let header = RecordHeader::of_entry(header, seed, &entry, ordinal).ok_or(Why::Damaged)?;
        let raw_length = entry.raw_length as usize;
        check(payload, entry.codec, raw_length, header.checksum).map_err(|_| Why::Damaged)?;
        let mut raw = vec![0; raw_length];
        decode(payload, entry.codec, &mut raw).map_err(|_| Why::Damaged)?;
        Ok(raw)
    }

    fn bytes(&mut self, offset: u64, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length as u64)?;
        let is_there = offset >= self.base && end <= self.base + self.window.len() as u64;
        if !is_there {
            let size = self.data.metadata().ok()?.len();
            let wanted = WINDOW_BYTES.min(self.end.saturating_sub(offset)).max(length as u64);
            let window = wanted.min(size.checked_sub(offset)?);
            if window < length as u64 {
                return None;
            }
            self.window.resize(usize::try_from(window).ok()?, 0);
            self.base = offset;
            if fill_at(self.data.as_raw_fd(), offset, &mut self.window).is_err() {
                self.window.clear();
                return None;
            }
        }
        let at = usize::try_from(offset - self.base).ok()?;
        self.window.get(at..at + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_payload_without_rows_is_a_node() {
        assert!(NamedRecords::by(&[], 0).is_none());
        assert!(NamedRecords::by(&[0; 40], 0).is_none());
    }
}
