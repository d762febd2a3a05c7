//! Reads chunks: table entry, record, checksum and decompression in one call.
//!
//! Answers only where everything is exactly as expected. `dedupd_core/store` handles all other cases.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use crate::codec::delta;
use crate::codec::dictionary::{self, Dictionary};
use crate::codec::encode::{check, decode};
use crate::format::codec::Codec;
use crate::format::ids::{FingerprintCheck, RecordId};
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{ENTRY_BYTES, State, TableEntry};
use crate::format::table_map;
use crate::store::blocks_ahead::Blocks;
use crate::system::reads::RWF_DONTCACHE;
use crate::threads::lock::locked;
use crate::threads::pool;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Memory for payloads, as they are stored or decoded, which each thread keeps: as long as its longest
/// so far.
pub fn with_scratch<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    SCRATCH.with_borrow_mut(work)
}

/// How reads deal with the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Fail where the page cache does not have all of the bytes.
    CachedOnly,
    Any,
    /// Leave nothing there that was not there before, where the kernel can do that.
    Uncached,
}

/// Where the records are found that others lean on.
pub trait BaseBytes: Sync {
    /// The raw bytes of a record that is no difference to another; None where anything is out of the
    /// ordinary.
    fn raw(&self, id: RecordId, reads: Reads) -> Option<Arc<Vec<u8>>>;

    /// The dictionary that a record holds; None as for [`BaseBytes::raw`].
    fn dictionary(&self, id: RecordId, reads: Reads) -> Option<Arc<Dictionary>>;
}

/// Why a payload that passed [`check`] has no raw bytes.
pub enum Undecoded {
    /// What it leans on cannot be read.
    Base,
    /// It does not decode to the stated length.
    Payload,
}

/// Fills `out` from a payload that passed [`check`]. `other`: the record that it leans on, and what
/// reads that one.
pub fn decode_with(
    stored: &[u8],
    codec: Codec,
    other: Option<(&dyn BaseBytes, RecordId)>,
    reads: Reads,
    out: &mut [u8],
) -> Result<(), Undecoded> {
    let decoded = match codec {
        Codec::Delta => {
            let base = other.and_then(|(bases, id)| bases.raw(id, reads)).ok_or(Undecoded::Base)?;
            delta::decode(stored, &base, out)
        }
        Codec::Dictionary => {
            let found = other.and_then(|(bases, id)| bases.dictionary(id, reads));
            let found = found.ok_or(Undecoded::Base)?;
            dictionary::decode(stored, &found, out)
        }
        Codec::Raw | Codec::Zstd | Codec::Unknown(_) => decode(stored, codec, out),
    };
    decoded.map_err(|_| Undecoded::Payload)
}

/// A container and its table, open for reading.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub data: RawFd,
    pub table: RawFd,
    /// Of the checksums of record headers and table entries.
    pub seed: u64,
    pub reads: Reads,
    /// Of the records that lean on others. Without it these are not read.
    pub bases: Option<&'a dyn BaseBytes>,
}

/// A chunk to read: its ordinal, its raw length, and the start of its fingerprint.
pub type Row = (u32, usize, u32);

/// A chunk to read: its ordinal, the start of its fingerprint, and a buffer of its raw length.
pub struct Wanted<'a> {
    pub ordinal: u32,
    pub fingerprint_check: FingerprintCheck,
    pub out: &'a mut [u8],
}

impl Files<'_> {
    /// As `read`, of many, with up to `threads` threads.
    pub fn read_all(&self, wanted: Vec<Wanted<'_>>, threads: usize) -> Vec<bool> {
        let slots: Vec<_> = wanted.into_iter().map(Mutex::new).collect();
        pool::map(slots.len(), threads.saturating_sub(1), |at| {
            with_scratch(|scratch| self.read(&mut locked(&slots[at]), scratch)).is_some()
        })
    }

    /// Fills `wanted.out`. None, with undefined bytes in it, where anything is not as expected.
    /// `scratch` is reused by the next call.
    pub fn read(&self, wanted: &mut Wanted<'_>, scratch: &mut Vec<u8>) -> Option<()> {
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
        let entry = self.any_entry(ordinal)?;
        (entry.state == State::LIVE && entry.codec.is_known()).then_some(entry)
    }

    /// The table entry of a record in whatever state; None where there is no sound one.
    pub fn any_entry(&self, ordinal: u32) -> Option<TableEntry> {
        let mut bytes = [0; ENTRY_BYTES];
        // A page has the entries of many records, which are mostly asked for one after the other.
        let reads = if self.reads == Reads::Uncached { Reads::Any } else { self.reads };
        let table = Files { reads, ..*self };
        let fill = |offset, out: &mut [u8]| table.fill(self.table, offset, out, &mut []);
        let Some(offset) = table_map::offset_of(ordinal, self.seed, fill)? else {
            return Some(table_map::collected());
        };
        fill(offset, &mut bytes)?;
        TableEntry::sound(&bytes, self.seed)
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
        if entry.codec == Codec::Raw {
            if stored_length != out.len() {
                return None;
            }
            self.fill(self.data, entry.offset, &mut header, out)?;
            let header = self.header(&header, entry, ordinal)?;
            return check(out, entry.codec, out.len(), header.checksum).ok();
        }
        scratch.resize(stored_length.max(scratch.len()), 0);
        let stored = &mut scratch[..stored_length];
        self.fill(self.data, entry.offset, &mut header, stored)?;
        let header = self.header(&header, entry, ordinal)?;
        check(stored, entry.codec, out.len(), header.checksum).ok()?;
        let other = self.bases.zip(header.leans_on().map(RecordId));
        decode_with(stored, entry.codec, other, self.reads, out).ok()
    }

    /// Fills `out`, of its stored length, with the payload of a record that leans on no other; None
    /// where anything is not as expected. The file of records is read by `blocks`, if there are.
    pub fn read_stored(
        &self,
        entry: &TableEntry,
        ordinal: u32,
        blocks: Option<&Blocks>,
        out: &mut [u8],
    ) -> Option<()> {
        let mut header = [0; RECORD_HEADER_BYTES];
        let is_there = blocks.is_some_and(|blocks| blocks.read(entry.offset, &mut header, out));
        if !is_there {
            self.fill(self.data, entry.offset, &mut header, out)?;
        }
        let header = self.header(&header, entry, ordinal)?;
        check(out, entry.codec, entry.raw_length as usize, header.checksum).ok()
    }

    /// The header of a record. None where it does not belong to a chunk with this entry. A chunk
    /// that was repaired is a copy of what it repeats.
    fn header(
        &self,
        header: &[u8; RECORD_HEADER_BYTES],
        entry: &TableEntry,
        ordinal: u32,
    ) -> Option<RecordHeader> {
        let header = RecordHeader::sound(header, self.seed)?;
        let is_expected = header.kind.has_bytes() && header.agrees_with(entry, ordinal);
        is_expected.then_some(header)
    }

    /// Reads what fills both buffers, or None.
    fn fill(&self, fd: RawFd, offset: u64, first: &mut [u8], second: &mut [u8]) -> Option<()> {
        let parts = [first, second]
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        let length: usize = parts.iter().map(|part| part.iov_len).sum();
        let offset = libc::off_t::try_from(offset).ok()?;
        let read = |flags| {
            // SAFETY: both parts are writable for their length.
            let count = unsafe { libc::preadv2(fd, parts.as_ptr(), 2, offset, flags) };
            usize::try_from(count) == Ok(length)
        };
        let is_read = match self.reads {
            Reads::CachedOnly => read(libc::RWF_NOWAIT),
            Reads::Any => read(0),
            Reads::Uncached => read(RWF_DONTCACHE) || read(0),
        };
        is_read.then_some(())
    }
}
