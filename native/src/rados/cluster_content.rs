//! Content of stubs whose chunks are in a cluster: from this host's disk, or in trains from the
//! cluster.

use std::ffi::CString;
use std::ops::Range;
use std::sync::{Arc, RwLock};

use crate::fingerprint::Algorithm;
use crate::format::cluster::file_recipe::{RecipePart, Version, chunk_object, recipe_object};
use crate::format::cluster::kept_frame::Name;
use crate::format::ids::{ChunkKey, DIGEST_BYTES, Fingerprint, FingerprintCheck, RecordId};
use crate::format::stub::StubHead;
use crate::rados::chunk_numbers::ChunkNumbers;
use crate::rados::chunk_reads::{Found, Wanted, decode, read_all, read_object};
use crate::rados::connection::Connection;
use crate::rados::failures::Failures;
use crate::rados::file_recipes::{FetchPart, FileRecipe, FileRecipes};
use crate::rados::frame_cache::FrameCache;
use crate::store::chunk_cache::ChunkSource;
use crate::store::content::{Content, Held, RecipeHead};
use crate::store::recipes::{Broken, LeafAt, Span};
use crate::store::record_reader::Reads;
use crate::store::why::{Unreadable, Why};
use crate::threads::lock::{read, write};

/// Read-ahead of a sequential reader, limited by the cache in memory.
const AHEAD_BYTES: u64 = 8 << 20;
const READS_AT_ONCE: usize = 64;

/// An open connection for reads.
pub struct Reader {
    pub connection: Connection,
    pub algorithm: Algorithm,
}

pub struct ClusterContent {
    numbers: Arc<ChunkNumbers>,
    recipes: FileRecipes,
    algorithm: Algorithm,
    /// None for a volume that keeps no frames on this host.
    kept: Option<Arc<FrameCache>>,
    /// None before Python opens the store, and after it is closed.
    reader: RwLock<Option<Arc<Reader>>>,
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
    pub fn connect(&self, reader: Option<Arc<Reader>>) {
        let before = std::mem::replace(&mut *write(&self.reader), reader);
        drop(before);
    }

    fn reader(&self) -> Option<Arc<Reader>> {
        read(&self.reader).clone()
    }

    /// The fingerprint of a chunk, if its start matches the recipe.
    fn named(&self, key: &ChunkKey) -> Option<Fingerprint> {
        let fingerprint = self.numbers.fingerprint(key.id.0)?;
        (FingerprintCheck::of(&fingerprint) == key.check).then_some(fingerprint)
    }

    /// A chunk from this host's disk.
    fn kept_here(&self, key: &ChunkKey, fingerprint: &Fingerprint) -> Option<Vec<u8>> {
        self.kept.as_ref()?.decoded(fingerprint, |frame| {
            let mut raw = vec![0; key.length as usize];
            match decode(frame, fingerprint, self.algorithm, &mut raw) {
                Found::Good => Some(raw),
                _ => None,
            }
        })
    }

    fn fetch(
        &self,
        reader: &Reader,
        absent: &[(usize, ChunkKey, Fingerprint)],
        give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync),
    ) {
        let wanted = absent.iter().filter_map(|(_, key, fingerprint)| {
            let object = CString::new(chunk_object(fingerprint)).ok()?;
            Some(Wanted { object, fingerprint: *fingerprint, length: key.length as usize })
        });
        let room = |length| vec![0; length];
        read_all(&reader.connection, wanted, self.algorithm, READS_AT_ONCE, room, |landed| {
            let (at, _, fingerprint) = absent[landed.at];
            match landed.found {
                Found::Good => {
                    give(at, Ok(landed.raw));
                    if let Some(kept) = self.kept.as_ref().filter(|kept| kept.wants(&fingerprint)) {
                        let mut frame = landed.memory;
                        frame.truncate(landed.object_bytes);
                        kept.keep(fingerprint, frame);
                        return None;
                    }
                }
                Found::Other => give(at, Err(Why::Damaged)),
                Found::Failed(errno) => {
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
        match read_object(&reader.connection, &object) {
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
        reads: Reads,
    ) -> Result<Vec<Span>, Unreadable> {
        let fetch = |version: &Version, part: u32| self.recipe_part(version, part);
        let fetch: Option<&FetchPart<'_>> =
            if reads == Reads::CachedOnly { None } else { Some(&fetch) };
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
        let mut absent = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let Some(fingerprint) = self.named(key) else {
                give(at, Err(Why::NotMeant));
                continue;
            };
            if let Some(raw) = self.kept_here(key, &fingerprint) {
                give(at, Ok(raw));
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
            Some(reader) => self.fetch(&reader, &absent, give),
            None => absent.iter().for_each(|(at, ..)| give(*at, Err(Why::NotOpen))),
        }
    }
}
