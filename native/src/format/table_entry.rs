//! Entries of redirection tables (docs/format.md, "Entry").

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::bytes::{u32_at, u64_at};
use crate::format::record_header::{
    KIND_FORWARD, KIND_TOMBSTONE, RECORD_HEADER_BYTES, RECORD_MAGIC,
};

pub const TABLE_HEADER_BYTES: u64 = 64;
pub const ENTRY_BYTES: usize = 64;
pub const STATE_LIVE: u8 = 1;
pub const STATE_ORPHANED: u8 = 2;
pub const STATE_MERGED: u8 = 3;
pub const STATE_QUARANTINED: u8 = 4;
pub const STATE_TOMBSTONE: u8 = 5;
/// Where an entry has its state.
pub const STATE_AT: usize = 60;

/// What a table entry says, where its own checksum bears it out.
pub fn entry_body(entry: &[u8; ENTRY_BYTES], seed: u64) -> Option<&[u8]> {
    let (body, check) = entry.split_at(ENTRY_BYTES - 2);
    (entry_check(body, seed) == u16::from_le_bytes([check[0], check[1]])).then_some(body)
}

/// The checksum of a table entry, of all of it but the last two bytes.
pub fn entry_check(body: &[u8], seed: u64) -> u16 {
    xxh3_64_with_seed(body, seed) as u16
}

/// The entry that a record's header implies, which lies at `offset`; None where it is none.
pub fn entry_of(header: &[u8; RECORD_HEADER_BYTES], offset: u64, seed: u64) -> Option<Vec<u8>> {
    let (body, expected) = header.split_at(RECORD_HEADER_BYTES - 8);
    if u32_at(body, 0) != RECORD_MAGIC || xxh3_64_with_seed(body, seed) != u64_at(expected, 0) {
        return None;
    }
    let mut entry = Vec::with_capacity(ENTRY_BYTES);
    write_entry(&mut entry, body, offset, seed);
    Some(entry)
}

pub fn write_entry(entries: &mut Vec<u8>, body: &[u8], offset: u64, seed: u64) {
    let begin = entries.len();
    let state = match body[8] {
        KIND_FORWARD => STATE_MERGED,
        KIND_TOMBSTONE => STATE_TOMBSTONE,
        _ => STATE_LIVE,
    };
    entries.extend_from_slice(&body[24..56]);
    entries.extend_from_slice(&offset.to_le_bytes());
    // A tombstone's target is the length of its run, which is nothing that an entry says.
    let target = if body[8] == KIND_TOMBSTONE { &[0; 8] } else { &body[56..64] };
    entries.extend_from_slice(target);
    entries.extend_from_slice(&body[16..20]);
    entries.extend_from_slice(&body[12..16]);
    entries.extend_from_slice(&body[20..24]);
    entries.extend_from_slice(&[state, body[9]]);
    let check = xxh3_64_with_seed(&entries[begin..], seed) as u16;
    entries.extend_from_slice(&check.to_le_bytes());
    debug_assert_eq!(entries.len() - begin, ENTRY_BYTES);
}
