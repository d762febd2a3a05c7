//! Splits complete buffers into chunks, and fingerprints these.

use crate::chunker::{Chunker, Followers, KnownChunks, Scratch};
use crate::fingerprint::{self, Algorithm, Fingerprint};
use crate::threads::pool;

/// An independent piece of a buffer: it starts at a chunk start, and with `last` it ends a file.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub start: usize,
    pub end: usize,
    pub last: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    pub start: usize,
    pub end: usize,
    pub fingerprint: Fingerprint,
    pub zero: bool,
}

/// Chunks that a thread takes at once if a segment is too large for one thread.
const BATCH: usize = 8;

/// In such a segment, one chunk per this number of chunks is fingerprinted immediately. It shows
/// whether the chunk is known and has known followers.
const LOOKS: usize = 8;

/// Returns the chunks of each segment. With `followers`, the ends that known chunks suggest are
/// tried first; the chunks are the same.
pub fn process(
    chunker: &Chunker,
    algorithm: Algorithm,
    data: &[u8],
    segments: &[Segment],
    threads: usize,
    followers: Option<&Followers>,
) -> Vec<Vec<Chunk>> {
    let total: usize = segments.iter().map(|s| s.end - s.start).sum();
    let largest = segments.iter().map(|s| s.end - s.start).max().unwrap_or(0);
    // If complete segments balance the threads, each chunk is fingerprinted while it is in cache.
    let fused = threads <= 1 || largest <= total / (2 * threads);
    let mut out: Vec<Vec<Chunk>> = vec![Vec::new(); segments.len()];
    let known = followers.map(Followers::read);
    pool::for_each_of(segments.iter().zip(&mut out), threads, |(segment, chunks)| {
        if let Some(known) = &known {
            let looks = if fused { 1 } else { LOOKS };
            follow_segment(chunker, algorithm, data, *segment, known, looks, chunks);
            return;
        }
        cut_segment(chunker, data, *segment, |mut chunk| {
            if fused {
                identify(&mut chunk, algorithm, data);
            }
            chunks.push(chunk);
        });
    });
    if !fused {
        let is_left = |chunk: &&mut Chunk| chunk.fingerprint == Fingerprint::default();
        let mut all: Vec<&mut Chunk> = out.iter_mut().flatten().filter(is_left).collect();
        pool::for_each_of(all.chunks_mut(BATCH), threads, |batch| {
            for chunk in batch {
                identify(chunk, algorithm, data);
            }
        });
    }
    out
}

fn cut_segment(chunker: &Chunker, data: &[u8], segment: Segment, mut emit: impl FnMut(Chunk)) {
    let data = &data[..segment.end];
    let mut scratch = Scratch::default();
    let mut start = segment.start;
    while let Some(end) = chunker.next_cut(data, start, segment.last, &mut scratch) {
        emit(Chunk { start, end, fingerprint: Fingerprint::default(), zero: false });
        start = end;
    }
}

/// Splits a segment with the help of known chunks. One in `looks` chunks without a known
/// predecessor is fingerprinted; the other chunks get no fingerprint.
fn follow_segment(
    chunker: &Chunker,
    algorithm: Algorithm,
    data: &[u8],
    segment: Segment,
    known: &KnownChunks,
    looks: usize,
    chunks: &mut Vec<Chunk>,
) {
    let data = &data[..segment.end];
    let cut = |start, end| Chunk { start, end, fingerprint: Fingerprint::default(), zero: false };
    let identified = |start, end| {
        let mut chunk = cut(start, end);
        identify(&mut chunk, algorithm, data);
        chunk
    };
    let mut unknown = 0;
    let mut scratch = Scratch::default();
    let mut start = segment.start;
    let mut before: Option<usize> = None;
    loop {
        let lengths = before.map_or([0; 2], |place| known.lengths_after(place));
        let suggested = lengths.into_iter().find_map(|length| {
            let end = start + length;
            let is_cut = length > 0 && chunker.ends_at_full_match(data, start, end);
            let chunk = is_cut.then(|| identified(start, end))?;
            known.place(&chunk.fingerprint).map(|place| (chunk, Some(place)))
        });
        let (chunk, place) = match suggested {
            Some(found) => found,
            None => {
                let Some(end) = chunker.next_cut(data, start, segment.last, &mut scratch) else {
                    return;
                };
                let is_look = unknown % looks == 0;
                let chunk = if is_look { identified(start, end) } else { cut(start, end) };
                let place = if is_look { known.place(&chunk.fingerprint) } else { None };
                (chunk, place)
            }
        };
        unknown = if place.is_some() { 0 } else { unknown + 1 };
        (start, before) = (chunk.end, place);
        chunks.push(chunk);
    }
}

fn identify(chunk: &mut Chunk, algorithm: Algorithm, data: &[u8]) {
    let bytes = &data[chunk.start..chunk.end];
    chunk.zero = fingerprint::is_zero(bytes);
    chunk.fingerprint = algorithm.digest(bytes);
}
