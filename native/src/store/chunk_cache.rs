//! Verified chunks in memory, for all readers of a mount.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};

use crate::format::ids::ChunkKey;
use crate::store::bounded::Bounded;
use crate::store::why::Why;
use crate::threads::lock::{locked, unlocked, woken};

/// The bytes of a chunk, verified.
pub type Chunk = Arc<Vec<u8>>;

/// A chunk that was asked for.
pub type Loaded = Result<Chunk, Why>;

/// Where chunks are read from.
pub trait ChunkSource {
    /// Gives every chunk by its place as soon as it is read, or the reason why it cannot be read. May
    /// wait.
    fn read(&self, keys: &[ChunkKey], give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync));
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

    /// A chunk from memory, decoded by `decode` now if it has to be. Waits neither for the disk nor for a
    /// thread that reads it.
    pub fn at_hand(
        &self,
        key: &ChunkKey,
        decode: impl FnOnce(&mut [u8]) -> Result<(), Why>,
    ) -> Result<Chunk, Why> {
        {
            let mut state = locked(&self.state);
            if let Some(found) = state.chunks.get(key) {
                state.hits += 1;
                return Ok(found);
            }
            if state.loading.contains(key) {
                return Err(Why::NotInMemory);
            }
        }
        let mut raw = vec![0; key.length as usize];
        decode(&mut raw)?;
        let chunk = Arc::new(raw);
        self.keep(*key, &chunk);
        Ok(chunk)
    }

    pub fn has(&self, key: &ChunkKey) -> bool {
        locked(&self.state).chunks.has(key)
    }

    /// Keeps a chunk, which the caller has verified. Whoever waits for it goes on.
    pub fn keep(&self, key: ChunkKey, chunk: &Chunk) {
        let mut state = locked(&self.state);
        state.misses += 1;
        let gone = state.chunks.keep(key, Arc::clone(chunk), chunk.len());
        let was_claimed = state.loading.remove(&key);
        drop(state);
        drop(gone);
        if was_claimed {
            self.loaded.notify_all();
        }
    }

    pub fn bytes(&self) -> usize {
        locked(&self.state).chunks.bytes()
    }

    /// How often a chunk was there, and how often it had to be read.
    pub fn uses(&self) -> (u64, u64) {
        let state = locked(&self.state);
        (state.hits, state.misses)
    }

    /// The chunks, from memory or from `source`.
    pub fn load(&self, keys: &[ChunkKey], source: &dyn ChunkSource) -> Vec<Loaded> {
        let (mut found, mine) = self.claim(keys);
        let claim = Claim { cache: self, keys: mine.iter().map(|&at| keys[at]).collect() };
        let read = self.read(&claim.keys, source);
        drop(claim);
        for (&at, chunk) in mine.iter().zip(read) {
            found[at] = chunk;
        }
        let mut mine = mine.into_iter().peekable();
        for (at, (key, slot)) in keys.iter().zip(&mut found).enumerate() {
            let is_mine = mine.next_if_eq(&at).is_some();
            if slot.is_err() && !is_mine {
                // Another thread was reading it; perhaps it could not.
                *slot = match self.wait_for(key) {
                    Some(chunk) => Ok(chunk),
                    None => self.read(&[*key], source).remove(0),
                };
            }
        }
        found
    }

    /// What is there, and the places of those that the caller is to read now.
    fn claim(&self, keys: &[ChunkKey]) -> (Vec<Loaded>, Vec<usize>) {
        let mut state = locked(&self.state);
        let mut mine = Vec::new();
        let found = keys.iter().enumerate().map(|(at, key)| {
            let found = state.chunks.get(key);
            match found {
                Some(_) => state.hits += 1,
                None if state.loading.insert(*key) => mine.push(at),
                None => {}
            }
            found.ok_or(Why::NotInMemory)
        });
        (found.collect(), mine)
    }

    fn read(&self, keys: &[ChunkKey], source: &dyn ChunkSource) -> Vec<Loaded> {
        let slots: Vec<Mutex<Loaded>> =
            keys.iter().map(|_| Mutex::new(Err(Why::NotInMemory))).collect();
        if !keys.is_empty() {
            source.read(keys, &|at, found| {
                let found = found.map(Arc::new);
                if let Ok(chunk) = &found {
                    self.keep(keys[at], chunk);
                }
                *locked(&slots[at]) = found;
            });
        }
        slots.into_iter().map(unlocked).collect()
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::format::ids::{FingerprintCheck, RecordId};

    fn key(number: u64) -> ChunkKey {
        ChunkKey { id: RecordId(number), length: 1, check: FingerprintCheck(0) }
    }

    /// Has the first chunk at once, and the others when it is told to.
    struct Train {
        is_begun: Mutex<Sender<()>>,
        may_end: Mutex<Receiver<()>>,
        reads: AtomicUsize,
    }

    impl ChunkSource for Train {
        fn read(&self, keys: &[ChunkKey], give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync)) {
            self.reads.fetch_add(1, Ordering::Relaxed);
            give(0, Ok(vec![keys[0].id.0 as u8]));
            let _ = locked(&self.is_begun).send(());
            let _ = locked(&self.may_end).recv();
            for (at, key) in keys.iter().enumerate().skip(1) {
                let is_sound = key.id.0 != 9;
                give(at, is_sound.then(|| vec![key.id.0 as u8]).ok_or(Why::Damaged));
            }
        }
    }

    #[test]
    fn who_waits_for_a_chunk_does_not_wait_for_the_rest_of_its_train() {
        let cache = ChunkCache::new(1 << 20);
        let (begun, is_begun) = channel();
        let (end, may_end) = channel();
        let train = Train {
            is_begun: Mutex::new(begun),
            may_end: Mutex::new(may_end),
            reads: AtomicUsize::new(0),
        };
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| cache.load(&[key(1), key(2), key(9)], &train));
            is_begun.recv().unwrap();
            let first = cache.load(&[key(1)], &train);
            assert_eq!(first, [Ok(Arc::new(vec![1]))]);
            end.send(()).unwrap();
            let all = loading.join().unwrap();
            assert_eq!(all[..2], [Ok(Arc::new(vec![1])), Ok(Arc::new(vec![2]))]);
            assert_eq!(all[2], Err(Why::Damaged));
        });
        // What cannot be read is asked for once.
        assert_eq!(train.reads.load(Ordering::Relaxed), 1);
        assert!(locked(&cache.state).loading.is_empty());
    }
}
