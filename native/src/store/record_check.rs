//! Checks all checksums and fingerprints of records of a container in one pass.
//!
//! `dedupd_core/format` does the same record by record in Python; a test compares the two.

use crate::codec::encode;
use crate::fingerprint::Algorithm;
use crate::format::codec::Codec;
use crate::format::ids::RecordId;
use crate::format::record_header::{RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use crate::store::bases::Bases;
use crate::store::record_reader::{BaseBytes, Reads, Undecoded, decode_with, with_scratch};
use crate::threads::pool;

/// Records that a thread takes at once: about a MiB at the default chunk size.
const BATCH: usize = 16;

/// The result of the check of a record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Intact = 0,
    /// The stored bytes fail their checksum, or do not decode to the stated length.
    Payload = 1,
    /// The fingerprint of the raw bytes is not the one in the header.
    Fingerprint = 2,
    /// The record that it leans on cannot be read.
    Base = 3,
}

#[derive(Default)]
pub struct Checked {
    /// Bytes of whole records from the start of the data.
    pub consumed: usize,
    /// Whether the bytes after them are no valid header. False at the end of the data.
    pub is_lost: bool,
    pub ordinals: Vec<u32>,
    /// The ordinal after each record: one more, except after a run of tombstones.
    pub next_ordinals: Vec<u32>,
    pub kinds: Vec<u8>,
    pub statuses: Vec<u8>,
    /// The entries of the redirection table that the records imply, 64 bytes each.
    pub entries: Vec<u8>,
    pub raw_bytes: u64,
}

impl Checked {
    fn enter(&mut self, header: &RecordHeader, offset: u64, seed: u64) {
        self.ordinals.push(header.ordinal);
        self.next_ordinals.push(header.next_ordinal());
        self.kinds.push(header.kind.0);
        self.entries.extend_from_slice(&header.table_entry(offset).to_bytes(seed));
        self.raw_bytes += u64::from(header.raw_length);
    }
}

/// The place of the data in its container, the seed of that, and how to check.
pub struct Place<'a> {
    pub seed: u64,
    pub offset: u64,
    pub algorithm: Algorithm,
    pub threads: usize,
    /// Of the records that lean on others. Without it these do not pass.
    pub bases: Option<&'a Bases>,
}

struct Found<'a> {
    header: RecordHeader,
    payload: &'a [u8],
}

/// Checks the consecutive records that `data` begins with.
pub fn check(data: &[u8], place: &Place<'_>) -> Checked {
    let mut out = Checked::default();
    let mut found = Vec::new();
    while let Some(bytes) = data.get(out.consumed..).and_then(<[u8]>::first_chunk) {
        let Some(header) = RecordHeader::sound(bytes, place.seed) else {
            out.is_lost = true;
            break;
        };
        let start = out.consumed + RECORD_HEADER_BYTES;
        let stored = header.stored_length as usize;
        let end = (start + stored).next_multiple_of(RECORD_ALIGN_BYTES);
        if end > data.len() {
            break;
        }
        let offset = place.offset + out.consumed as u64;
        if let Some(header) = header.before() {
            out.enter(&header, 0, place.seed);
            found.push(Found { header, payload: &[] });
        }
        out.enter(&header, offset, place.seed);
        found.push(Found { header, payload: &data[start..start + stored] });
        out.consumed = end;
    }
    out.statuses = vec![Status::Intact as u8; found.len()];
    let batches = found.chunks(BATCH).zip(out.statuses.chunks_mut(BATCH));
    pool::for_each_of(batches, place.threads, |(found, statuses)| {
        for (record, status) in found.iter().zip(statuses) {
            *status = judge(record, place.algorithm, place.bases) as u8;
        }
    });
    out
}

fn judge(record: &Found<'_>, algorithm: Algorithm, bases: Option<&Bases>) -> Status {
    let Found { header, payload } = record;
    if !header.kind.has_bytes() {
        return Status::Intact;
    }
    let (codec, raw_length) = (header.codec, header.raw_length as usize);
    if encode::check(payload, codec, raw_length, header.checksum).is_err() {
        return Status::Payload;
    }
    let digest = if codec == Codec::Raw {
        algorithm.digest(payload)
    } else {
        let bases = bases.map(|bases| bases as &dyn BaseBytes);
        let other = bases.zip(header.leans_on().map(RecordId));
        let decoded = with_scratch(|raw| {
            raw.resize(raw_length.max(raw.len()), 0);
            let out = &mut raw[..raw_length];
            decode_with(payload, codec, other, Reads::Uncached, out).map(|()| algorithm.digest(out))
        });
        match decoded {
            Ok(digest) => digest,
            Err(Undecoded::Base(_)) => return Status::Base,
            Err(Undecoded::Payload) => return Status::Payload,
        }
    };
    if digest == header.fingerprint { Status::Intact } else { Status::Fingerprint }
}
