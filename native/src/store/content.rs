//! Where the bytes of a volume's stubs are: in containers, or elsewhere.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::format::ids::{FingerprintCheck, RecordId};
use crate::format::stub::StubHead;
use crate::store::bases::Bases;
use crate::store::chunk_cache::{ChunkKey, ChunkSource};
use crate::store::recipes::{Recipes, Span};
use crate::store::record_reader::Reads;
use crate::threads::lock::{locked, unlocked};
use crate::threads::pool;

/// What stubs are made of. Answers only where everything is exactly as expected.
pub trait Content: ChunkSource + Send + Sync {
    /// This, where chunks are loaded.
    fn source(&self) -> &dyn ChunkSource;

    /// Fills `out`, of its raw length, with a chunk that a stub names, if that needs no wait.
    fn read_opened(&self, id: RecordId, check: FingerprintCheck, out: &mut [u8]) -> Option<()>;

    /// The chunks and holes of a stub that a range touches, which it covers. With
    /// [`Reads::CachedOnly`] only if that needs no wait.
    fn spans(&self, stub: &StubHead, range: &Range<u64>, reads: Reads) -> Option<Vec<Span>>;

    /// How far to load ahead of a reader in sequence whose requests have `length` bytes.
    fn ahead_bytes(&self, length: u64) -> u64;
}

/// Content in containers on this machine.
pub struct Containers {
    chunks: Arc<Bases>,
    recipes: Recipes,
    /// Threads that help to decode the chunks of one read.
    helpers: usize,
}

impl Containers {
    /// `chunks`: the containers of chunks; `streams`: those of recipes.
    pub fn new(chunks: Arc<Bases>, streams: Arc<Bases>, helpers: usize) -> Containers {
        Containers { recipes: Recipes::new(streams, Arc::clone(&chunks)), chunks, helpers }
    }
}

impl Content for Containers {
    fn source(&self) -> &dyn ChunkSource {
        self
    }

    fn read_opened(&self, id: RecordId, check: FingerprintCheck, out: &mut [u8]) -> Option<()> {
        self.chunks.read_opened(id, check, out)
    }

    fn spans(&self, stub: &StubHead, range: &Range<u64>, reads: Reads) -> Option<Vec<Span>> {
        self.recipes.spans(stub, range, reads)
    }

    fn ahead_bytes(&self, length: u64) -> u64 {
        length
    }
}

impl ChunkSource for Containers {
    /// What is in the page cache is decoded by several threads, and the rest by this one.
    fn read(&self, keys: &[ChunkKey], keep: &(dyn Fn(usize, Vec<u8>) + Sync)) {
        let absent = Mutex::new(Vec::new());
        pool::for_each(keys.len(), self.helpers, |at| {
            let key = &keys[at];
            let mut raw = vec![0; key.length as usize];
            match self.chunks.fill_from_memory(key.id, key.check, &mut raw) {
                Some(()) => keep(at, raw),
                None => locked(&absent).push(at),
            }
        });
        let mut absent = unlocked(absent);
        absent.sort_unstable();
        for at in absent {
            let key = &keys[at];
            let mut raw = vec![0; key.length as usize];
            if self.chunks.fill(key.id, key.check, &mut raw).is_some() {
                keep(at, raw);
            }
        }
    }
}
