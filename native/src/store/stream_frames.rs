//! Chunks as frames of a stream, with the payloads of their records as they are stored.
//!
//! Answers only where everything is exactly as expected, as `record_reader`.

use std::sync::Mutex;

use crate::format::ids::{Fingerprint, FingerprintCheck};
use crate::format::record_header::RECORD_HEADER_BYTES;
use crate::format::stream::{CHUNK, HEADER_BYTES, Head, write_header};
use crate::format::table_entry::TableEntry;
use crate::store::blocks_ahead::{Blocks, BlocksAhead};
use crate::store::record_reader::{Files, Row};
use crate::threads::lock::locked;
use crate::threads::pool;

const FINGERPRINT_BYTES: usize = size_of::<Fingerprint>();

/// Where frames are to go in a stream: the number of the first one, and the stream's seed.
#[derive(Clone, Copy)]
pub struct Place {
    pub sequence: u32,
    pub seed: u64,
}

/// The entries of the first records of `rows`, up to one that is out of the ordinary, or leans on
/// another.
pub fn entries(files: &Files<'_>, rows: &[Row]) -> Vec<TableEntry> {
    let is_expected = |entry: &TableEntry, &(_, length, check): &Row| {
        entry.codec.stands_alone()
            && entry.raw_length as usize == length
            && entry.fingerprint_check() == FingerprintCheck(check)
    };
    rows.iter()
        .map_while(|row| files.entry(row.0).ok().filter(|entry| is_expected(entry, row)))
        .collect()
}

/// The length of the frame of a chunk.
pub fn frame_bytes(entry: &TableEntry) -> usize {
    HEADER_BYTES + FINGERPRINT_BYTES + entry.stored_length as usize
}

/// What reads these records of container `number`; ahead where they take most of what lies between
/// the first and the last of them, and more are likely to follow.
pub fn blocks(
    files: &Files<'_>,
    number: u32,
    entries: &[TableEntry],
    ahead: &BlocksAhead,
) -> Option<Blocks> {
    let bytes = |entry: &TableEntry| (RECORD_HEADER_BYTES as u64) + u64::from(entry.stored_length);
    let start = entries.iter().map(|entry| entry.offset).min()?;
    let end = entries.iter().map(|entry| entry.offset.saturating_add(bytes(entry))).max()?;
    let are_close = end - start <= 2 * entries.iter().map(bytes).sum::<u64>();
    ahead.get(number, files.data, &(start..end), are_close)
}

/// Fills `out`, of the length of all frames, on up to `threads` threads; how many of the first
/// frames are good.
pub fn write(
    files: &Files<'_>,
    rows: &[Row],
    entries: &[TableEntry],
    blocks: Option<&Blocks>,
    place: Place,
    mut out: &mut [u8],
    threads: usize,
) -> usize {
    let mut slots = Vec::with_capacity(entries.len());
    for entry in entries {
        let (frame, rest) = out.split_at_mut(frame_bytes(entry));
        slots.push(Mutex::new(frame));
        out = rest;
    }
    let written = pool::map(slots.len(), threads.saturating_sub(1), |at| {
        let frame = &mut *locked(&slots[at]);
        write_one(files, rows[at].0, &entries[at], blocks, place, at, frame).is_some()
    });
    written.into_iter().take_while(|&is_written| is_written).count()
}

fn write_one(
    files: &Files<'_>,
    ordinal: u32,
    entry: &TableEntry,
    blocks: Option<&Blocks>,
    place: Place,
    at: usize,
    frame: &mut [u8],
) -> Option<()> {
    let (fingerprint, payload) = frame[HEADER_BYTES..].split_at_mut(FINGERPRINT_BYTES);
    files.read_stored(entry, ordinal, blocks, payload).ok()?;
    fingerprint.copy_from_slice(&entry.fingerprint);
    let sequence = place.sequence.checked_add(u32::try_from(at).ok()?)?;
    let head = Head { kind: CHUNK, codec: entry.codec, sequence, raw_length: entry.raw_length };
    write_header(frame, head, place.seed)
}
