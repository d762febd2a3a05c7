//! Records of a container as they were read: every checksum, and every fingerprint, in one pass.
//!
//! `dedupd/format` says the same record by record; a test compares the two.

use std::cell::RefCell;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::codec::encode;
use crate::fingerprint::Algorithm;
use crate::format::bytes::{u32_at, u64_at};
use crate::format::record_header::{
    KIND_FORWARD, KIND_TOMBSTONE, RECORD_HEADER_BYTES, RECORD_MAGIC,
};
use crate::format::table_entry::write_entry;
use crate::threads::pool;

const ALIGN_BYTES: usize = 8;
/// Records that a thread takes at once: about a MiB at the default chunk size.
const BATCH: usize = 16;

/// What a record's payload turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Intact = 0,
    /// The stored bytes fail their checksum, or do not decode to the stated length.
    Payload = 1,
    /// The raw bytes have another fingerprint than the header says.
    Fingerprint = 2,
}

#[derive(Default)]
pub struct Checked {
    /// Bytes of whole records from the start of the data.
    pub consumed: usize,
    /// Whether what follows them is no valid header (and not just the end of the data).
    pub is_lost: bool,
    pub ordinals: Vec<u32>,
    /// The ordinal behind each record: one more, except after a run of tombstones.
    pub next_ordinals: Vec<u32>,
    pub kinds: Vec<u8>,
    pub statuses: Vec<u8>,
    /// The entries of the redirection table that the records imply, 64 bytes each.
    pub entries: Vec<u8>,
    pub raw_bytes: u64,
}

/// How the records are to be read: the container's seed, where in it the data lies, and how.
pub struct Place {
    pub seed: u64,
    pub offset: u64,
    pub algorithm: Algorithm,
    pub threads: usize,
}

struct Found<'a> {
    kind: u8,
    codec: u8,
    raw_length: usize,
    fingerprint: &'a [u8],
    checksum: u64,
    payload: &'a [u8],
}

/// Checks the consecutive records that `data` begins with.
pub fn check(data: &[u8], place: &Place) -> Checked {
    let mut out = Checked::default();
    let mut found = Vec::new();
    while let Some(header) = data.get(out.consumed..out.consumed + RECORD_HEADER_BYTES) {
        let body = &header[..RECORD_HEADER_BYTES - 8];
        let expected = u64_at(header, RECORD_HEADER_BYTES - 8);
        if u32_at(body, 0) != RECORD_MAGIC || xxh3_64_with_seed(body, place.seed) != expected {
            out.is_lost = true;
            break;
        }
        let start = out.consumed + RECORD_HEADER_BYTES;
        let stored = u32_at(body, 16) as usize;
        let end = (start + stored).next_multiple_of(ALIGN_BYTES);
        if end > data.len() {
            break;
        }
        let ordinal = u32_at(body, 4);
        let run = if body[8] == KIND_TOMBSTONE { u64_at(body, 56).max(1) } else { 1 };
        out.ordinals.push(ordinal);
        out.next_ordinals.push(ordinal.saturating_add(u32::try_from(run).unwrap_or(u32::MAX)));
        out.kinds.push(body[8]);
        write_entry(&mut out.entries, body, place.offset + out.consumed as u64, place.seed);
        found.push(Found {
            kind: body[8],
            codec: body[9],
            raw_length: u32_at(body, 12) as usize,
            fingerprint: &body[24..56],
            checksum: u64_at(body, 64),
            payload: &data[start..start + stored],
        });
        out.raw_bytes += u64::from(u32_at(body, 12));
        out.consumed = end;
    }
    out.statuses = vec![Status::Intact as u8; found.len()];
    let batches = found.chunks(BATCH).zip(out.statuses.chunks_mut(BATCH));
    pool::for_each_of(batches, place.threads, |(found, statuses)| {
        for (record, status) in found.iter().zip(statuses) {
            *status = judge(record, place.algorithm) as u8;
        }
    });
    out
}

thread_local! {
    // Decompressed and forgotten: one buffer per thread, of the longest record it has seen.
    static RAW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn judge(record: &Found<'_>, algorithm: Algorithm) -> Status {
    if record.kind == KIND_FORWARD || record.kind == KIND_TOMBSTONE {
        return Status::Intact;
    }
    let (payload, codec) = (record.payload, record.codec);
    if codec > encode::CODEC_ZSTD
        || encode::check(payload, codec, record.raw_length, record.checksum).is_err()
    {
        return Status::Payload;
    }
    let digest = if codec == encode::CODEC_RAW {
        algorithm.digest(payload)
    } else {
        let decoded = RAW.with_borrow_mut(|raw| {
            raw.resize(record.raw_length.max(raw.len()), 0);
            let out = &mut raw[..record.raw_length];
            encode::decode(payload, codec, out).map(|()| algorithm.digest(out))
        });
        match decoded {
            Ok(digest) => digest,
            Err(_) => return Status::Payload,
        }
    };
    if digest == record.fingerprint { Status::Intact } else { Status::Fingerprint }
}
