//! Finds the new chunks of a buffer, and the ids of all chunks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::fingerprint::Fingerprint;
use crate::ingest::chunks::Chunk;

/// The id that stands for zeros.
const HOLE: u64 = 0;

/// New chunks of one kind: to be compressed, or to be stored as they are.
#[derive(Default)]
pub struct New {
    pub chunks: Vec<Chunk>,
    /// The length of the chunk that follows each chunk in its file, or 0.
    pub hints: Vec<u32>,
}

#[derive(Clone, Copy)]
pub(super) enum Place {
    Known(u64),
    New { group: usize, at: u64 },
}

/// The chunks of a buffer. `new` has the new chunks to be compressed, and those stored as they are.
#[derive(Default)]
pub struct Placed {
    pub new: [New; 2],
    /// Bytes of chunks that the index knows, or that occur earlier in the same buffer.
    pub duplicate_bytes: usize,
    pub zero_bytes: usize,
    pub(super) places: Vec<Place>,
    /// The number of chunks in each segment.
    pub(super) counts: Vec<usize>,
    /// The length of each chunk, 0 for zeros.
    pub(super) solid: Vec<u32>,
}

/// Classifies the chunks of each segment. `known` has the id of each chunk that the index knows,
/// and 0 for other chunks; `as_is` has the segments whose new chunks are not compressed.
pub fn place(found: &[Vec<Chunk>], known: &[u64], as_is: &[bool]) -> Placed {
    let mut placed = Placed::default();
    let mut met: HashMap<Fingerprint, Place> = HashMap::new();
    let mut known = known.iter();
    for (chunks, &as_is) in found.iter().zip(as_is) {
        placed.counts.push(chunks.len());
        for ((at, chunk), &id) in chunks.iter().enumerate().zip(&mut known) {
            let hint = chunks.get(at + 1).map_or(0, |next| (next.end - next.start) as u32);
            let place = placed.place_of(chunk, id, hint, as_is.into(), &mut met);
            placed.places.push(place);
            placed.solid.push(if chunk.zero { 0 } else { (chunk.end - chunk.start) as u32 });
        }
    }
    placed
}

impl Placed {
    fn place_of(
        &mut self,
        chunk: &Chunk,
        id: u64,
        hint: u32,
        group: usize,
        met: &mut HashMap<Fingerprint, Place>,
    ) -> Place {
        let length = chunk.end - chunk.start;
        if chunk.zero {
            self.zero_bytes += length;
            return Place::Known(HOLE);
        }
        if id != 0 {
            self.duplicate_bytes += length;
            return Place::Known(id);
        }
        match met.entry(chunk.fingerprint) {
            Entry::Occupied(before) => {
                self.duplicate_bytes += length;
                *before.get()
            }
            Entry::Vacant(first) => {
                let new = &mut self.new[group];
                let at = new.chunks.len() as u64;
                new.chunks.push(*chunk);
                new.hints.push(hint);
                *first.insert(Place::New { group, at })
            }
        }
    }

    /// Returns the id of each chunk; the ids of each kind of new chunks start with one of `firsts`.
    pub fn ids(&self, firsts: [u64; 2]) -> impl Iterator<Item = u64> {
        self.places.iter().map(move |place| match place {
            Place::Known(id) => *id,
            Place::New { group, at } => firsts[*group] + at,
        })
    }
}
