//! Reads chunks: table entry, record, checksum and decompression in one call.
//!
//! If anything is not exactly as expected, the answer is the reason (`why.rs`). `dedupd_core/store`
//! decides about the repair.

use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::codec::delta;
use crate::codec::dictionary::{self, Dictionary};
use crate::codec::encode::{check, decode};
use crate::format::codec::Codec;
use crate::format::ids::RecordId;
use crate::format::record_header::{RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{ENTRY_BYTES, State, TableEntry};
use crate::format::table_map;
use crate::store::blocks_ahead::Blocks;
use crate::store::why::Why;
use crate::system::reads::RWF_DONTCACHE;

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
pub enum CacheUse {
    /// Fail where the page cache does not have all of the bytes.
    CachedOnly,
    Any,
    /// Leave nothing there that was not there before, where the kernel can do that.
    Uncached,
}

/// Where the records are found that others lean on.
pub trait BaseBytes: Sync {
    /// The raw bytes of a record that is no difference to another.
    fn raw(&self, id: RecordId, reads: CacheUse) -> Result<Arc<Vec<u8>>, Why>;

    /// The dictionary that a record holds.
    fn dictionary(&self, id: RecordId, reads: CacheUse) -> Result<Arc<Dictionary>, Why>;
}

/// Why a payload that passed [`check`] has no raw bytes.
pub enum Undecoded {
    /// What it leans on cannot be read.
    Base(Why),
    /// It does not decode to the stated length.
    Payload,
}

impl Undecoded {
    fn why(self) -> Why {
        match self {
            Undecoded::Base(why) => why,
            Undecoded::Payload => Why::Damaged,
        }
    }
}

/// Fills `out` from a payload that passed [`check`]. `other`: the record that it leans on, and what
/// reads that one.
pub fn decode_with(
    stored: &[u8],
    codec: Codec,
    other: Option<(&dyn BaseBytes, RecordId)>,
    reads: CacheUse,
    out: &mut [u8],
) -> Result<(), Undecoded> {
    let decoded = match codec {
        Codec::Delta => {
            let (bases, id) = other.ok_or(Undecoded::Base(Why::Damaged))?;
            let base = bases.raw(id, reads).map_err(Undecoded::Base)?;
            delta::decode(stored, &base, out)
        }
        Codec::Dictionary => {
            let (bases, id) = other.ok_or(Undecoded::Base(Why::Damaged))?;
            let found = bases.dictionary(id, reads).map_err(Undecoded::Base)?;
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
    pub reads: CacheUse,
    /// Of the records that lean on others. Without it these are not read.
    pub bases: Option<&'a dyn BaseBytes>,
}

impl Files<'_> {
    /// The table entry of a live record.
    pub fn entry(&self, ordinal: u32) -> Result<TableEntry, Why> {
        let entry = self.any_entry(ordinal)?;
        require_live(&entry)?;
        if entry.codec.is_known() { Ok(entry) } else { Err(Why::Damaged) }
    }

    /// The table entry of a record in whatever state.
    pub fn any_entry(&self, ordinal: u32) -> Result<TableEntry, Why> {
        let mut bytes = [0; ENTRY_BYTES];
        // A page has the entries of many records, which are mostly asked for one after the other.
        let reads = if self.reads == CacheUse::Uncached { CacheUse::Any } else { self.reads };
        let table = Files { reads, ..*self };
        let mut why = Why::Damaged;
        let fill = |offset, out: &mut [u8]| {
            table.fill(self.table, offset, out, &mut []).map_err(|error| why = error).ok()
        };
        let Some(offset) = table_map::offset_of(ordinal, self.seed, fill).ok_or(why)? else {
            return Ok(table_map::collected());
        };
        table.fill(self.table, offset, &mut bytes, &mut [])?;
        TableEntry::sound(&bytes, self.seed).ok_or(Why::Damaged)
    }

    /// Fills `out`, of the raw length of the record.
    pub fn read_entry(
        &self,
        entry: &TableEntry,
        ordinal: u32,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), Why> {
        let stored_length = entry.stored_length as usize;
        let mut header = [0; RECORD_HEADER_BYTES];
        if entry.codec == Codec::Raw {
            if stored_length != out.len() {
                return Err(Why::Damaged);
            }
            self.fill(self.data, entry.offset, &mut header, out)?;
            let header = self.header(&header, entry, ordinal)?;
            return check(out, entry.codec, out.len(), header.checksum).map_err(|_| Why::Damaged);
        }
        scratch.resize(stored_length.max(scratch.len()), 0);
        let stored = &mut scratch[..stored_length];
        self.fill(self.data, entry.offset, &mut header, stored)?;
        let header = self.header(&header, entry, ordinal)?;
        check(stored, entry.codec, out.len(), header.checksum).map_err(|_| Why::Damaged)?;
        let other = self.bases.zip(header.leans_on().map(RecordId));
        decode_with(stored, entry.codec, other, self.reads, out).map_err(Undecoded::why)
    }

    /// Fills `out`, of its stored length, with the payload of a record that leans on no other. The
    /// file of records is read by `blocks`, if there are.
    pub fn read_stored(
        &self,
        entry: &TableEntry,
        ordinal: u32,
        blocks: Option<&Blocks>,
        out: &mut [u8],
    ) -> Result<(), Why> {
        let mut header = [0; RECORD_HEADER_BYTES];
        let is_there = blocks.is_some_and(|blocks| blocks.read(entry.offset, &mut header, out));
        if !is_there {
            self.fill(self.data, entry.offset, &mut header, out)?;
        }
        let header = self.header(&header, entry, ordinal)?;
        let raw_length = entry.raw_length as usize;
        check(out, entry.codec, raw_length, header.checksum).map_err(|_| Why::Damaged)
    }

    /// The header of a record, which belongs to a chunk with this entry. A chunk that was repaired is
    /// a copy of what it repeats.
    fn header(
        &self,
        header: &[u8; RECORD_HEADER_BYTES],
        entry: &TableEntry,
        ordinal: u32,
    ) -> Result<RecordHeader, Why> {
        RecordHeader::of_entry(header, self.seed, entry, ordinal)
            .filter(|header| header.kind.has_bytes())
            .ok_or(Why::Damaged)
    }

    /// Reads what fills both buffers.
    fn fill(&self, fd: RawFd, offset: u64, first: &mut [u8], second: &mut [u8]) -> Result<(), Why> {
        let parts = [first, second]
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        let length: usize = parts.iter().map(|part| part.iov_len).sum();
        let offset = libc::off_t::try_from(offset).map_err(|_| Why::Damaged)?;
        let read = |flags| {
            // SAFETY: both parts are writable for their length.
            let count = unsafe { libc::preadv2(fd, parts.as_ptr(), 2, offset, flags) };
            match usize::try_from(count) {
                Ok(count) if count == length => Ok(()),
                Ok(_) => Err(Why::Damaged), // it ends before
                Err(_) => Err(Why::of(&io::Error::last_os_error())),
            }
        };
        match self.reads {
            // The cache may have the start of it only.
            CacheUse::CachedOnly => read(libc::RWF_NOWAIT).map_err(|_| Why::NotInMemory),
            CacheUse::Any => read(0),
            CacheUse::Uncached => read(RWF_DONTCACHE).or_else(|_| read(0)),
        }
    }
}

/// Fails of a record that is not live, with what it is.
pub fn require_live(entry: &TableEntry) -> Result<(), Why> {
    match entry.state {
        State::LIVE => Ok(()),
        State::MERGED => Err(Why::Merged),
        State::QUARANTINED => Err(Why::Quarantined),
        _ => Err(Why::NotLive),
    }
}
