//! Verified chunks in memory, for all readers of a mount.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};

use crate::format::ids::{FingerprintCheck, RecordId};
use crate::store::bases::Bases;
use crate::store::bounded::Bounded;
use crate::threads::lock::{locked, unlocked, woken};
use crate::threads::pool;

/// The bytes of a chunk, verified.
pub type Chunk = Arc<Vec<u8>>;

/// A chunk as a recipe names it: an id can come to name other bytes where a part of the store was
/// brought back from an older copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkKey {
    pub id: RecordId,
    pub length: u32,
    pub check: FingerprintCheck,
}

struct State {
    chunks: Bounded<ChunkKey, Chunk>,
    /// Those that a thread is reading: others wait for it.
    loading: HashSet<ChunkKey>,
    hits: u64,
    misses: u64,
}

/// A cache of a number of bytes. No lock of it is held while anything is read.
pub struct ChunkCache {
    state: Mutex<State>,
    loaded: Condvar,
    pub bytes_max: usize,
}

impl ChunkCache {
    pub fn new(bytes_max: usize) -> ChunkCache {
        let loading = HashSet::new();
        let state = State { chunks: Bounded::new(bytes_max), loading, hits: 0, misses: 0 };
        ChunkCache { state: Mutex::new(state), loaded: Condvar::new(), bytes_max }
    }

    pub fn get(&self, key: &ChunkKey) -> Option<Chunk> {
        let mut state = locked(&self.state);
        let found = state.chunks.get(key)?;
        state.hits += 1;
        Some(found)
    }

    pub fn has(&self, key: &ChunkKey) -> bool {
        locked(&self.state).chunks.has(key)
    }

    /// Keeps a chunk, which the caller has verified.
    pub fn keep(&self, key: ChunkKey, chunk: &Chunk) {
        let mut state = locked(&self.state);
        state.misses += 1;
        let gone = state.chunks.keep(key, Arc::clone(chunk), chunk.len());
        drop(state);
        drop(gone);
    }

    pub fn bytes(&self) -> usize {
        locked(&self.state).chunks.bytes()
    }

    /// How often a chunk was there, and how often it had to be read.
    pub fn uses(&self) -> (u64, u64) {
        let state = locked(&self.state);
        (state.hits, state.misses)
    }

    /// The chunks, from memory or from `store`, which may mean to wait for the disk. None of one that
    /// is not as expected. Up to `helpers` threads more decode what is in the page cache.
    pub fn load(&self, keys: &[ChunkKey], store: &Bases, helpers: usize) -> Vec<Option<Chunk>> {
        let (mut found, mine) = self.claim(keys);
        let claim = Claim { cache: self, keys: mine.iter().map(|&at| keys[at]).collect() };
        for (&at, chunk) in mine.iter().zip(self.read(&claim.keys, store, helpers)) {
            found[at] = chunk;
        }
        drop(claim);
        for (key, slot) in keys.iter().zip(&mut found) {
            if slot.is_none() {
                // Another thread was reading it, or it cannot be read.
                *slot = self.wait_for(key).or_else(|| self.read_one(key, store));
            }
        }
        found
    }

    /// What is there, and the places of those that the caller is to read now.
    fn claim(&self, keys: &[ChunkKey]) -> (Vec<Option<Chunk>>, Vec<usize>) {
        let mut state = locked(&self.state);
        let mut mine = Vec::new();
        let found = keys.iter().enumerate().map(|(at, key)| {
            let found = state.chunks.get(key);
            match found {
                Some(_) => state.hits += 1,
                None if state.loading.insert(*key) => mine.push(at),
                None => {}
            }
            found
        });
        (found.collect(), mine)
    }

    fn read(&self, keys: &[ChunkKey], store: &Bases, helpers: usize) -> Vec<Option<Chunk>> {
        let slots: Vec<Mutex<Option<Chunk>>> = keys.iter().map(|_| Mutex::default()).collect();
        pool::for_each(keys.len(), helpers, |at| {
            let key = &keys[at];
            let mut raw = vec![0; key.length as usize];
            if store.fill_from_memory(key.id, key.check, &mut raw).is_some() {
                *locked(&slots[at]) = Some(self.kept(*key, raw));
            }
        });
        let read = |(key, slot): (&ChunkKey, Mutex<Option<Chunk>>)| {
            unlocked(slot).or_else(|| self.read_one(key, store))
        };
        keys.iter().zip(slots).map(read).collect()
    }

    fn read_one(&self, key: &ChunkKey, store: &Bases) -> Option<Chunk> {
        let mut raw = vec![0; key.length as usize];
        store.fill(key.id, key.check, &mut raw)?;
        Some(self.kept(*key, raw))
    }

    fn kept(&self, key: ChunkKey, raw: Vec<u8>) -> Chunk {
        let chunk = Arc::new(raw);
        self.keep(key, &chunk);
        chunk
    }

    /// Waits until no thread reads a chunk. None where it is not there then.
    fn wait_for(&self, key: &ChunkKey) -> Option<Chunk> {
        let mut state = locked(&self.state);
        while state.loading.contains(key) {
            state = woken(&self.loaded, state);
        }
        state.chunks.get(key)
    }
}

/// The chunks that a thread has said it reads.
struct Claim<'a> {
    cache: &'a ChunkCache,
    keys: Vec<ChunkKey>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let mut state = locked(&self.cache.state);
        for key in &self.keys {
            state.loading.remove(key);
        }
        drop(state);
        self.cache.loaded.notify_all();
    }
}
