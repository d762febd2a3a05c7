//! The map of a redirection table that omits the entries of collected records
//! (docs/design/format.md, "Table map").

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::layout;
use super::table_entry::{ENTRY_BYTES, EntryBytes, State, TableEntry, header};

layout! {
    pub mod block: 16 bytes {
        BEFORE: 4 at 0,
        CHECK: 4 at 4,
        PRESENT: 8 at 8,
    }
}

/// Blocks are written in lines, so that entries start at multiples of their size.
pub const LINE_BYTES: usize = 64;
const BLOCKS_PER_LINE: usize = LINE_BYTES / block::BYTES;
/// Number of ordinals per block.
const BLOCK_ORDINALS: u32 = u64::BITS;
const LINE_ORDINALS: u32 = BLOCKS_PER_LINE as u32 * BLOCK_ORDINALS;

/// The start of the first entry in a table with this number of lines.
#[inline]
pub fn entries_start(lines: u16) -> u64 {
    header::BYTES as u64 + u64::from(lines) * LINE_BYTES as u64
}

/// As [`entries_start`], if the last record without an entry is directly before the ordinal `end`.
pub fn start_for(end: u32) -> u64 {
    entries_start(lines_for(end))
}

/// A container has room for about 12 million records, fewer than this number of lines maps.
fn lines_for(end: u32) -> u16 {
    u16::try_from(end.div_ceil(LINE_ORDINALS)).unwrap_or(u16::MAX)
}

/// Shows which of 64 records have an entry.
#[derive(Clone, Copy)]
struct Block {
    /// Number of entries for records with lower ordinals.
    before: u32,
    present: u64,
}

impl Block {
    fn sound(bytes: &[u8], at: u32, seed: u64) -> Option<Block> {
        let is_sound = block::CHECK.u32(bytes) == check(bytes, at, seed);
        let (before, present) = (block::BEFORE.u32(bytes), block::PRESENT.u64(bytes));
        is_sound.then_some(Block { before, present })
    }

    fn to_bytes(self, at: u32, seed: u64) -> [u8; block::BYTES] {
        let mut out = [0; block::BYTES];
        block::BEFORE.put(&mut out, &self.before.to_le_bytes());
        block::PRESENT.put(&mut out, &self.present.to_le_bytes());
        let check = check(&out, at, seed);
        block::CHECK.put(&mut out, &check.to_le_bytes());
        out
    }

    /// Number of entries up to the last record of the block.
    fn through(self) -> u32 {
        self.before.saturating_add(self.present.count_ones())
    }

    /// The index of an ordinal's entry. None if the ordinal has no entry.
    fn place(self, ordinal: u32) -> Option<u32> {
        let bit = 1 << (ordinal % BLOCK_ORDINALS);
        (self.present & bit > 0).then(|| self.before + (self.present & (bit - 1)).count_ones())
    }
}

/// The checksum of a block, by its place in the map.
fn check(bytes: &[u8], at: u32, seed: u64) -> u32 {
    let mut body = [0; block::BYTES];
    body.copy_from_slice(&bytes[..block::BYTES]);
    block::CHECK.put(&mut body, &at.to_le_bytes());
    xxh3_64_with_seed(&body, seed) as u32
}

/// The place of an entry, found with at most two reads. `fill` reads from an offset of the table.
///
/// The outer None means unknown, the inner None that the record was collected and has no entry.
pub fn offset_of(
    ordinal: u32,
    seed: u64,
    mut fill: impl FnMut(u64, &mut [u8]) -> Option<()>,
) -> Option<Option<u64>> {
    let mut lines = [0; 2];
    fill(header::MAP_LINES.start as u64, &mut lines)?;
    let lines = u16::from_le_bytes(lines);
    let mapped = u32::from(lines) * LINE_ORDINALS;
    let place = if lines == 0 {
        Some(ordinal)
    } else {
        let at = ordinal.min(mapped - 1) / BLOCK_ORDINALS;
        let mut bytes = [0; block::BYTES];
        fill(header::BYTES as u64 + u64::from(at) * block::BYTES as u64, &mut bytes)?;
        let block = Block::sound(&bytes, at, seed)?;
        if ordinal < mapped {
            block.place(ordinal)
        } else {
            Some(ordinal - mapped + block.through())
        }
    };
    Some(place.map(|place| entries_start(lines) + u64::from(place) * ENTRY_BYTES as u64))
}

/// The entry that represents a collected record without an entry.
pub fn collected_entry(seed: u64) -> EntryBytes {
    collected().to_bytes(seed)
}

/// As [`collected_entry`], decoded.
pub fn collected() -> TableEntry {
    TableEntry { state: State::TOMBSTONE, ..TableEntry::unchecked(&[0; ENTRY_BYTES]) }
}

/// The map of a table.
#[derive(Default)]
pub struct TableMap {
    blocks: Vec<Block>,
    seed: u64,
}

impl TableMap {
    /// The map in the first lines after the header of a table; None if it is damaged.
    pub fn of(bytes: &[u8], seed: u64) -> Option<TableMap> {
        let mut blocks: Vec<Block> = Vec::with_capacity(bytes.len() / block::BYTES);
        for (at, bytes) in (0..).zip(bytes.chunks_exact(block::BYTES)) {
            let block = Block::sound(bytes, at, seed)?;
            if block.before != blocks.last().map_or(0, |last| last.through()) {
                return None;
            }
            blocks.push(block);
        }
        Some(TableMap { blocks, seed })
    }

    /// The map of a table without the entries of some records, as ascending ranges [first, end).
    pub fn without(rows: &[(u32, u32)], seed: u64) -> TableMap {
        let lines = usize::from(lines_for(rows.last().map_or(0, |&(_, end)| end)));
        let mut blocks = vec![Block { before: 0, present: u64::MAX }; lines * BLOCKS_PER_LINE];
        for ordinal in rows.iter().flat_map(|&(first, end)| first..end) {
            blocks[(ordinal / BLOCK_ORDINALS) as usize].present &=
                !(1 << (ordinal % BLOCK_ORDINALS));
        }
        let mut before = 0;
        for block in &mut blocks {
            block.before = before;
            before = block.through();
        }
        TableMap { blocks, seed }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let blocks = (0..).zip(&self.blocks);
        blocks.flat_map(|(at, block)| block.to_bytes(at, self.seed)).collect()
    }

    /// The start of the first entry.
    pub fn start(&self) -> u64 {
        (header::BYTES + self.blocks.len() * block::BYTES) as u64
    }

    fn mapped(&self) -> u32 {
        self.blocks.len() as u32 * BLOCK_ORDINALS
    }

    /// The offset of the entry with this index.
    pub fn offset(&self, place: u32) -> u64 {
        self.start() + u64::from(place) * ENTRY_BYTES as u64
    }

    /// Number of records without an entry.
    pub fn left_out(&self) -> u32 {
        self.mapped() - self.blocks.last().map_or(0, |last| last.through())
    }

    /// The index of a record's entry; None if it has no entry.
    pub fn place(&self, ordinal: u32) -> Option<u32> {
        match self.blocks.get((ordinal / BLOCK_ORDINALS) as usize) {
            Some(block) => block.place(ordinal),
            None => Some(ordinal - self.left_out()),
        }
    }

    /// Number of entries for records below an ordinal.
    pub fn places_below(&self, end: u32) -> u32 {
        match self.blocks.get((end / BLOCK_ORDINALS) as usize) {
            Some(block) => {
                let below = (1 << (end % BLOCK_ORDINALS)) - 1;
                block.before + (block.present & below).count_ones()
            }
            None => end - self.left_out(),
        }
    }

    /// The entries of records from `first` on, with an entry for each collected record, made from
    /// `packed`, the entries in the table. They end at `end`, or at the end of `packed`.
    pub fn expand(&self, packed: &[u8], first: u32, end: u32) -> Vec<u8> {
        let none = collected_entry(self.seed);
        let mut left = packed.chunks_exact(ENTRY_BYTES);
        let count = packed.len() / ENTRY_BYTES + self.left_out() as usize;
        let mut out = Vec::with_capacity(count.min((end - first) as usize) * ENTRY_BYTES);
        for ordinal in first..end.min(self.mapped().max(first)) {
            if self.place(ordinal).is_none() {
                out.extend_from_slice(&none);
            } else if let Some(entry) = left.next() {
                out.extend_from_slice(entry);
            } else {
                return out;
            }
        }
        let rest = (end - first) as usize - out.len() / ENTRY_BYTES;
        left.take(rest).for_each(|entry| out.extend_from_slice(entry));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 7;

    fn entry(ordinal: u32) -> EntryBytes {
        let offset = u64::from(ordinal) + 1000;
        TableEntry { state: State::LIVE, offset, ..collected() }.to_bytes(SEED)
    }

    fn is_in(rows: &[(u32, u32)], ordinal: u32) -> bool {
        rows.iter().any(|&(first, end)| (first..end).contains(&ordinal))
    }

    #[test]
    fn a_table_without_entries_is_as_one_that_has_them() {
        let cases: &[&[(u32, u32)]] = &[
            &[],
            &[(0, 1)],
            &[(3, 9)],
            &[(63, 65), (70, 71), (127, 300)],
            &[(0, 256)],
            &[(0, 255), (256, 257), (511, 513)],
            &[(1000, 1001)],
        ];
        for rows in cases {
            let count = 1300;
            let map = TableMap::without(rows, SEED);
            let bytes = map.to_bytes();
            assert_eq!(bytes.len() % LINE_BYTES, 0);
            let lines = (bytes.len() / LINE_BYTES) as u16;
            let read = TableMap::of(&bytes, SEED).expect("a sound map");
            let mut file = vec![0; header::BYTES];
            header::MAP_LINES.put(&mut file, &lines.to_le_bytes());
            file.extend_from_slice(&bytes);
            assert_eq!(file.len() as u64, entries_start(lines));
            assert_eq!(file.len() as u64, read.start());
            let present = (0..count).filter(|&one| !is_in(rows, one));
            present.for_each(|one| file.extend_from_slice(&entry(one)));
            assert_eq!(read.left_out(), (0..count).filter(|&one| is_in(rows, one)).count() as u32);
            let packed = &file[read.start() as usize..];
            let whole = read.expand(packed, 0, u32::MAX);
            assert_eq!(whole.len(), count as usize * ENTRY_BYTES);
            for ordinal in 0..count {
                let own = &whole[ordinal as usize * ENTRY_BYTES..][..ENTRY_BYTES];
                let fill = |offset: u64, out: &mut [u8]| {
                    let start = offset as usize;
                    out.copy_from_slice(file.get(start..start + out.len())?);
                    Some(())
                };
                let found = offset_of(ordinal, SEED, fill).expect("a place");
                assert_eq!(found.is_none(), is_in(rows, ordinal));
                let place = read.place(ordinal);
                match found {
                    None => assert_eq!(own, collected_entry(SEED)),
                    Some(offset) => {
                        assert_eq!(&file[offset as usize..][..ENTRY_BYTES], own);
                        assert_eq!(own, entry(ordinal));
                        assert_eq!(place, Some(read.places_below(ordinal)));
                    }
                }
                assert_eq!(place.is_none(), found.is_none());
            }
            for (first, end) in [(0, 1), (5, 64), (60, 130), (250, 260), (299, 1300), (1200, 1201)]
            {
                let range = read.places_below(first) as usize..read.places_below(end) as usize;
                let some = &packed[range.start * ENTRY_BYTES..range.end * ENTRY_BYTES];
                let expected = &whole[first as usize * ENTRY_BYTES..end as usize * ENTRY_BYTES];
                assert_eq!(read.expand(some, first, end), expected);
            }
        }
    }

    #[test]
    fn a_damaged_block_is_found_and_one_in_another_place_as_well() {
        let bytes = TableMap::without(&[(3, 9), (100, 200)], SEED).to_bytes();
        for at in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[at / 8] ^= 1 << (at % 8);
            assert!(TableMap::of(&wrong, SEED).is_none(), "bit {at}");
        }
        let mut swapped = bytes.clone();
        swapped.rotate_left(block::BYTES);
        assert!(TableMap::of(&swapped, SEED).is_none());
        assert!(TableMap::of(&bytes, SEED + 1).is_none());
    }
}
