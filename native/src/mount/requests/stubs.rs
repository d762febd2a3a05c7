//! Stubs: what their bytes are made of, put together from the store and from blocks of their own, and
//! writes to them.
//!
//! Answers only where all is as it should be. Python has all other cases: crashed transitions,
//! damage, quarantined records.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::fs::{FileType, Stat, fstat};

use crate::format::stub::{
    COMMITTING, DIRECT, RESTORING, STUB_BYTES, Seeds, StubHead, WRITTEN, stub_head,
};
use crate::mount::inodes::data_file::DataFile;
use crate::mount::protocol::abi::{LseekIn, ReadIn};
use crate::mount::protocol::message::{Answer, Failure};
use crate::store::chunk_cache::ChunkCache;
use crate::store::content::Content;
use crate::store::record_reader::CacheUse;
use crate::store::stub_bytes::{
    AT_ONCE_BYTES, Failure as StubFailure, Part, Piece, StubBytes, filled, pieces_of,
};
use crate::store::why::Unreadable;
use crate::stub::open_stub::{OpenStub, State, StubFiles};
use crate::system::calls::generation_of;
use crate::system::effects::Effects;
use crate::system::extents::present;

/// Room for the value of a stub's attribute, and for one byte that none has.
pub const VALUE_BYTES: usize = STUB_BYTES + 1;

/// Where the content of a volume's stubs is.
pub struct Store {
    pub content: Arc<dyn Content>,
    pub cache: Arc<ChunkCache>,
    pub seeds: Seeds,
    pub files: StubFiles,
    pub effects: Arc<dyn Effects>,
}

/// A stub as it is while nobody changes it.
pub struct StubView {
    pub stub: StubHead,
    pub size: u64,
    /// Whether it may have blocks of its own.
    pub is_local: bool,
}

/// What a range of a stub is made of.
pub enum Pieces {
    Known(Vec<Piece>),
    /// Not to be said before the disk has given bytes of the stub's own.
    OnDisk(Range<u64>),
}

impl Store {
    /// Fills the start of `out` with the whole content of a stub of one chunk; how many bytes. `value`:
    /// its attribute.
    pub fn read_whole(
        &self,
        file: &DataFile,
        inode: u64,
        value: &[u8],
        given: &ReadIn,
        out: &mut [u8],
    ) -> Option<usize> {
        let stub = self.whole(file, inode, value)?;
        let length = usize::try_from(stub.covered).ok()?;
        if given.offset != 0 || (given.size as usize) < length {
            return None;
        }
        let out = out.get_mut(..length)?;
        self.content.read_opened(stub.recipe, stub.fingerprint_check(), out).ok()?;
        touch(file, stub.covered);
        Some(length)
    }

    /// Where data of a stub, or the hole at its end, begins at `offset` or behind it.
    pub fn seek(
        &self,
        file: &DataFile,
        inode: u64,
        value: &[u8],
        given: &LseekIn,
    ) -> Option<Answer<u64>> {
        let length = self.whole(file, inode, value)?.covered;
        if given.offset >= length {
            return Some(Err(Failure(libc::ENXIO)));
        }
        match given.whence as i32 {
            libc::SEEK_DATA => Some(Ok(given.offset)),
            libc::SEEK_HOLE => Some(Ok(length)),
            _ => None,
        }
    }

    /// The stub that a file is, if all of its content is one chunk.
    fn whole(&self, file: &DataFile, inode: u64, value: &[u8]) -> Option<StubHead> {
        let stub = stub_head(value, self.seeds.attribute)?;
        if stub.flags != DIRECT || stub.covered == 0 {
            return None;
        }
        let look = self.look_of(file, inode, stub, false)?;
        (!look.is_local).then_some(look.stub)
    }

    /// The stub that a file is. None where it has to be looked at in all that may be wrong with it: one
    /// that has blocks of its own, or had them, unless that was done before (`is_settled`).
    pub fn look(
        &self,
        file: &DataFile,
        inode: u64,
        value: &[u8],
        is_settled: bool,
    ) -> Option<StubView> {
        self.look_of(file, inode, stub_head(value, self.seeds.attribute)?, is_settled)
    }

    fn look_of(
        &self,
        file: &DataFile,
        inode: u64,
        stub: StubHead,
        is_settled: bool,
    ) -> Option<StubView> {
        let status = fstat(file).ok()?;
        let generation = generation_of(file.fd.as_raw_fd()).ok()?;
        let size = u64::try_from(status.st_size).ok()?;
        let is_one = stub.binding == self.seeds.binding(inode, generation)
            && stub.flags & (COMMITTING | RESTORING) == 0
            && FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            && stub.covered <= size;
        let is_clean = is_untouched(&stub, &status, size);
        (is_one && (is_clean || is_settled)).then_some(StubView { stub, size, is_local: !is_clean })
    }

    /// What a range of a stub, before its end, is made of. None where that cannot be told.
    pub fn pieces(&self, file: &DataFile, look: &StubView, range: Range<u64>) -> Option<Pieces> {
        if !look.is_local {
            return Some(Pieces::Known(vec![Piece::OfRecipe(range)]));
        }
        let (start, end) = (i64::try_from(range.start).ok()?, i64::try_from(range.end).ok()?);
        let own = present(file.fd.as_raw_fd(), start, end).ok()?;
        let own = own.into_iter().map(|(low, high)| (low as u64, high as u64));
        let pieces = pieces_of(&look.stub, own, range, |at, bytes| {
            let is_whole = file.read_cached(at, bytes) == Some(bytes.len());
            is_whole.then_some(()).ok_or(at..at + bytes.len() as u64)
        });
        Some(pieces.map_or_else(Pieces::OnDisk, Pieces::Known))
    }

    fn bytes(&self) -> StubBytes<'_> {
        StubBytes { content: &*self.content, cache: &self.cache }
    }

    /// The bytes of `pieces`, in their order.
    pub fn parts(
        &self,
        stub: &StubHead,
        pieces: &[Piece],
        reads: CacheUse,
    ) -> Result<Vec<Part>, Vec<Unreadable>> {
        self.bytes().parts(stub, pieces, reads, stub.covered <= AT_ONCE_BYTES)
    }

    /// Writes to a stub that Python has settled, if memory has the bytes of the store that this needs.
    /// None if Python must write: the first write, and a write that must wait. True if allocated
    /// blocks may exist that were never written.
    pub fn write(
        &self,
        file: &DataFile,
        look: &StubView,
        offset: u64,
        data: &[u8],
    ) -> Option<(Answer<usize>, bool)> {
        if look.stub.flags & WRITTEN == 0 {
            return None;
        }
        let state = State::of(look.stub.clone(), true);
        let (fd, files, effects) = (file.as_fd(), &self.files, &*self.effects);
        let (bytes, reads) = (self.bytes(), CacheUse::CachedOnly);
        let mut stub = OpenStub { fd, state, files, effects, bytes, reads };
        let written = match stub.write(offset, data) {
            Ok(count) => Ok(count),
            Err(StubFailure::OfFile(error)) => Err(error.into()),
            Err(StubFailure::OfStore(_)) => return None,
        };
        Some((written, stub.state.has_unwritten))
    }

    /// Fills the start of `out` with `pieces` if memory has all; how many bytes.
    pub fn fill(&self, stub: &StubHead, pieces: &[Piece], out: &mut [u8]) -> Option<usize> {
        filled(&self.parts(stub, pieces, CacheUse::CachedOnly).ok()?, out)
    }

    /// Has the chunks of a range in memory soon after, for a reader who is expected there.
    pub fn load_ahead(&self, stub: &StubHead, range: &Range<u64>) {
        self.bytes().load_ahead(stub, range);
    }
}

/// Whether a file has nothing of its own: neither a block nor bytes behind those that the store has.
fn is_untouched(stub: &StubHead, status: &Stat, size: u64) -> bool {
    stub.flags & !DIRECT == 0 && stub.local == 0 && size == stub.covered && status.st_blocks == 0
}

/// Moves the access time as the file system below is mounted to do, and reads nothing.
pub fn touch(file: &DataFile, size: u64) {
    let _ = rustix::io::pread(file, &mut [0], size);
}
