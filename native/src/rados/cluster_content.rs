//! Content of stubs whose chunks are in a cluster: from this host's disk, or in trains from the
//! cluster.

use std::ffi::CString;
use std::ops::Range;
use std::sync::{Arc, Mutex, RwLock};

use crate::fingerprint::Algorithm;
use crate::format::cluster::chunk_frame::ChunkFrame;
use crate::format::cluster::file_recipe::{RecipePart, Version, chunk_object, recipe_object};
use crate::format::cluster::kept_frame::Name;
use crate::format::ids::{ChunkKey, DIGEST_BYTES, Fingerprint, FingerprintCheck, RecordId};
use crate::format::stub::StubHead;
use crate::rados::chunk_numbers::ChunkNumbers;
use crate::rados::chunk_reads::{ReadOutcome, WantedChunk, decode, read_all, read_object};
use crate::rados::connection::Connection;
use crate::rados::failures::Failures;
use crate::rados::file_recipes::{FetchPart, FileRecipe, FileRecipes};
use crate::rados::frame_cache::FrameCache;
use crate::store::chunk_cache::ChunkSource;
use crate::store::content::{Content, Held, RecipeHead};
use crate::store::recipes::{Broken, LeafAt, Span};
use crate::store::record_reader::CacheUse;
use crate::store::stream_frames::{Chunk, Payload};
use crate::store::why::{Unreadable, Why};
use crate::threads::lock::{locked, read, unlocked, write};

/// Read-ahead of a sequential reader, limited by the cache in memory.
const AHEAD_BYTES: u64 = 8 << 20;
const READS_AT_ONCE: usize = 64;

/// Makes something of a chunk's raw bytes, its frame and its fingerprint.
type Make<'a, T> = dyn Fn(Vec<u8>, &[u8], &Fingerprint) -> T + 'a;
/// Takes what was made of a chunk, by its place among those that were asked for.
type Give<'a, T> = dyn Fn(usize, Result<T, Why>) + Sync + 'a;

pub struct ClusterContent {
    numbers: Arc<ChunkNumbers>,
    recipes: FileRecipes,
    algorithm: Algorithm,
    /// None for a volume that keeps no frames on this host.
    kept: Option<Arc<FrameCache>>,
    /// None before Python opens the store, and after it is closed.
    reader: RwLock<Option<Arc<Connection>>>,
    pub failures: Failures,
}

impl ClusterContent {
    pub fn new(
        numbers: Arc<ChunkNumbers>,
        kept: Option<Arc<FrameCache>>,
        algorithm: Algorithm,
    ) -> ClusterContent {
        ClusterContent {
            recipes: FileRecipes::new(Arc::clone(&numbers)),
            numbers,
            algorithm,
            kept,
            reader: RwLock::new(None),
            failures: Failures::default(),
        }
    }

    /// Sets the reader for chunks that are not on this host.
    pub fn connect(&self, reader: Option<Arc<Connection>>) {
        let before = std::mem::replace(&mut *write(&self.reader), reader);
        drop(before);
    }

    fn reader(&self) -> Option<Arc<Connection>> {
        read(&self.reader).clone()
    }

    /// The fingerprint of a chunk, if its start matches the recipe.
    fn named(&self, key: &ChunkKey) -> Option<Fingerprint> {
        let fingerprint = self.numbers.fingerprint(key.id.0)?;
        (FingerprintCheck::of(&fingerprint) == key.check).then_some(fingerprint)
    }

    /// Chunks as they are stored, and verified.
    pub fn stored(&self, keys: &[ChunkKey]) -> Vec<Result<Chunk, Why>> {
        let found: Vec<_> = keys.iter().map(|_| Mutex::new(Err(Why::NotOpen))).collect();
        let make = |raw: Vec<u8>, frame: &[u8], fingerprint: &Fingerprint| {
            let frame = ChunkFrame::of(frame, fingerprint).ok_or(Why::Damaged)?;
            let (codec, payload) = (frame.codec, Payload::Made(frame.payload.to_vec()));
            Ok(Chunk { fingerprint: *fingerprint, raw_length: raw.len() as u32, codec, payload })
        };
        let give = |at: usize, one: Result<_, Why>| *locked(&found[at]) = one.and_then(|made| made);
        self.load(keys, &make, &give);
        found.into_iter().map(unlocked).collect()
    }

    /// Gives what `make` makes of each chunk: of its raw bytes and its frame.
    fn load<T>(&self, keys: &[ChunkKey], make: &Make<'_, T>, give: &Give<'_, T>) {
        let mut absent = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let Some(fingerprint) = self.named(key) else {
                give(at, Err(Why::NotMeant));
                continue;
            };
            if let Some(made) = self.kept_here(key, &fingerprint, make) {
                give(at, Ok(made));
            } else if let Some(errno) = self.failures.of(&fingerprint) {
                give(at, Err(Why::Io(errno)));
            } else {
                absent.push((at, *key, fingerprint));
            }
        }
        if absent.is_empty() {
            return;
        }
        match self.reader() {
            Some(reader) => self.fetch(&reader, &absent, make, give),
            None => absent.iter().for_each(|(at, ..)| give(*at, Err(Why::NotOpen))),
        }
    }

    /// A chunk from this host's disk.
    fn kept_here<T>(
        &self,
        key: &ChunkKey,
        fingerprint: &Fingerprint,
        make: &Make<'_, T>,
    ) -> Option<T> {
        self.kept.as_ref()?.decoded(fingerprint, |frame| {
            let mut raw = vec![0; key.length as usize];
            match decode(frame, fingerprint, self.algorithm, &mut raw) {
                ReadOutcome::Good => Some(make(raw, frame, fingerprint)),
                _ => None,
            }
        })
    }

    fn fetch<T>(
        &self,
        connection: &Connection,
        absent: &[(usize, ChunkKey, Fingerprint)],
        make: &Make<'_, T>,
        give: &Give<'_, T>,
    ) {
        let wanted = absent.iter().filter_map(|(_, key, fingerprint)| {
            let object = CString::new(chunk_object(fingerprint)).ok()?;
            Some(WantedChunk { object, fingerprint: *fingerprint, length: key.length as usize })
        });
        read_all(connection, wanted, self.algorithm, READS_AT_ONCE, |landed| {
            let (at, _, fingerprint) = absent[landed.at];
            match landed.found {
                ReadOutcome::Good => {
                    let mut frame = landed.memory;
                    give(at, Ok(make(landed.raw, &frame[..landed.object_bytes], &fingerprint)));
                    if let Some(kept) = self.kept.as_ref().filter(|kept| kept.wants(&fingerprint)) {
                        frame.truncate(landed.object_bytes);
                        kept.keep(fingerprint, frame);
                        return None;
                    }
                    return Some(frame);
                }
                ReadOutcome::Other => give(at, Err(Why::Damaged)),
                ReadOutcome::Failed(errno) => {
                    self.failures.note(&fingerprint, errno);
                    give(at, Err(Why::Io(errno)));
                }
            }
            Some(landed.memory)
        });
    }

    /// The recipe of a stub, however long.
    fn recipe(&self, stub: &StubHead) -> Result<Arc<FileRecipe>, Why> {
        self.recipes.hold(stub, &|version, part| self.recipe_part(version, part))
    }

    /// A part of a recipe, from this host's disk or from the cluster.
    fn recipe_part(&self, version: &Version, part: u32) -> Result<RecipePart, Why> {
        let name = name_of(version);
        if part == 0 {
            let kept = self.kept.as_ref();
            let decode = |data: &[u8]| RecipePart::of(data, version, 0);
            if let Some(found) = kept.and_then(|kept| kept.decoded(&name, decode)) {
                return Ok(found);
            }
        }
        let reader = self.reader().ok_or(Why::NotOpen)?;
        if let Some(errno) = self.failures.of(&name) {
            return Err(Why::Io(errno));
        }
        let object = CString::new(recipe_object(version, part)).map_err(|_| Why::Damaged)?;
        match read_object(&reader, &object) {
            Ok(data) => {
                let found = RecipePart::of(&data, version, part).ok_or(Why::Damaged)?;
                if let (1, Some(kept)) = (found.parts, &self.kept) {
                    kept.keep(name, data);
                }
                Ok(found)
            }
            Err(libc::ENOENT) => Err(Why::NotLive),
            Err(errno) => {
                self.failures.note(&name, errno);
                Err(Why::Io(errno))
            }
        }
    }
}

/// The name of a recipe among kept frames and failures.
fn name_of(version: &Version) -> Name {
    let mut name = [0; 32];
    name[..DIGEST_BYTES].copy_from_slice(version);
    name
}

impl Content for ClusterContent {
    fn source(&self) -> &dyn ChunkSource {
        self
    }

    /// No stub of a cluster names a chunk directly.
    fn read_opened(&self, _: RecordId, _: FingerprintCheck, _: &mut [u8]) -> Result<(), Why> {
        Err(Why::NotInMemory)
    }

    fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        reads: CacheUse,
    ) -> Result<Vec<Span>, Unreadable> {
        let fetch = |version: &Version, part: u32| self.recipe_part(version, part);
        let fetch: Option<&FetchPart<'_>> =
            if reads == CacheUse::CachedOnly { None } else { Some(&fetch) };
        self.recipes.spans(stub, range, fetch).map_err(Unreadable::recipe)
    }

    fn described(&self, stub: &StubHead) -> Result<RecipeHead, Unreadable> {
        Ok(RecipeHead::of(&self.recipe(stub).map_err(Unreadable::recipe)?.leaf()))
    }

    fn leaf(&self, stub: &StubHead, _: u64) -> Result<LeafAt, Broken> {
        let (id, above) = (RecordId::HOLE, Vec::new());
        match self.recipe(stub) {
            Ok(recipe) => Ok(LeafAt { start: 0, id, node: Arc::new(recipe.leaf()), above }),
            Err(why) => {
                Err(Broken { range: 0..stub.covered, above, unreadable: Unreadable::recipe(why) })
            }
        }
    }

    fn ahead_bytes(&self, length: u64) -> u64 {
        length.max(AHEAD_BYTES)
    }

    fn hold(&self, stub: &StubHead) -> Result<Option<Held>, Unreadable> {
        match self.recipe(stub) {
            Ok(recipe) => Ok(Some(recipe)),
            Err(why) => Err(Unreadable::recipe(why)),
        }
    }
}

impl ChunkSource for ClusterContent {
    fn read(&self, keys: &[ChunkKey], give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync)) {
        self.load(keys, &|raw, _, _| raw, give);
    }
}
