//! The chunks that followed known chunks in their files: their ends are tried before any other end
//! (RapidCDC, seed 000, chapter 3).
//!
//! A redirection table has chunks in the order of their files. So the entry after a known chunk
//! suggests the length and the fingerprint of the next chunk. If the next chunk was a duplicate
//! when the table was written, the hint of the entry has its length. Such an end is used if the
//! window before it is a full match, and the chunk up to it is known. Then it is also the cut of
//! the plain definition: the known chunk ended there, so no earlier position from its least length
//! on is a full match. A chunk that was cut with other parameters can only cause missed duplicates.

use std::sync::{RwLock, RwLockReadGuard};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::format::ids::{Fingerprint, hash_of};
use crate::threads::lock::{read, write};

/// Maximum of chunks in memory: 6 MB. Then all are dropped, and the next ones are added.
const CHUNKS_MAX: usize = 1 << 17;

/// A chunk, its length, and the length of the next chunk in its file, or 0. The length 0 means a
/// gap between two pages of a table.
#[derive(Clone, Copy)]
pub struct KnownChunk {
    pub fingerprint: Fingerprint,
    pub length: u32,
    pub hint: u32,
}

#[derive(Default)]
pub struct KnownChunks {
    chunks: Vec<KnownChunk>,
    /// Places in `chunks`, by fingerprint.
    places: HashTable<u32>,
}

/// Known chunks and their followers. Look-ups add to them, and all threads that cut read them.
#[derive(Default)]
pub struct Followers(RwLock<KnownChunks>);

impl Followers {
    /// Add adjacent chunks.
    pub fn add(&self, page: impl Iterator<Item = KnownChunk>) {
        let mut known = write(&self.0);
        if known.chunks.len() >= CHUNKS_MAX {
            *known = KnownChunks::default();
        }
        page.for_each(|chunk| known.push(chunk));
        known.push(KnownChunk { fingerprint: Fingerprint::default(), length: 0, hint: 0 });
    }

    pub fn read(&self) -> RwLockReadGuard<'_, KnownChunks> {
        read(&self.0)
    }

    /// Bytes of RAM.
    pub fn bytes(&self) -> usize {
        let known = self.read();
        known.chunks.capacity() * size_of::<KnownChunk>() + known.places.allocation_size()
    }
}

impl KnownChunks {
    fn push(&mut self, chunk: KnownChunk) {
        let place = self.chunks.len() as u32;
        self.chunks.push(chunk);
        if chunk.length == 0 {
            return;
        }
        let KnownChunks { chunks, places } = self;
        let is_same = |&other: &u32| chunks[other as usize].fingerprint == chunk.fingerprint;
        let hash = |&other: &u32| hash_of(&chunks[other as usize].fingerprint);
        match places.entry(hash_of(&chunk.fingerprint), is_same, hash) {
            Entry::Occupied(mut other) => *other.get_mut() = place,
            Entry::Vacant(free) => {
                free.insert(place);
            }
        }
    }

    /// The place of a chunk, if it is known.
    pub fn place(&self, fingerprint: &Fingerprint) -> Option<usize> {
        let is_it = |&place: &u32| self.chunks[place as usize].fingerprint == *fingerprint;
        self.places.find(hash_of(fingerprint), is_it).map(|&place| place as usize)
    }

    /// Possible lengths of the chunk after a known one, the more probable first, and 0 for none.
    pub fn lengths_after(&self, place: usize) -> [usize; 2] {
        let next = self.chunks.get(place + 1).map_or(0, |next| next.length);
        let hint = self.chunks[place].hint;
        [next as usize, if hint == next { 0 } else { hint as usize }]
    }
}
