//! The bytes of stubs, put together from blocks of their own and from what their recipes stand for.

use std::collections::HashMap;
use std::io::Error;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::format::ids::{ChunkKey, FingerprintCheck, RecordId};
use crate::format::stub::StubHead;
use crate::store::chunk_cache::{Chunk, ChunkCache, ChunkSource};
use crate::store::content::{Content, RecipeHead};
use crate::store::recipes::{Broken, LeafAt, Span};
use crate::store::record_reader::CacheUse;
use crate::store::why::{Unreadable, Why};
use crate::system::reads::{read_all, read_cached};

/// Content of up to this length is decoded in place where memory has it, and an answer of this length
/// copied: to wake another thread takes longer.
pub const AT_ONCE_BYTES: u64 = 128 << 10;

/// A part of a stub's bytes.
pub enum Piece {
    /// Bytes of blocks of its own.
    Own(Arc<Vec<u8>>),
    /// A range that the recipe stands for.
    OfRecipe(Range<u64>),
    Zeros(usize),
}

/// A part of an answer.
pub enum Part {
    Own(Arc<Vec<u8>>),
    Chunk(Chunk, Range<usize>),
    Zeros(usize),
}

impl Part {
    pub fn length(&self) -> usize {
        match self {
            Part::Own(bytes) => bytes.len(),
            Part::Chunk(_, range) => range.len(),
            Part::Zeros(length) => *length,
        }
    }
}

/// Fills the start of `out`; how many bytes. None if it has no room for them.
pub fn filled(parts: &[Part], out: &mut [u8]) -> Option<usize> {
    let mut done = 0;
    for part in parts {
        let length = part.length();
        let room = out.get_mut(done..done + length)?;
        match part {
            Part::Own(bytes) => room.copy_from_slice(bytes),
            Part::Chunk(chunk, range) => room.copy_from_slice(chunk.get(range.clone())?),
            Part::Zeros(_) => room.fill(0),
        }
        done += length;
    }
    Some(done)
}

/// Adds a range that has no block: the recipe's as far as it reaches, and then zeros.
fn add_missing(pieces: &mut Vec<Piece>, stub: &StubHead, range: Range<u64>) {
    let border = stub.covered.clamp(range.start, range.end);
    if range.start < border {
        pieces.push(Piece::OfRecipe(range.start..border));
    }
    if border < range.end {
        pieces.push(Piece::Zeros((range.end - border) as usize));
    }
}

/// What stubs are made of, and the chunks of it that are in memory.
#[derive(Clone, Copy)]
pub struct StubBytes<'a> {
    pub content: &'a dyn Content,
    pub cache: &'a ChunkCache,
}

impl StubBytes<'_> {
    /// The bytes of `pieces`, in their order; or all chunks of one piece that cannot be read.
    /// `decodes`: of what is in memory also chunks that have to be decoded.
    pub fn parts(
        &self,
        stub: &StubHead,
        pieces: &[Piece],
        reads: CacheUse,
        decodes: bool,
    ) -> Result<Vec<Part>, Vec<Unreadable>> {
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                Piece::Own(bytes) => parts.push(Part::Own(Arc::clone(bytes))),
                Piece::Zeros(length) => parts.push(Part::Zeros(*length)),
                Piece::OfRecipe(range) => {
                    self.add_parts(stub, range, reads, decodes, &mut parts)?;
                }
            }
        }
        Ok(parts)
    }

    /// Fills `out` with the bytes of a range of the file of a stub, up to its size at most. `own` has
    /// the ranges in blocks of the stub's own, in order.
    pub fn fill(
        &self,
        file: impl AsFd,
        stub: &StubHead,
        own: impl IntoIterator<Item = (u64, u64)>,
        range: Range<u64>,
        reads: CacheUse,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        // If the file was truncated at the same time, zeros follow its end.
        let pieces = pieces_of(stub, own, range, |at, bytes| match reads {
            CacheUse::CachedOnly => match read_cached(&file, at, bytes) {
                Some(_) => Ok(()),
                None => Err(vec![Unreadable::NOT_IN_MEMORY].into()),
            },
            _ => read_all(&file, at, bytes).map(drop).map_err(Failure::from),
        })?;
        let parts = self.parts(stub, &pieces, reads, out.len() as u64 <= AT_ONCE_BYTES)?;
        match filled(&parts, out) {
            Some(done) if done == out.len() => Ok(()),
            _ => Err(vec![Unreadable::recipe(Why::NotMeant)].into()),
        }
    }

    fn add_parts(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        reads: CacheUse,
        decodes: bool,
        parts: &mut Vec<Part>,
    ) -> Result<(), Vec<Unreadable>> {
        let spans = self.content.spans(stub, range, reads).map_err(|reason| vec![reason])?;
        let keys: Vec<_> = spans.iter().filter_map(|span| span.chunk).collect();
        let mut chunks = if reads == CacheUse::CachedOnly {
            let at_hand = |key: &ChunkKey| match decodes {
                true => {
                    self.cache.at_hand(key, |raw| self.content.read_opened(key.id, key.check, raw))
                }
                false => self.cache.get(key).ok_or(Why::NotInMemory),
            };
            keys.iter().map(at_hand).collect()
        } else {
            self.cache.load(&keys, self.content.source())
        }
        .into_iter();
        let mut unreadable = Vec::new();
        for span in spans {
            let within = part_of(&span, range);
            let Some(key) = span.chunk else {
                parts.push(Part::Zeros(within.len()));
                continue;
            };
            match chunks.next().unwrap_or(Err(Why::NotInMemory)) {
                Ok(chunk) => parts.push(Part::Chunk(chunk, within)),
                Err(why) => unreadable.push(Unreadable::chunk(key, why)),
            }
        }
        if unreadable.is_empty() { Ok(()) } else { Err(unreadable) }
    }

    /// Has the chunks of a range in memory soon after, for a reader who is expected there.
    pub fn load_ahead(&self, stub: &StubHead, range: &Range<u64>) {
        let Ok(spans) = self.content.spans(stub, range, CacheUse::Any) else { return };
        let absent = spans.iter().filter_map(|span| span.chunk).filter(|key| !self.cache.has(key));
        self.cache.load(&absent.collect::<Vec<_>>(), self.content.source());
    }
}

/// Where the bytes of a range are in a span.
fn part_of(span: &Span, range: &Range<u64>) -> Range<usize> {
    let (low, high) = (range.start.max(span.start), range.end.min(span.end));
    (low - span.start) as usize..(high - span.start) as usize
}

/// Why a read of a stub's bytes, or a change of them, has failed.
pub enum Failure {
    OfStore(Vec<Unreadable>),
    /// What the system says of the file.
    OfFile(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::OfFile(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::OfFile(errno.into())
    }
}

impl From<Vec<Unreadable>> for Failure {
    fn from(unreadable: Vec<Unreadable>) -> Failure {
        Failure::OfStore(unreadable)
    }
}

/// The pieces of `range` of a stub, before its end. `own` has the ranges in blocks of the stub's own,
/// in order; `read` fills a buffer with the bytes of one of them.
pub fn pieces_of<E>(
    stub: &StubHead,
    own: impl IntoIterator<Item = (u64, u64)>,
    range: Range<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Vec<Piece>, E> {
    let (mut pieces, mut done) = (Vec::new(), range.start);
    for (low, high) in own {
        let (low, high) = (low.clamp(done, range.end), high.min(range.end));
        if low >= high {
            continue;
        }
        add_missing(&mut pieces, stub, done..low);
        let mut bytes = vec![0; (high - low) as usize];
        read(low, &mut bytes)?;
        pieces.push(Piece::Own(Arc::new(bytes)));
        done = high;
    }
    add_missing(&mut pieces, stub, done..range.end);
    Ok(pieces)
}

/// Content with chunks that were repaired, which cannot be read in their places.
pub struct Repaired<'a> {
    pub content: &'a dyn Content,
    pub chunks: HashMap<ChunkKey, Chunk>,
}

impl Content for Repaired<'_> {
    fn source(&self) -> &dyn ChunkSource {
        self
    }

    fn read_opened(
        &self,
        id: RecordId,
        check: FingerprintCheck,
        out: &mut [u8],
    ) -> Result<(), Why> {
        self.content.read_opened(id, check, out)
    }

    fn spans(
        &self,
        stub: &StubHead,
        range: &Range<u64>,
        reads: CacheUse,
    ) -> Result<Vec<Span>, Unreadable> {
        self.content.spans(stub, range, reads)
    }

    fn described(&self, stub: &StubHead) -> Result<RecipeHead, Unreadable> {
        self.content.described(stub)
    }

    fn leaf(&self, stub: &StubHead, at: u64) -> Result<LeafAt, Broken> {
        self.content.leaf(stub, at)
    }

    fn ahead_bytes(&self, length: u64) -> u64 {
        self.content.ahead_bytes(length)
    }
}

impl ChunkSource for Repaired<'_> {
    fn read(&self, keys: &[ChunkKey], give: &(dyn Fn(usize, Result<Vec<u8>, Why>) + Sync)) {
        let (mut places, mut rest) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            match self.chunks.get(key) {
                Some(chunk) => give(at, Ok(chunk.to_vec())),
                None => {
                    places.push(at);
                    rest.push(*key);
                }
            }
        }
        if !rest.is_empty() {
            self.content.source().read(&rest, &|at, found| give(places[at], found));
        }
    }
}
