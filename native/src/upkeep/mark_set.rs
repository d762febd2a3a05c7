//! Sets of records, with a bit for each record, and marking of the chunks that recipes name.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use crate::codec::encode::{check, decode};
use crate::format::ids::{ContainerNumber, RecordId};
use crate::format::recipe::Leaf;
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{EntryBytes, TableEntry};
use crate::system::files::status_of;
use crate::system::reads::fill_at;

/// Bytes that are read at once: recipes lie one after the other.
const WINDOW_BYTES: u64 = 4 << 20;

#[derive(Default)]
struct Bits {
    count: usize,
    bits: Vec<u8>,
}

#[derive(Default)]
pub struct Marks(BTreeMap<ContainerNumber, Bits>);

impl Marks {
    /// Add a container with `count` records, none of them marked.
    pub fn add_container(&mut self, number: ContainerNumber, count: usize) {
        self.0.insert(number, Bits { count, bits: vec![0; count.div_ceil(8)] });
    }

    pub fn numbers(&self) -> Vec<ContainerNumber> {
        self.0.keys().copied().collect()
    }

    pub fn knows(&self, id: RecordId) -> bool {
        let (number, ordinal) = (id.container(), id.place());
        self.0.get(&number).is_some_and(|own| ordinal < own.count)
    }

    pub fn contains(&self, id: RecordId) -> bool {
        let (number, ordinal) = (id.container(), id.place());
        let own = self.0.get(&number).filter(|own| ordinal < own.count);
        own.is_some_and(|own| own.bits[ordinal / 8] >> (ordinal % 8) & 1 == 1)
    }

    /// Marks a record. False, and nothing marked, where there is none.
    pub fn set(&mut self, id: RecordId) -> bool {
        let (number, ordinal) = (id.container(), id.place());
        let Some(own) = self.0.get_mut(&number).filter(|own| ordinal < own.count) else {
            return false;
        };
        own.bits[ordinal / 8] |= 1 << (ordinal % 8);
        true
    }

    /// Mark the records whose bit is set in `bits`, in the form of [`Marks::bits`]. False, and
    /// nothing marked, where a bit is set that belongs to no record.
    pub fn merge(&mut self, number: ContainerNumber, bits: &[u8]) -> bool {
        let Some(own) = self.0.get_mut(&number) else {
            return bits.iter().all(|&byte| byte == 0);
        };
        let (whole, rest) = (own.count / 8, own.count % 8);
        let beyond = bits.get(whole).map_or(0, |&byte| byte >> rest);
        if beyond != 0 || bits.iter().skip(whole + 1).any(|&byte| byte != 0) {
            return false;
        }
        for (own, &byte) in own.bits.iter_mut().zip(bits) {
            *own |= byte;
        }
        true
    }

    /// The lowest ordinal in the lowest bit.
    pub fn bits(&self, number: ContainerNumber) -> &[u8] {
        self.0.get(&number).map_or(&[], |own| &own.bits)
    }

    pub fn count(&self) -> u64 {
        let ones =
            |own: &Bits| own.bits.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        self.0.values().map(ones).sum::<u64>()
    }
}

/// A recipe node that is needed: its ordinal, and how many bytes of the file below it.
#[derive(Clone, Copy)]
pub struct Needed {
    pub ordinal: u32,
    pub end: u64,
}

/// The result of [`mark_named`].
#[derive(Default)]
pub struct Marked {
    pub recipes: u64,
    pub rows: u64,
    /// Nodes of which nothing was marked, for the caller to handle.
    pub left: Vec<u32>,
    /// Ids in leaves that belong to no record.
    pub strays: Vec<RecordId>,
}

/// A container of recipes, and a part of its table, which begins with the ordinal `first`.
pub struct Recipes<'a> {
    pub data: RawFd,
    pub entries: &'a [&'a EntryBytes],
    pub first: u32,
    pub seed: u64,
}

impl Recipes<'_> {
    fn entry(&self, node: Needed) -> Option<&EntryBytes> {
        self.entries.get((node.ordinal - self.first) as usize).copied()
    }
}

/// Reads nodes, in the order of their ordinals, and marks the chunks that the needed part of each
/// names. All of a leaf is marked, or nothing, and then it is left to the caller; so are nodes
/// that name other nodes.
pub fn mark_named(recipes: &Recipes<'_>, needed: &[Needed], chunks: &mut Marks) -> Marked {
    let mut marked = Marked::default();
    each_leaf(recipes, needed, |at, rows| {
        let Some((rows, _)) = rows else {
            marked.left.push(needed[at].ordinal);
            return;
        };
        marked.recipes += 1;
        marked.rows += rows.len() as u64;
        for id in rows {
            if !id.is_hole() && !chunks.set(id) {
                marked.strays.push(id);
            }
        }
    });
    marked
}

/// Reads nodes, in the order of their ordinals, which may repeat. `found` gets the place of each in
/// `needed`, the ids that its needed part names, and the bytes of it that are no holes; None where
/// the node is no sound leaf.
pub fn each_leaf(
    recipes: &Recipes<'_>,
    needed: &[Needed],
    mut found: impl FnMut(usize, Option<(Vec<RecordId>, u64)>),
) {
    let last = needed.last().and_then(|node| recipes.entry(*node)).map(TableEntry::unchecked);
    let end = last.map_or(0, |last| {
        last.offset.saturating_add(RECORD_HEADER_BYTES as u64 + u64::from(last.stored_length))
    });
    let mut reader = Reader { data: recipes.data, end, base: 0, buffer: Vec::new() };
    let mut payload = Vec::new();
    for (at, node) in needed.iter().enumerate() {
        let rows = recipes
            .entry(*node)
            .and_then(|entry| reader.read(entry, node.ordinal, recipes.seed, &mut payload))
            .and_then(|()| named_by_leaf(&payload, node.end));
        found(at, rows);
    }
}

/// The ids, holes included, of the first `end` bytes of a leaf, and how many of these are no holes;
/// None where it is no sound leaf.
fn named_by_leaf(payload: &[u8], end: u64) -> Option<(Vec<RecordId>, u64)> {
    let leaf = Leaf::of(payload)?;
    let whole = end >= leaf.length;
    let rows = leaf.rows();
    let (mut ids, mut start, mut present) = (Vec::with_capacity(rows.len()), 0u64, 0u64);
    for row in rows {
        ids.push(row.id);
        if !row.id.is_hole() {
            present += row.length.min(end.saturating_sub(start));
        }
        start = start.checked_add(row.length)?;
        if !whole && start >= end {
            return Some((ids, present));
        }
    }
    whole.then_some((ids, present))
}

struct Reader {
    data: RawFd,
    /// The end of the last node to read, according to the table.
    end: u64,
    base: u64,
    buffer: Vec<u8>,
}

impl Reader {
    /// Fills `out` with the raw bytes of a record, verified; None where anything is unexpected.
    fn read(
        &mut self,
        entry: &EntryBytes,
        ordinal: u32,
        seed: u64,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let entry = TableEntry::sound(entry, seed)?;
        if !entry.state.has_bytes() || !entry.codec.stands_alone() {
            return None;
        }
        let stored = entry.stored_length as usize;
        let record = self.bytes(entry.offset, RECORD_HEADER_BYTES + stored)?;
        let (header, payload) = record.split_first_chunk()?;
        let header = RecordHeader::sound(header, seed)?;
        if !header.agrees_with(&entry, ordinal) {
            return None;
        }
        let raw_length = entry.raw_length as usize;
        check(payload, entry.codec, raw_length, header.checksum).ok()?;
        out.resize(raw_length, 0);
        decode(payload, entry.codec, out).ok()
    }

    fn bytes(&mut self, offset: u64, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length as u64)?;
        let is_there = offset >= self.base && end <= self.base + self.buffer.len() as u64;
        if !is_there {
            let size = u64::try_from(status_of(self.data).ok()?.st_size).ok()?;
            let wanted = WINDOW_BYTES.min(self.end.saturating_sub(offset)).max(length as u64);
            let window = wanted.min(size.checked_sub(offset)?);
            if window < length as u64 {
                return None;
            }
            self.buffer.resize(usize::try_from(window).ok()?, 0);
            self.base = offset;
            if !fill_at(self.data, offset, &mut self.buffer) {
                self.buffer.clear();
                return None;
            }
        }
        let at = usize::try_from(offset - self.base).ok()?;
        self.buffer.get(at..at + length)
    }
}
