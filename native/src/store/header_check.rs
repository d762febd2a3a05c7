//! Compares the headers of a container's records with its table.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{ENTRY_BYTES, EntryBytes, State, TableEntry, entries};
use crate::threads::read_ahead::{Buffer, Source};
use crate::threads::scoped;

/// Headers that a thread checks at a time.
const HEADERS_BATCH: usize = 64;

/// Returns whether every record with bytes has the header that its entry implies. The first entry of
/// `table` is that of the ordinal `first`. Payloads are not read. Headers come from the disk if it
/// can be read directly: each is a wait, so `threads` read at the same time.
pub fn headers_agree(data: RawFd, table: &[u8], seed: u64, first: usize, threads: usize) -> bool {
    let source = Source::new(data);
    let agree = AtomicBool::new(true);
    let batches = table.chunks(HEADERS_BATCH * ENTRY_BYTES).enumerate();
    scoped::for_each(batches, threads, |(batch, part)| {
        let mut buffer = Buffer::default();
        let first = first + batch * HEADERS_BATCH;
        let is_so = |(at, entry): (usize, &EntryBytes)| {
            agree.load(Ordering::Relaxed)
                && header_agrees(&source, &mut buffer, first + at, entry, seed)
        };
        if !entries(part).enumerate().all(is_so) {
            agree.store(false, Ordering::Relaxed);
        }
    });
    agree.into_inner()
}

fn header_agrees(
    source: &Source,
    buffer: &mut Buffer,
    ordinal: usize,
    entry: &EntryBytes,
    seed: u64,
) -> bool {
    let Some(said) = TableEntry::sound(entry, seed) else { return false };
    if !said.state.has_bytes() {
        return true;
    }
    let end = said.offset.checked_add(RECORD_HEADER_BYTES as u64);
    let Some(end) = end.filter(|&end| i64::try_from(end).is_ok()) else { return false };
    buffer.fill(source, &(said.offset..end));
    let header = buffer.data().and_then(<[u8]>::first_chunk);
    let Some(found) = header.and_then(|header| RecordHeader::sound(header, seed)) else {
        return false;
    };
    let implied = found.table_entry(said.offset);
    let is_elsewhere = said.state == State::LIVE && !said.target.is_hole();
    found.ordinal as usize == ordinal
        && found.kind.has_bytes()
        && said.describes(&implied)
        && !(is_elsewhere && said.target != implied.target)
}
