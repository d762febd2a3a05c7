//! Cutting and fingerprinting of whole buffers.

use crate::chunker::{Chunker, Scratch};
use crate::fingerprint::{self, Algorithm, Fingerprint};
use crate::threads::pool;

/// An independent piece of a buffer: it begins at a chunk start, and with `last` it ends a file.
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

/// Chunks that a thread takes at once where a segment is too large to be one thread's.
const BATCH: usize = 8;

/// The chunks of each segment.
pub fn process(
    chunker: &Chunker,
    algorithm: Algorithm,
    data: &[u8],
    segments: &[Segment],
    threads: usize,
) -> Vec<Vec<Chunk>> {
    let total: usize = segments.iter().map(|s| s.end - s.start).sum();
    let largest = segments.iter().map(|s| s.end - s.start).max().unwrap_or(0);
    // Where whole segments balance the threads, each chunk is fingerprinted while it is in cache.
    let fused = threads <= 1 || largest <= total / (2 * threads);
    let mut out: Vec<Vec<Chunk>> = vec![Vec::new(); segments.len()];
    pool::for_each_of(segments.iter().zip(&mut out), threads, |(segment, chunks)| {
        cut_segment(chunker, data, *segment, |mut chunk| {
            if fused {
                identify(&mut chunk, algorithm, data);
            }
            chunks.push(chunk);
        });
    });
    if !fused {
        let mut all: Vec<&mut Chunk> = out.iter_mut().flatten().collect();
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

fn identify(chunk: &mut Chunk, algorithm: Algorithm, data: &[u8]) {
    let bytes = &data[chunk.start..chunk.end];
    chunk.zero = fingerprint::is_zero(bytes);
    chunk.fingerprint = algorithm.digest(bytes);
}
