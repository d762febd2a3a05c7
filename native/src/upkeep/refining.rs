//! Records that are given other payloads: each is tried as the difference to one that is alike.

use std::os::fd::RawFd;
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64;

use super::mark_set::Marks;
use super::similar::Similar;
use super::sketch::{Sketch, sketch};
use crate::codec::delta::{self, RAW_BYTES_MAX};
use crate::codec::encode::{check, decode};
use crate::fingerprint::Algorithm;
use crate::format::ids::{Checksum, Fingerprint, RecordId};
use crate::format::record_header::{CODEC_ZSTD, RECORD_HEADER_BYTES, RecordHeader};
use crate::format::table_entry::{EntryBytes, State, TableEntry};
use crate::store::bases::Bases;
use crate::store::record_reader::Reads;
use crate::system::reads::fill_at;
use crate::threads::lock::{locked, unlocked};
use crate::threads::pool;

/// Read at once.
const WINDOW_BYTES: u64 = 8 << 20;

/// The sketches of the records of a part of a table, which begins with the ordinal `first`. Those
/// that are not live, not intact, or lean on others, have none. Read past the page cache.
pub fn sketch_records(
    data: RawFd,
    entries: &[&EntryBytes],
    first: u32,
    seed: u64,
    threads: usize,
) -> Vec<Sketch> {
    let sketches: Vec<_> = entries.iter().map(|_| Mutex::new(Sketch::default())).collect();
    let wanted: Vec<(usize, TableEntry)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, bytes)| TableEntry::sound(bytes, seed).map(|entry| (at, entry)))
        .filter(|(_, entry)| {
            entry.state == State::LIVE
                && entry.codec <= CODEC_ZSTD
                && entry.raw_length as usize <= RAW_BYTES_MAX
        })
        .collect();
    let mut rest = &wanted[..];
    let mut buffer = Vec::new();
    while let Some((_, head)) = rest.first() {
        let start = head.offset;
        let is_near =
            |entry: &TableEntry| end_of(entry).is_some_and(|end| end - start <= WINDOW_BYTES);
        let later = |(_, entry): &&(usize, TableEntry)| entry.offset >= start && is_near(entry);
        let count = rest.iter().take_while(later).count().max(1);
        let (window, after) = rest.split_at(count);
        rest = after;
        let end = window.last().and_then(|(_, last)| end_of(last)).unwrap_or(start);
        let Some(length) = end.checked_sub(start).filter(|&length| length <= 2 * WINDOW_BYTES)
        else {
            continue;
        };
        buffer.resize(length as usize, 0);
        if !fill_at(data, start, &mut buffer) {
            continue;
        }
        let buffer = &buffer[..];
        pool::for_each(window.len(), threads.saturating_sub(1), |number| {
            let (at, entry) = &window[number];
            let record = &buffer[(entry.offset - start) as usize..];
            if let Some(raw) = raw_of(record, entry, first + *at as u32, seed) {
                *locked(&sketches[*at]) = sketch(&raw);
            }
        });
    }
    sketches.into_iter().map(unlocked).collect()
}

fn end_of(entry: &TableEntry) -> Option<u64> {
    entry.offset.checked_add(RECORD_HEADER_BYTES as u64 + u64::from(entry.stored_length))
}

/// The raw bytes of a record with this entry, which `bytes` begin with.
fn raw_of(bytes: &[u8], entry: &TableEntry, ordinal: u32, seed: u64) -> Option<Vec<u8>> {
    let (header, payload) = bytes.split_first_chunk()?;
    let payload = payload.get(..entry.stored_length as usize)?;
    let header = RecordHeader::sound(header, seed)?;
    if !header.agrees_with(entry, ordinal) {
        return None;
    }
    raw_bytes(payload, entry.codec, entry.raw_length as usize, header.checksum)
}

fn raw_bytes(payload: &[u8], codec: u8, raw_length: usize, checksum: Checksum) -> Option<Vec<u8>> {
    check(payload, codec, raw_length, checksum).ok()?;
    let mut raw = vec![0; raw_length];
    decode(payload, codec, &mut raw).ok()?;
    Some(raw)
}

/// A record as it is stored.
pub struct Piece<'a> {
    pub id: RecordId,
    pub codec: u8,
    pub raw_length: usize,
    pub checksum: Checksum,
    pub fingerprint: &'a Fingerprint,
    pub payload: &'a [u8],
    pub sketch: Sketch,
}

/// A new payload for one of the pieces.
pub struct Given {
    pub at: usize,
    pub base: RecordId,
    pub payload: Vec<u8>,
    pub checksum: Checksum,
}

/// How records are refined.
#[derive(Clone, Copy)]
pub struct Options {
    pub level: i32,
    /// The part of the payload that another one has to save.
    pub saving_min: f64,
    pub algorithm: Algorithm,
}

impl Options {
    /// The most bytes of a payload in the place of one of so many.
    fn stored_max(&self, stored: usize) -> usize {
        (stored as f64 * (1.0 - self.saving_min)).floor() as usize
    }
}

/// The pieces that may lean on others from now on, with their payloads. Those that stay as they are
/// stand for what is like them.
pub fn refine(
    pieces: &[Piece<'_>],
    similar: &mut Similar,
    leaned: &mut Marks,
    bases: &Bases,
    options: Options,
) -> Vec<Given> {
    let mut given = Vec::new();
    let mut out = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        if piece.codec > CODEC_ZSTD || piece.raw_length > RAW_BYTES_MAX {
            continue;
        }
        // What others lean on stays as it is.
        let base =
            if leaned.contains(piece.id) { None } else { similar.choose(piece.id, &piece.sketch) };
        let tried = base.and_then(|base| {
            let stored = try_delta(piece, base, bases, options, &mut out)?;
            Some((base, stored))
        });
        match tried {
            Some((base, payload)) if leaned.set(base, true) => {
                similar.chosen(base);
                let checksum = Checksum(xxh3_64(&payload));
                given.push(Given { at, base, payload, checksum });
            }
            _ => similar.stand(piece.id, &piece.sketch, leaned),
        }
    }
    given
}

/// The payload of a piece that leans on `base`; None where it would not save enough, or where either
/// has other bytes than those of its fingerprint.
fn try_delta(
    piece: &Piece<'_>,
    base: RecordId,
    bases: &Bases,
    options: Options,
    out: &mut Vec<u8>,
) -> Option<Vec<u8>> {
    let raw = raw_bytes(piece.payload, piece.codec, piece.raw_length, piece.checksum)?;
    let (base, fingerprint) = bases.with_fingerprint(base, Reads::Uncached)?;
    out.resize(options.stored_max(piece.payload.len()), 0);
    let stored = delta::compress(&raw, &base, out, options.level).ok()??;
    let is_right = options.algorithm.digest(&raw) == *piece.fingerprint
        && options.algorithm.digest(&base) == fingerprint;
    if !is_right {
        return None;
    }
    // What is about to take the place of the only payload is decoded once.
    let mut back = vec![0; raw.len()];
    delta::decode(&out[..stored], &base, &mut back).ok()?;
    (back == raw).then(|| out[..stored].to_vec())
}
