//! Reads chunks: table entry, record, checksum and decompression in one call.
//!
//! Answers only where everything is exactly as expected. `dedupd/store` handles all other cases.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::Mutex;

use crate::codec::encode::{check, decode};
use crate::format::ids::{Checksum, FingerprintCheck};
use crate::format::record_header::{
    CODEC_RAW, CODEC_ZSTD, RECORD_HEADER_BYTES, RecordHeader, RecordKind,
};
use crate::format::table_entry::{ENTRY_BYTES, State, TableEntry, entry_offset};
use crate::threads::lock::{locked, unlocked};
use crate::threads::pool;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Memory for stored payloads, which each thread keeps.
pub fn with_scratch<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    SCRATCH.with_borrow_mut(work)
}

/// A container and its table, open for reading.
#[derive(Clone, Copy)]
pub struct Files {
    pub data: RawFd,
    pub table: RawFd,
    /// Of the checksums of record headers and table entries.
    pub seed: u64,
    /// Fail where the page cache does not have all of the bytes.
    pub cached_only: bool,
}

/// A chunk to read: its ordinal, its raw length, and the start of its fingerprint.
pub type Row = (u32, usize, u32);

/// A chunk to read: its ordinal, the start of its fingerprint, and a buffer of its raw length.
pub struct Wanted<'a> {
    pub ordinal: u32,
    pub fingerprint_check: FingerprintCheck,
    pub out: &'a mut [u8],
}

impl Files {
    /// As `read`, of many, with up to `threads` threads.
    pub fn read_all(&self, wanted: Vec<Wanted<'_>>, threads: usize) -> Vec<bool> {
        let slots: Vec<_> = wanted.into_iter().map(|one| Mutex::new((one, false))).collect();
        pool::for_each(slots.len(), threads.saturating_sub(1), |at| {
            let mut slot = locked(&slots[at]);
            slot.1 = with_scratch(|scratch| self.read(&mut slot.0, scratch));
        });
        slots.into_iter().map(|slot| unlocked(slot).1).collect()
    }

    /// Fills `wanted.out`. False, with undefined bytes in it, where anything is not as expected.
    /// `scratch` is reused by the next call.
    pub fn read(&self, wanted: &mut Wanted<'_>, scratch: &mut Vec<u8>) -> bool {
        self.try_read(wanted, scratch).is_some()
    }

    fn try_read(&self, wanted: &mut Wanted<'_>, scratch: &mut Vec<u8>) -> Option<()> {
        let entry = self.entry(wanted.ordinal)?;
        if entry.raw_length as usize != wanted.out.len()
            || entry.fingerprint_check() != wanted.fingerprint_check
        {
            return None;
        }
        self.read_entry(&entry, wanted.ordinal, wanted.out, scratch)
    }

    /// The table entry of a live record; None of any other record.
    pub fn entry(&self, ordinal: u32) -> Option<TableEntry> {
        let mut bytes = [0; ENTRY_BYTES];
        self.fill(self.table, entry_offset(ordinal.into()), &mut bytes, &mut [])?;
        let entry = TableEntry::sound(&bytes, self.seed)?;
        (entry.state == State::LIVE && entry.codec <= CODEC_ZSTD).then_some(entry)
    }

    /// Fills `out`, of the raw length of the record; None where anything is not as expected.
    pub fn read_entry(
        &self,
        entry: &TableEntry,
        ordinal: u32,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Option<()> {
        let stored_length = entry.stored_length as usize;
        let mut header = [0; RECORD_HEADER_BYTES];
        if entry.codec == CODEC_RAW {
            if stored_length != out.len() {
                return None;
            }
            self.fill(self.data, entry.offset, &mut header, out)?;
            let checksum = self.checksum(&header, entry, ordinal)?;
            return check(out, entry.codec, out.len(), checksum).ok();
        }
        scratch.resize(stored_length.max(scratch.len()), 0);
        let stored = &mut scratch[..stored_length];
        self.fill(self.data, entry.offset, &mut header, stored)?;
        let checksum = self.checksum(&header, entry, ordinal)?;
        check(stored, entry.codec, out.len(), checksum).ok()?;
        decode(stored, entry.codec, out).ok()
    }

    /// The payload's checksum. None where the header does not belong to a chunk with this entry.
    fn checksum(
        &self,
        header: &[u8; RECORD_HEADER_BYTES],
        entry: &TableEntry,
        ordinal: u32,
    ) -> Option<Checksum> {
        let header = RecordHeader::sound(header, self.seed)?;
        let is_expected = header.kind == RecordKind::DATA && header.agrees_with(entry, ordinal);
        is_expected.then_some(header.checksum)
    }

    /// Reads what fills both buffers, or None.
    fn fill(&self, fd: RawFd, offset: u64, first: &mut [u8], second: &mut [u8]) -> Option<()> {
        let parts = [first, second]
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        let length: usize = parts.iter().map(|part| part.iov_len).sum();
        let flags = if self.cached_only { libc::RWF_NOWAIT } else { 0 };
        let offset = libc::off_t::try_from(offset).ok()?;
        // SAFETY: both parts are writable for their length.
        let count = unsafe { libc::preadv2(fd, parts.as_ptr(), 2, offset, flags) };
        (usize::try_from(count) == Ok(length)).then_some(())
    }
}
