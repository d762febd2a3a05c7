//! The units of the file of chains: 4 KiB each, with its own checksum. No I/O.
//!
//! A chain is up to 128 pages of entries, each with a Bloom filter. The filters are interleaved by
//! bit: a row has one bit of each, so that one AND of a few rows asks all filters at once (seed
//! 002, figure 4.5). All bits of a key are in one block of rows, which is one read.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::positions::mix;
use crate::format::saved_index::{BLOCK_ROWS, KEY_ROWS, page_entry, unit};
pub use crate::format::saved_index::{CHAIN_BLOCKS, CHAIN_PAGES, PAGE_ROWS};

pub const UNIT_BYTES: usize = unit::BYTES;
const ROW_BYTES: usize = CHAIN_PAGES / 8;

/// Units of a chain: its blocks, then its pages.
pub const CHAIN_UNITS: usize = CHAIN_BLOCKS + CHAIN_PAGES;

/// Hash and record number.
pub type Row = (u32, u32);

/// The block of a chain with the bits of a key, and the rows in this block.
fn place(signature: u32) -> (usize, impl Iterator<Item = usize>) {
    let block = (mix(u64::from(signature)) >> 59) as usize % CHAIN_BLOCKS;
    let mixed = mix(!u64::from(signature));
    let rows =
        (0..KEY_ROWS).map(move |at| ((((mixed >> (8 * at)) & 255) * BLOCK_ROWS) >> 8) as usize);
    (block, rows)
}

pub fn block_of(signature: u32) -> usize {
    place(signature).0
}

/// A bit for each filter that matches, given the block of the key.
pub fn filters(block: &[u8; UNIT_BYTES], signature: u32) -> u128 {
    place(signature).1.fold(u128::MAX, |all, row| {
        let bytes = block[row * ROW_BYTES..].first_chunk::<ROW_BYTES>();
        all & bytes.map_or(0, |bytes| u128::from_le_bytes(*bytes))
    })
}

/// Insert a key into filter `page` of a chain. `blocks` are all blocks of the chain.
pub fn mark(blocks: &mut [u8], page: usize, signature: u32) {
    let (block, rows) = place(signature);
    for row in rows {
        blocks[block * UNIT_BYTES + row * ROW_BYTES + page / 8] |= 1 << (page % 8);
    }
}

/// A page of up to `PAGE_ROWS` entries.
pub fn encode_page(rows: &[Row], number: u64) -> [u8; UNIT_BYTES] {
    let mut page = [0; UNIT_BYTES];
    for (bytes, row) in page.chunks_exact_mut(page_entry::BYTES).zip(rows) {
        page_entry::SIGNATURE.put(bytes, &row.0.to_le_bytes());
        page_entry::NUMBER.put(bytes, &row.1.to_le_bytes());
    }
    seal(&mut page, number);
    page
}

/// The record numbers of a key on a full page, the last ones first.
pub fn matches(page: &[u8; UNIT_BYTES], signature: u32) -> impl Iterator<Item = u32> {
    let wanted = signature.to_le_bytes();
    unit::CONTENT
        .of(page)
        .chunks_exact(page_entry::BYTES)
        .rev()
        .filter(move |row| *page_entry::SIGNATURE.of(row) == wanted)
        .map(|row| page_entry::NUMBER.u32(row))
}

/// Write the checksum of each of the units; `first` is the number of the first one in the file.
pub fn seal(units: &mut [u8], first: u64) {
    for (bytes, number) in units.chunks_exact_mut(UNIT_BYTES).zip(first..) {
        let check = xxh3_64_with_seed(unit::CONTENT.of(bytes), number);
        unit::CHECKSUM.put(bytes, &check.to_le_bytes());
    }
}

/// Returns whether the checksums of the units are correct.
pub fn are_valid(units: &[u8], first: u64) -> bool {
    units.chunks_exact(UNIT_BYTES).zip(first..).all(|(bytes, number)| {
        unit::CHECKSUM.u64(bytes) == xxh3_64_with_seed(unit::CONTENT.of(bytes), number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_of_a_chain_are_asked_at_once() {
        let mut blocks = vec![0; CHAIN_BLOCKS * UNIT_BYTES];
        let key = |page: usize, n: usize| mix((page * PAGE_ROWS + n) as u64) as u32;
        for page in 0..CHAIN_PAGES {
            (0..PAGE_ROWS).for_each(|n| mark(&mut blocks, page, key(page, n)));
        }
        let mut wrong = 0;
        for page in 0..CHAIN_PAGES {
            for n in (0..PAGE_ROWS).step_by(10) {
                let at = block_of(key(page, n)) * UNIT_BYTES;
                let block = blocks[at..].first_chunk().unwrap();
                let found = filters(block, key(page, n));
                assert!(found >> page & 1 == 1);
                wrong += found.count_ones() - 1;
            }
        }
        assert!(wrong < 1500, "{wrong} of {}", CHAIN_PAGES * PAGE_ROWS / 10);
    }

    #[test]
    fn a_page_gives_back_what_it_holds_and_tells_of_damage() {
        let rows: Vec<Row> = (0..PAGE_ROWS as u32).map(|n| (n / 2, n + 7)).collect();
        let mut page = encode_page(&rows, 5);
        assert_eq!(matches(&page, 3).collect::<Vec<_>>(), [14, 13]);
        assert!(are_valid(&page, 5) && !are_valid(&page, 6));
        page[100] ^= 1;
        assert!(!are_valid(&page, 5));
    }
}
