//! Reading chunks back: table entry, record, checksum and decompression in one go.
//!
//! Only what is exactly as expected is answered; `dedupd/store` looks into everything else.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::codec::encode::{CODEC_RAW, CODEC_ZSTD, check, decode};
use crate::fingerprint::{Fingerprint, HASH_BYTES};
use crate::format::bytes::{u32_at, u64_at};
use crate::format::record_header::{KIND_DATA, RECORD_HEADER_BYTES, RECORD_MAGIC};
use crate::format::table_entry::{
    ENTRY_BYTES, STATE_AT, STATE_LIVE, TABLE_HEADER_BYTES, entry_body,
};
use crate::threads::pool;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Memory for what is stored, which each thread keeps.
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
    /// Give up where the page cache does not have it all.
    pub cached_only: bool,
}

/// A chunk that is wanted: its place, its raw length, and the start of its fingerprint.
pub type Row = (u32, usize, u32);

/// A chunk that is wanted: its place, the start of its fingerprint, and where its bytes go, all of
/// them.
pub struct Wanted<'a> {
    pub ordinal: u32,
    pub check: u32,
    pub out: &'a mut [u8],
}

impl Files {
    /// As `read`, of many, with up to `threads` threads.
    pub fn read_all(&self, wanted: Vec<Wanted<'_>>, threads: usize) -> Vec<bool> {
        let slots: Vec<_> = wanted.into_iter().map(|one| Mutex::new((one, false))).collect();
        pool::for_each(slots.len(), threads.saturating_sub(1), |at| {
            let mut slot = slots[at].lock().unwrap_or_else(PoisonError::into_inner);
            slot.1 = with_scratch(|scratch| self.read(&mut slot.0, scratch));
        });
        slots
            .into_iter()
            .map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).1)
            .collect()
    }

    /// Fills `wanted.out`; false where anything is not as expected, and then it may hold anything.
    /// `scratch` is kept between calls.
    pub fn read(&self, wanted: &mut Wanted<'_>, scratch: &mut Vec<u8>) -> bool {
        self.try_read(wanted, scratch).is_some()
    }

    fn try_read(&self, wanted: &mut Wanted<'_>, scratch: &mut Vec<u8>) -> Option<()> {
        let entry = self.entry(wanted.ordinal)?;
        if entry.raw_length as usize != wanted.out.len() || entry.check() != wanted.check {
            return None;
        }
        self.read_entry(&entry, wanted.ordinal, wanted.out, scratch)
    }

    /// What the table says of a live record; None of any other.
    pub fn entry(&self, ordinal: u32) -> Option<Entry> {
        let mut bytes = [0; ENTRY_BYTES];
        let at = TABLE_HEADER_BYTES + u64::from(ordinal) * ENTRY_BYTES as u64;
        self.fill(self.table, at, &mut bytes, &mut [])?;
        Entry::live(&bytes, self.seed)
    }

    /// Fills `out`, of the raw length of the record; None where anything is not as expected.
    pub fn read_entry(
        &self,
        entry: &Entry,
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
            let checksum = entry.checksum_in(&header, ordinal, self.seed)?;
            return check(out, entry.codec, out.len(), checksum).ok();
        }
        scratch.resize(stored_length.max(scratch.len()), 0);
        let stored = &mut scratch[..stored_length];
        self.fill(self.data, entry.offset, &mut header, stored)?;
        let checksum = entry.checksum_in(&header, ordinal, self.seed)?;
        check(stored, entry.codec, out.len(), checksum).ok()?;
        decode(stored, entry.codec, out).ok()
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

/// What a table says of a live record.
pub struct Entry {
    pub fingerprint: Fingerprint,
    pub raw_length: u32,
    offset: u64,
    stored_length: u32,
    codec: u8,
}

impl Entry {
    fn live(bytes: &[u8; ENTRY_BYTES], seed: u64) -> Option<Entry> {
        let body = entry_body(bytes, seed)?;
        let mut fingerprint = [0; HASH_BYTES];
        fingerprint.copy_from_slice(&body[..HASH_BYTES]);
        (body[STATE_AT] == STATE_LIVE && body[61] <= CODEC_ZSTD).then(|| Entry {
            fingerprint,
            offset: u64_at(body, 32),
            stored_length: u32_at(body, 48),
            raw_length: u32_at(body, 52),
            codec: body[61],
        })
    }

    /// The start of the fingerprint, as recipes keep it.
    pub fn check(&self) -> u32 {
        u32_at(&self.fingerprint, 0)
    }

    /// The payload's checksum, from a record header that is valid and says what the entry says.
    fn checksum_in(
        &self,
        header: &[u8; RECORD_HEADER_BYTES],
        ordinal: u32,
        seed: u64,
    ) -> Option<u64> {
        let (body, check) = header.split_at(RECORD_HEADER_BYTES - 8);
        let is_expected = xxh3_64_with_seed(body, seed) == u64_at(check, 0)
            && u32_at(body, 0) == RECORD_MAGIC
            && u32_at(body, 4) == ordinal
            && (body[8], body[9]) == (KIND_DATA, self.codec)
            && u32_at(body, 12) == self.raw_length
            && u32_at(body, 16) == self.stored_length
            && body[24..56] == self.fingerprint;
        is_expected.then(|| u64_at(body, 64))
    }
}
