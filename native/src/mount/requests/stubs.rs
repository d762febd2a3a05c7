//! Small stubs, each of one chunk and read in one request.
//!
//! Answers only where all is as it should be and the page cache has the chunk. Python has all other
//! cases: recipes, blocks of a stub's own, crashed transitions, damage, waits for the disk.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::fstat;

use crate::format::stub::{DIRECT, STUB_BYTES, Seeds, StubHead, stub_head};
use crate::mount::inodes::data_file::DataFile;
use crate::mount::protocol::abi::ReadIn;
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
        let stub = stub_head(value, self.seeds.attribute)?;
        let length = usize::try_from(stub.covered).ok()?;
        let is_whole = given.offset == 0 && given.size as usize >= length && length > 0;
        if stub.flags != DIRECT || stub.local != 0 || !is_whole {
            return None;
        }
        self.require_untouched(file, inode, &stub)?;
        let out = out.get_mut(..length)?;
        self.chunks.read_opened(stub.recipe, stub.fingerprint_check(), out)?;
        // Moves the access time as the file system below is mounted to do, and reads nothing.
        let _ = rustix::io::pread(file, &mut [0], stub.covered);
        Some(length)
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
