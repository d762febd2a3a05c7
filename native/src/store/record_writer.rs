//! Record headers and table entries of freshly encoded chunks (docs/format.md, "Record", "Entry").
//!
//! `dedupd/format` says the same in Python, and reads what is written here; a test compares them.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fingerprint::Fingerprint;
use crate::format::record_header::{KIND_DATA, RECORD_HEADER_BYTES, RECORD_MAGIC};
use crate::format::table_entry::{ENTRY_BYTES, STATE_LIVE, entry_check};

/// What `encode` says about each record, and what the caller knows; all of one length.
pub struct Columns<'a> {
    pub starts: Vec<u32>,
    pub stored_lengths: Vec<u32>,
    pub codecs: &'a [u8],
    pub checksums: Vec<u64>,
    pub fingerprints: Vec<&'a Fingerprint>,
    pub raw_lengths: Vec<u32>,
    pub hints: Vec<u32>,
}

/// Where the records go: the container's checksum seed, the first ordinal, the buffer's offset.
pub struct Place {
    pub seed: u64,
    pub ordinal: u32,
    pub offset: u64,
}

/// Fills in the headers in `buffer` and returns the table's entries.
pub fn seal(buffer: &mut [u8], columns: &Columns<'_>, place: &Place) -> Result<Vec<u8>, String> {
    let count = columns.starts.len();
    let lengths = [
        columns.stored_lengths.len(),
        columns.codecs.len(),
        columns.checksums.len(),
        columns.fingerprints.len(),
        columns.raw_lengths.len(),
        columns.hints.len(),
    ];
    if lengths.iter().any(|&length| length != count) {
        return Err(format!("columns have {lengths:?} items, starts has {count}"));
    }
    let mut entries = Vec::with_capacity(count * ENTRY_BYTES);
    for at in 0..count {
        let start = columns.starts[at] as usize;
        let header = buffer
            .get_mut(start..start + RECORD_HEADER_BYTES)
            .ok_or_else(|| format!("a record starts at {start}: beyond the buffer"))?;
        let ordinal = u32::try_from(at)
            .ok()
            .and_then(|at| place.ordinal.checked_add(at))
            .ok_or("ordinals go beyond 32 bits")?;
        write_record(header, columns, at, ordinal, place.seed);
        write_entry(&mut entries, columns, at, place);
    }
    Ok(entries)
}

fn write_record(header: &mut [u8], columns: &Columns<'_>, at: usize, ordinal: u32, seed: u64) {
    let (body, check) = header.split_at_mut(RECORD_HEADER_BYTES - 8);
    body[0..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    body[4..8].copy_from_slice(&ordinal.to_le_bytes());
    body[8] = KIND_DATA;
    body[9] = columns.codecs[at];
    body[10..12].fill(0);
    body[12..16].copy_from_slice(&columns.raw_lengths[at].to_le_bytes());
    body[16..20].copy_from_slice(&columns.stored_lengths[at].to_le_bytes());
    body[20..24].copy_from_slice(&columns.hints[at].to_le_bytes());
    body[24..56].copy_from_slice(columns.fingerprints[at]);
    body[56..64].fill(0);
    body[64..72].copy_from_slice(&columns.checksums[at].to_le_bytes());
    check.copy_from_slice(&xxh3_64_with_seed(body, seed).to_le_bytes());
}

fn write_entry(entries: &mut Vec<u8>, columns: &Columns<'_>, at: usize, place: &Place) {
    let begin = entries.len();
    entries.extend_from_slice(columns.fingerprints[at]);
    entries.extend_from_slice(&(place.offset + u64::from(columns.starts[at])).to_le_bytes());
    entries.extend_from_slice(&0u64.to_le_bytes());
    entries.extend_from_slice(&columns.stored_lengths[at].to_le_bytes());
    entries.extend_from_slice(&columns.raw_lengths[at].to_le_bytes());
    entries.extend_from_slice(&columns.hints[at].to_le_bytes());
    entries.extend_from_slice(&[STATE_LIVE, columns.codecs[at]]);
    let check = entry_check(&entries[begin..], place.seed);
    entries.extend_from_slice(&check.to_le_bytes());
}
