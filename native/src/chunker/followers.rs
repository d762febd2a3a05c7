//! The chunks that followed known ones in their files: ends that are tried before any other
//! (RapidCDC, seed 000, chapter 3).
//!
//! A redirection table has chunks in the order of their files. So the entry after that of a known
//! chunk says how long the next one may be, and what it is; where the next one was a duplicate when
//! the table was written, the entry's own hint says how long. Such an end is taken if the window
//! before it is a full match, and the chunk up to it is known. Then it is the cut of the plain
//! definition: the known chunk was cut there, so no earlier place from its least length on is a full
//! match. Where a known chunk was cut with other parameters, duplicates may be missed, and no more.

use std::sync::{RwLock, RwLockReadGuard};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::format::ids::{Fingerprint, hash_of};
use crate::threads::lock::{read, write};

/// Chunks that are remembered at most: 6 MB. Then all are forgotten, and those that are met next
/// are remembered.
const CHUNKS_MAX: usize = 1 << 17;

/// A chunk, its length, and that of the one after it in its file, or 0. No length: a gap between
/// two pages of a table.
#[derive(Clone, Copy)]
pub struct KnownChunk {
    pub fingerprint: Fingerprint,
    pub length: u32,
    pub hint: u32,
}

#[derive(Default)]
pub struct Known {
    chunks: Vec<KnownChunk>,
    /// Places in `chunks`, by fingerprint.
    places: HashTable<u32>,
}

/// Known chunks and their followers, filled by look-ups and asked by all threads that cut.
#[derive(Default)]
pub struct Followers(RwLock<Known>);

impl Followers {
    /// Take in chunks that are next to each other.
    pub fn add(&self, page: impl Iterator<Item = KnownChunk>) {
        let mut known = write(&self.0);
        if known.chunks.len() >= CHUNKS_MAX {
            *known = Known::default();
        }
        page.for_each(|chunk| known.push(chunk));
        known.push(KnownChunk { fingerprint: Fingerprint::default(), length: 0, hint: 0 });
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Known> {
        read(&self.0)
    }

    /// RAM that it takes.
    pub fn bytes(&self) -> usize {
        let known = self.read();
        known.chunks.capacity() * size_of::<KnownChunk>() + known.places.allocation_size()
    }
}

impl Known {
    fn push(&mut self, chunk: KnownChunk) {
        let place = self.chunks.len() as u32;
        self.chunks.push(chunk);
        if chunk.length == 0 {
            return;
        }
        let Known { chunks, places } = self;
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

    /// Lengths that the chunk after a known one may have, the likelier first, and 0 for none.
    pub fn lengths_after(&self, place: usize) -> [usize; 2] {
        let next = self.chunks.get(place + 1).map_or(0, |next| next.length);
        let hint = self.chunks[place].hint;
        [next as usize, if hint == next { 0 } else { hint as usize }]
    }
}
