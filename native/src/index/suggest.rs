//! What every index in little RAM has above the log.

use std::io::Result;

/// Suggests which entries of the log may be of a fingerprint, by its hash.
///
/// It may suggest too many; one that it leaves out costs a chunk that is stored once more. Errors of
/// the kind `InvalidData` say that it has to be made anew.
pub trait Suggest {
    /// Ask for the memory that the next call for this hash will need.
    fn prefetch(&self, hash: u64);

    /// False: nothing has the hash. Else what is known without a read is appended to `found`.
    fn may_have(&self, hash: u64, found: &mut Vec<u32>) -> bool;

    /// Append what `may_have` left out, because it has to be read.
    fn search(&mut self, hash: u64, found: &mut Vec<u32>) -> Result<()>;

    /// There is an entry with this hash, which may have been added before.
    fn note(&mut self, hash: u64);

    /// Add an entry, whose hash was noted.
    fn add(&mut self, hash: u64, number: u32) -> Result<()>;

    /// Finish what was added.
    fn settle(&mut self);

    /// Entries, also those that are of no use any more.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of RAM.
    fn bytes(&self) -> usize;

    /// Reads from the disk so far.
    fn reads(&self) -> u64;

    /// Whether it has grown so far that it is worth making anew.
    fn is_wide(&self) -> bool;

    /// Become empty, and ready for so many entries.
    fn renew(&mut self, capacity: usize) -> Result<()>;
}
