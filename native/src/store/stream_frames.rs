//! Chunks as frames of a stream, with the payloads of their records as they are stored. A payload
//! that leans on another record is decoded, and compressed alone.

use std::sync::Mutex;

use crate::codec::encode;
use crate::fingerprint::Algorithm;
use crate::format::codec::Codec;
use crate::format::ids::{ChunkKey, Fingerprint};
use crate::format::record_header::RECORD_HEADER_BYTES;
use crate::format::stream::{CHUNK, HEADER_BYTES, Head, write_header};
use crate::store::bases::{Bases, Located};
use crate::store::blocks_ahead::{Blocks, BlocksAhead};
use crate::store::record_reader::CacheUse;
use crate::store::why::{Unreadable, Why};
use crate::threads::lock::locked;
use crate::threads::pool;

const FINGERPRINT_BYTES: usize = size_of::<Fingerprint>();

/// Where frames are to go in a stream: the number of the first one, and the stream's seed.
#[derive(Clone, Copy)]
pub struct FramePosition {
    pub sequence: u32,
    pub seed: u64,
}

/// The payload of a frame.
pub enum Payload {
    /// That of a record, which is still to be read.
    Stored(Located),
    Made(Vec<u8>),
}

/// A chunk to be framed.
pub struct Chunk {
    pub fingerprint: Fingerprint,
    pub raw_length: u32,
    pub codec: Codec,
    pub payload: Payload,
}

/// The first of some chunks, up to the first unreadable chunk.
#[derive(Default)]
pub struct Chunks {
    pub chunks: Vec<Chunk>,
    pub unreadable: Option<Unreadable>,
    blocks: Option<Blocks>,
}

impl Chunks {
    pub fn of(wanted: &[ChunkKey], found: Vec<Result<Chunk, Why>>) -> Chunks {
        let mut chunks = Chunks::default();
        for (key, found) in wanted.iter().zip(found) {
            match found {
                Ok(chunk) => chunks.chunks.push(chunk),
                Err(why) => {
                    chunks.unreadable = Some(Unreadable::chunk(*key, why));
                    break;
                }
            }
        }
        chunks
    }

    /// Chunks in containers. Blocks are read ahead where the chunks take most of what lies between
    /// the first and the last of them, and more are likely to follow.
    pub fn in_containers(
        bases: &Bases,
        wanted: &[ChunkKey],
        ahead: &BlocksAhead,
        threads: usize,
    ) -> Chunks {
        let helpers = threads.saturating_sub(1);
        let found = pool::map(wanted.len(), helpers, |at| chunk_in(bases, &wanted[at]));
        let mut chunks = Chunks::of(wanted, found);
        chunks.blocks = chunks.blocks(ahead);
        chunks
    }

    fn blocks(&self, ahead: &BlocksAhead) -> Option<Blocks> {
        let stored = || self.chunks.iter().filter_map(Chunk::stored);
        let first = stored().next()?;
        let place = |located: &Located| {
            let start = located.entry.offset;
            let length = RECORD_HEADER_BYTES as u64 + u64::from(located.entry.stored_length);
            start..start.saturating_add(length)
        };
        let in_first = || stored().filter(|one| one.number() == first.number()).map(place);
        let start = in_first().map(|one| one.start).min()?;
        let end = in_first().map(|one| one.end).max()?;
        let are_close = end - start <= 2 * in_first().map(|one| one.end - one.start).sum::<u64>();
        ahead.get(first.number(), first.data(), &(start..end), are_close)
    }

    pub fn frame_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::frame_bytes).sum()
    }

    /// Fills `out`, of the length of all frames, on up to `threads` threads. Keeps the chunks before
    /// the first unreadable chunk.
    pub fn write(
        &mut self,
        wanted: &[ChunkKey],
        place: FramePosition,
        mut out: &mut [u8],
        threads: usize,
    ) {
        let mut slots = Vec::with_capacity(self.chunks.len());
        for chunk in &self.chunks {
            let (frame, rest) = out.split_at_mut(chunk.frame_bytes());
            slots.push(Mutex::new(frame));
            out = rest;
        }
        let written = pool::map(slots.len(), threads.saturating_sub(1), |at| {
            let frame = &mut *locked(&slots[at]);
            self.chunks[at].write(self.blocks.as_ref(), place, at, frame)
        });
        for (at, result) in written.into_iter().enumerate() {
            if let Err(why) = result {
                self.unreadable = Some(Unreadable::chunk(wanted[at], why));
                self.chunks.truncate(at);
                return;
            }
        }
    }
}

impl Chunk {
    fn stored(&self) -> Option<&Located> {
        match &self.payload {
            Payload::Stored(located) => Some(located),
            Payload::Made(_) => None,
        }
    }

    fn frame_bytes(&self) -> usize {
        let payload_bytes = match &self.payload {
            Payload::Stored(located) => located.entry.stored_length as usize,
            Payload::Made(payload) => payload.len(),
        };
        HEADER_BYTES + FINGERPRINT_BYTES + payload_bytes
    }

    fn write(
        &self,
        blocks: Option<&Blocks>,
        place: FramePosition,
        at: usize,
        frame: &mut [u8],
    ) -> Result<(), Why> {
        let (fingerprint, out) = frame[HEADER_BYTES..].split_at_mut(FINGERPRINT_BYTES);
        fingerprint.copy_from_slice(&self.fingerprint);
        match &self.payload {
            Payload::Stored(located) => located.read_stored(blocks, out)?,
            Payload::Made(payload) => out.copy_from_slice(payload),
        }
        let sequence = u32::try_from(at).ok().and_then(|at| place.sequence.checked_add(at));
        let sequence = sequence.ok_or(Why::TooLong)?;
        let Chunk { codec, raw_length, .. } = *self;
        write_header(frame, Head { kind: CHUNK, codec, sequence, raw_length }, place.seed)
            .ok_or(Why::TooLong)
    }
}

fn chunk_in(bases: &Bases, key: &ChunkKey) -> Result<Chunk, Why> {
    let located = bases.locate(key)?;
    let (fingerprint, raw_length) = (located.entry.fingerprint, located.entry.raw_length);
    if located.entry.codec.stands_alone() {
        let codec = located.entry.codec;
        return Ok(Chunk { fingerprint, raw_length, codec, payload: Payload::Stored(located) });
    }
    let mut raw = vec![0; raw_length as usize];
    located.read(bases, CacheUse::Any, &mut raw)?;
    let algorithms = [Algorithm::Blake3, Algorithm::Sha256];
    if !algorithms.iter().any(|algorithm| algorithm.digest(&raw) == fingerprint) {
        return Err(Why::Damaged);
    }
    let (codec, payload) = encode::alone(&raw).map_err(|_| Why::Damaged)?;
    Ok(Chunk { fingerprint, raw_length, codec, payload: Payload::Made(payload) })
}
