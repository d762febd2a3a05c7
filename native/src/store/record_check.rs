//! Checks all checksums and fingerprints of records of a container in one pass.

use std::ops::Range;
use std::os::fd::RawFd;

use crate::codec::encode;
use crate::fingerprint::Algorithm;
use crate::format::codec::Codec;
use crate::format::ids::RecordId;
use crate::format::record_header::{
    RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, record_bytes,
};
use crate::format::table_entry::TableEntry;
use crate::store::bases::Bases;
use crate::store::record_reader::{BaseBytes, CacheUse, Undecoded, decode_with, with_scratch};
use crate::system::reads::fill_at;
use crate::threads::pool;

/// Records that a thread takes at once: about a MiB at the default chunk size.
const BATCH: usize = 16;

/// The result of the check of a record's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Intact,
    /// The stored bytes fail their checksum, or do not decode to the stated length.
    Payload,
    /// The fingerprint of the raw bytes is not the one in the header.
    Fingerprint,
    /// The record that it leans on cannot be read.
    Base,
}

/// A record, and the result of its check.
#[derive(Clone, Debug)]
pub struct CheckedRecord {
    pub ordinal: u32,
    /// The ordinal after it: one more, except after a run of tombstones.
    pub next_ordinal: u32,
    pub kind: RecordKind,
    pub status: Status,
    /// The entry of the redirection table that the record implies.
    pub entry: TableEntry,
}

impl CheckedRecord {
    /// A record with this header at `offset`, whose payload is not checked.
    pub fn of(header: &RecordHeader, offset: u64) -> CheckedRecord {
        CheckedRecord {
            ordinal: header.ordinal,
            next_ordinal: header.next_ordinal(),
            kind: header.kind,
            status: Status::Intact,
            entry: header.table_entry(offset),
        }
    }

    /// The bytes of the record. An implied one takes none, and is said to be at the start.
    pub fn place(&self) -> Range<u64> {
        let start = self.entry.offset;
        start..start + record_bytes(self.entry.stored_length.into())
    }
}

#[derive(Default)]
pub struct Checked {
    /// Bytes of whole records from the start of the data.
    pub consumed: usize,
    pub records: Vec<CheckedRecord>,
}

impl Checked {
    pub fn raw_bytes(&self) -> u64 {
        self.records.iter().map(|record| u64::from(record.entry.raw_length)).sum()
    }
}

/// How records are checked: the seed of their container, and the offset of the data in it.
pub struct CheckOptions<'a> {
    pub seed: u64,
    pub offset: u64,
    pub algorithm: Algorithm,
    pub threads: usize,
    /// Of the records that lean on others. Without it these do not pass.
    pub bases: Option<&'a Bases>,
}

/// Checks the consecutive records that `data` begins with, up to the first header that is not valid.
pub fn check(data: &[u8], options: &CheckOptions<'_>) -> Checked {
    let mut out = Checked::default();
    let mut payloads = Vec::new();
    while let Some(bytes) = data.get(out.consumed..).and_then(<[u8]>::first_chunk) {
        let Some(header) = RecordHeader::sound(bytes, options.seed) else { break };
        let start = out.consumed + RECORD_HEADER_BYTES;
        let stored = header.stored_length as usize;
        let end = (start + stored).next_multiple_of(RECORD_ALIGN_BYTES);
        if end > data.len() {
            break;
        }
        if let Some(before) = header.before() {
            out.records.push(CheckedRecord::of(&before, 0));
            payloads.push((before, &[][..]));
        }
        out.records.push(CheckedRecord::of(&header, options.offset + out.consumed as u64));
        payloads.push((header, &data[start..start + stored]));
        out.consumed = end;
    }
    let batches = payloads.chunks(BATCH).zip(out.records.chunks_mut(BATCH));
    pool::for_each_of(batches, options.threads, |(payloads, records)| {
        for ((header, payload), record) in payloads.iter().zip(records) {
            record.status = judge(header, payload, options.algorithm, options.bases);
        }
    });
    out
}

/// Whether a container has the record of an entry where the entry says, with all of its bytes.
pub fn is_intact(
    data: RawFd,
    ordinal: u32,
    entry: &TableEntry,
    options: &CheckOptions<'_>,
) -> bool {
    let mut bytes = vec![0; record_bytes(entry.stored_length.into()) as usize];
    if fill_at(data, entry.offset, &mut bytes).is_err() {
        return false;
    }
    // The last record: collected records before it may be implied.
    check(&bytes, options).records.last().is_some_and(|record| {
        record.status == Status::Intact
            && record.ordinal == ordinal
            && record.entry.fingerprint == entry.fingerprint
    })
}

fn judge(
    header: &RecordHeader,
    payload: &[u8],
    algorithm: Algorithm,
    bases: Option<&Bases>,
) -> Status {
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
            decode_with(payload, codec, other, CacheUse::Uncached, out)
                .map(|()| algorithm.digest(out))
        });
        match decoded {
            Ok(digest) => digest,
            Err(Undecoded::Base(_)) => return Status::Base,
            Err(Undecoded::Payload) => return Status::Payload,
        }
    };
    if digest == header.fingerprint { Status::Intact } else { Status::Fingerprint }
}
