//! Record headers and table entries of freshly encoded chunks (docs/design/format.md, "Record",
//! "Entry").
//!
//! `dedupd_core/format` does the same in Python; a test compares the two.

use crate::fingerprint::Fingerprint;
use crate::format::codec::Codec;
use crate::format::ids::{Checksum, RecordId};
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use crate::format::table_entry::ENTRY_BYTES;

/// The results of `encode` for each record, and the facts that the caller adds. All have the same
/// length.
pub struct Columns<'a> {
    pub starts: Vec<u32>,
    pub stored_lengths: Vec<u32>,
    pub codecs: &'a [u8],
    pub checksums: Vec<Checksum>,
    pub fingerprints: Vec<&'a Fingerprint>,
    pub raw_lengths: Vec<u32>,
    pub hints: Vec<u32>,
}

/// Where the records are to be written: the container's checksum seed, the first ordinal, and the
/// offset of the buffer.
pub struct WritePosition {
    pub seed: u64,
    pub ordinal: u32,
    pub offset: u64,
}

/// Fills in the headers in `buffer` and returns the table's entries.
pub fn seal(
    buffer: &mut [u8],
    columns: &Columns<'_>,
    place: &WritePosition,
) -> Result<Vec<u8>, String> {
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
        let bytes = buffer
            .get_mut(start..start + RECORD_HEADER_BYTES)
            .and_then(|bytes| bytes.first_chunk_mut())
            .ok_or_else(|| format!("a record starts at {start}: beyond the buffer"))?;
        let ordinal = u32::try_from(at)
            .ok()
            .and_then(|at| place.ordinal.checked_add(at))
            .ok_or("ordinals go beyond 32 bits")?;
        let header = RecordHeader {
            ordinal,
            kind: RecordKind::DATA,
            codec: Codec::from(columns.codecs[at]),
            raw_length: columns.raw_lengths[at],
            stored_length: columns.stored_lengths[at],
            hint: columns.hints[at],
            fingerprint: *columns.fingerprints[at],
            target: RecordId::HOLE.0,
            checksum: columns.checksums[at],
            collected: 0,
        };
        header.write(bytes, place.seed);
        let entry = header.table_entry(place.offset + u64::from(columns.starts[at]));
        entries.extend_from_slice(&entry.to_bytes(place.seed));
    }
    Ok(entries)
}
