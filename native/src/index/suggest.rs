//! The interface of the part of an index above the log.

use std::io::Result;

/// Suggests the entries of the log that may have a fingerprint, by its hash.
///
/// It may suggest too many entries. If it misses an entry, the chunk is stored twice. After an
/// error of the kind `InvalidData`, it has to be rebuilt.
pub trait Suggest {
    /// Prefetch the memory that the next call for this hash will need.
    fn prefetch(&self, hash: u64);

    /// Returns false if no entry has the hash. Otherwise appends to `found` the entries that are
    /// known without a read.
    fn may_have(&self, hash: u64, found: &mut Vec<u32>) -> bool;

    /// Append the entries that `may_have` omitted because they have to be read.
    fn search(&mut self, _hash: u64, _found: &mut Vec<u32>) -> Result<()> {
        Ok(())
    }

    /// Note that an entry has this hash, even if it was not added before.
    fn note(&mut self, _hash: u64) {}

    /// Add an entry whose hash was noted.
    fn add(&mut self, hash: u64, number: u32) -> Result<()>;

    /// Finish the additions.
    fn settle(&mut self) {}

    /// The number of entries, including unusable ones.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of RAM.
    fn bytes(&self) -> usize;

    /// Number of reads from the disk.
    fn reads(&self) -> u64 {
        0
    }

    /// Returns whether entries were omitted because the disk is full.
    fn is_lossy(&self) -> bool {
        false
    }

    /// Returns whether the structure is so large that a rebuild is worth its cost.
    fn is_wide(&self) -> bool;

    /// Remove all entries, and make room for `capacity` entries.
    fn renew(&mut self, capacity: usize) -> Result<()>;
}
