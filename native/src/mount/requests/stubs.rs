//! Small stubs, each of one chunk and read in one request, and without a hole.
//!
//! Answers only where all is as it should be and the page cache has the chunk. Python has all other
//! cases: recipes, blocks of a stub's own, crashed transitions, damage, waits for the disk.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::fstat;

use crate::format::stub::{DIRECT, STUB_BYTES, Seeds, StubHead, stub_head};
use crate::mount::inodes::data_file::DataFile;
use crate::mount::protocol::abi::{LseekIn, ReadIn};
use crate::mount::protocol::message::{Answer, Failure};
use crate::store::bases::Bases;
use crate::system::calls::generation_of;

/// Room for the value of a stub's attribute, and for one byte that none has.
pub const VALUE_BYTES: usize = STUB_BYTES + 1;

/// Where the content of a volume's stubs is.
pub struct Store {
    /// The containers of chunks.
    pub chunks: Arc<Bases>,
    pub seeds: Seeds,
}

impl Store {
    /// Fills the start of `out` with the whole content of a stub; how many bytes. `value`: its
    /// attribute.
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
        self.chunks.read_opened(stub.recipe, stub.fingerprint_check(), out)?;
        // Moves the access time as the file system below is mounted to do, and reads nothing.
        let _ = rustix::io::pread(file, &mut [0], stub.covered);
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
        if stub.flags != DIRECT || stub.local != 0 || stub.covered == 0 {
            return None;
        }
        self.require_untouched(file, inode, &stub)?;
        Some(stub)
    }

    /// Whether the attribute is the file's, and the file has nothing of its own: neither a block nor
    /// bytes behind those that the store has.
    fn require_untouched(&self, file: &DataFile, inode: u64, stub: &StubHead) -> Option<()> {
        let status = fstat(file).ok()?;
        let generation = generation_of(file.fd.as_raw_fd()).ok()?;
        let is_untouched = u64::try_from(status.st_size) == Ok(stub.covered)
            && status.st_blocks == 0
            && stub.binding == self.seeds.binding(inode, generation);
        is_untouched.then_some(())
    }
}
