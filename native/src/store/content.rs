//! Where the bytes of a volume's stubs are: in containers, or elsewhere.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::format::ids::{ChunkKey, DIGEST_BYTES, Fingerprint, FingerprintCheck, RecordId};
use crate::format::recipe::Node;
use crate::format::stub::StubHead;
use crate::store::bases::Bases;
use crate::store::chunk_cache::ChunkSource;
use crate::store::recipes::{Broken, LeafAt, Recipes, Span};
use crate::store::record_reader::CacheUse;
use crate::store::why::{Unreadable, Why};
use crate::threads::lock::{locked, unlocked};
use crate::threads::pool;

/// Keeps a recipe in memory.
pub type Held = Arc<dyn Any + Send + Sync>;

/// The root of a recipe.
pub struct RecipeHead {
    pub level: u8,
    /// Of what the recipe stands for.
    pub length: u64,
    /// The digest of that.
    pub content: [u8; DIGEST_BYTES],
}

impl RecipeHead {
    pub fn of(root: &Node) -> RecipeHead {
        RecipeHead { level: root.level, length: root.length, content: root.content }
    }
}

/// The content of stubs. If anything is not exactly as expected, the answer is the reason.
pub trait Content: ChunkSource + Send + Sync {
    /// This, where chunks are loaded.
    fn source(&self) -> &dyn ChunkSource;

    /// Fills `out`, of its raw length, with a chunk that a stub names, if that needs no wait.
    fn read_opened(&self, id: RecordId, check: FingerprintCheck, out: &mut [u8])
    -> Result<(), Why>;

    /// The chunks and holes of a stub that a range touches, which it covers. With
    /// [`CacheUse::CachedOnly`] only if that needs no wait.
    fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        reads: CacheUse,
    ) -> Result<Vec<Span>, Unreadable>;

    fn described(&self, stub: &StubHead) -> Result<RecipeHead, Unreadable>;

    /// The leaf of a recipe that has the byte `at`. It may be beyond what the stub covers.
    fn leaf(&self, stub: &StubHead, at: u64) -> Result<LeafAt, Broken>;

    /// How far to load ahead of a reader in sequence whose requests have `length` bytes.
    fn ahead_bytes(&self, length: u64) -> u64;

    /// What has to be held for a stub to be read, where its recipe is longer than those that are kept.
    fn hold(&self, _: &StubHead) -> Result<Option<Held>, Unreadable> {
        Ok(None)
    }

    /// Keeps the record of a node of a recipe, which the caller has verified. Returns whether it is a
    /// node, which it is not where recipes are no records.
    fn keep_node(&self, _: RecordId, _: &[u8], _: &Fingerprint) -> bool {
        false
    }

    /// Keeps what the record of a chunk says that a stub names, which the caller has verified.
    fn keep_direct(&self, _: RecordId, _: u32, _: &Fingerprint) {}
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

    fn read_opened(
        &self,
        id: RecordId,
        check: FingerprintCheck,
        out: &mut [u8],
    ) -> Result<(), Why> {
        self.chunks.read_opened(id, check, out)
    }

    fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        reads: CacheUse,
    ) -> Result<Vec<Span>, Unreadable> {
        self.recipes.spans(stub, range, reads)
    }

    fn described(&self, stub: &StubHead) -> Result<RecipeHead, Unreadable> {
        self.recipes.root(stub, CacheUse::Any).map(|root| RecipeHead::of(&root))
    }

    fn leaf(&self, stub: &StubHead, at: u64) -> Result<LeafAt, Broken> {
        self.recipes.leaf(stub, at)
    }

    fn ahead_bytes(&self, length: u64) -> u64 {
        length
    }

    fn keep_node(&self, id: RecordId, payload: &[u8], fingerprint: &Fingerprint) -> bool {
        self.recipes.keep_node(id, payload, fingerprint)
    }

    fn keep_direct(&self, id: RecordId, length: u32, fingerprint: &Fingerprint) {
        self.recipes.keep_direct(id, length, fingerprint);
    }
}

impl ChunkSource for Containers {
    /// What is in the page cache is decoded by several threads, and the rest by this one.
    fn read(&self, keys: &[ChunkKey], give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync)) {
        let absent = Mutex::new(Vec::new());
        pool::for_each(keys.len(), self.helpers, |at| {
            let key = &keys[at];
            let mut raw = vec![0; key.length as usize];
            match self.chunks.fill_from_memory(key.id, key.check, &mut raw) {
                Ok(()) => give(at, Ok(raw)),
                Err(_) => locked(&absent).push(at),
            }
        });
        let mut absent = unlocked(absent);
        absent.sort_unstable();
        for at in absent {
            let key = &keys[at];
            let mut raw = vec![0; key.length as usize];
            give(at, self.chunks.fill(key.id, key.check, &mut raw).map(|()| raw));
        }
    }
}
