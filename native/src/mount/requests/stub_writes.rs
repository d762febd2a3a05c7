//! Writes of whole blocks to a stub, and to blocks that it has of its own already.
//!
//! The rules are those of `dedupd/stub/stub_file.py`: a block that is missing is only ever written
//! whole, and what a failed write leaves in one is punched out again. Python has all other cases: a
//! block that has to be filled from the store, the first block of a stub's own, which the attribute
//! has to allow for, a file that grows, and a disk that is nearly full.

use std::ops::Range;
use std::os::fd::AsRawFd;

use rustix::fs::fstatvfs;

use crate::format::stub::WRITTEN;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::requests::effects;
use crate::mount::requests::stubs::{Look, Store};
use crate::system::extents::present;

/// With less than this free, blocks are allocated before they are written.
const LOW_SPACE_BYTES: u64 = 1 << 30;

/// What became of a write.
pub enum Written {
    Bytes(usize),
    /// It failed, and may have left blocks that are allocated and were never written.
    Torn(Failure),
}

/// A write to a stub that needs nothing of the store.
pub struct StubWrite {
    start: u64,
    /// The parts of the blocks it touches that have been the recipe's until now.
    missing: Vec<Range<u64>>,
    block_bytes: u64,
}

impl StubWrite {
    /// None where the write is not one of these.
    pub fn of(
        store: &Store,
        file: &DataFile,
        look: &Look,
        range: &Range<u64>,
    ) -> Option<StubWrite> {
        let block_bytes = store.block_bytes;
        let is_within = range.start < range.end && range.end <= look.size;
        if !is_within || look.stub.flags & WRITTEN == 0 {
            return None;
        }
        let low = range.start - range.start % block_bytes;
        let high = range.end.checked_next_multiple_of(block_bytes)?;
        let missing = missing(file, low..high.min(look.stub.covered))?;
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let has_head = low < range.start && first.start < low + block_bytes;
            let has_tail = range.end < high.min(look.size) && last.end > high - block_bytes;
            let below = fstatvfs(file).ok()?;
            let is_low = below.f_bavail.saturating_mul(below.f_frsize) < LOW_SPACE_BYTES;
            if has_head || has_tail || is_low {
                return None;
            }
        }
        Some(StubWrite { start: range.start, missing, block_bytes })
    }

    pub fn perform(&self, file: &DataFile, data: &[u8]) -> Answer<Written> {
        let written = effects::write(file, data, self.start);
        let done = *written.as_ref().unwrap_or(&0);
        if done == data.len() || self.missing.is_empty() {
            return Ok(Written::Bytes(written?));
        }
        let end = self.start + done as u64;
        let kept = (end - end % self.block_bytes).max(self.start);
        if let Err(failure) = self.undo(file, kept) {
            return Ok(Written::Torn(failure));
        }
        if kept <= self.start {
            return Err(written.err().unwrap_or(Failure(libc::ENOSPC)));
        }
        Ok(Written::Bytes((kept - self.start) as usize))
    }

    /// Makes what was missing from `kept` on missing again.
    fn undo(&self, file: &DataFile, kept: u64) -> Answer<()> {
        let unit = fstatvfs(file)?.f_bsize.max(1);
        for part in self.missing.iter().filter(|part| kept < part.end) {
            let start = part.start.max(kept);
            effects::punch(file, start, part.end.next_multiple_of(unit) - start)?;
        }
        Ok(())
    }
}

/// The parts of a range that have no block.
fn missing(file: &DataFile, range: Range<u64>) -> Option<Vec<Range<u64>>> {
    let mut missing = Vec::new();
    if range.is_empty() {
        return Some(missing);
    }
    let (start, end) = (i64::try_from(range.start).ok()?, i64::try_from(range.end).ok()?);
    let mut done = range.start;
    for (low, high) in present(file.fd.as_raw_fd(), start, end).ok()? {
        if done < low as u64 {
            missing.push(done..low as u64);
        }
        done = high as u64;
    }
    if done < range.end {
        missing.push(done..range.end);
    }
    Some(missing)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "rows of ranges, of which there is one")]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    const BLOCK: u64 = 4096;

    /// A file of two blocks without data, that cannot grow.
    fn file() -> DataFile {
        let fd = memfd_create("stub", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 2 * BLOCK).unwrap();
        fcntl_add_seals(&fd, SealFlags::GROW).unwrap();
        DataFile { fd, is_writable: true }
    }

    fn write_from(file: &DataFile, start: u64) -> Answer<Written> {
        let missing = missing(file, start..4 * BLOCK).unwrap();
        StubWrite { start, missing, block_bytes: BLOCK }.perform(file, &[1; 3 * BLOCK as usize])
    }

    #[test]
    fn what_a_write_that_ends_early_has_made_is_kept_in_whole_blocks() {
        let file = file();
        assert!(matches!(write_from(&file, BLOCK), Ok(Written::Bytes(4096))));
        assert_eq!(missing(&file, 0..2 * BLOCK).unwrap().as_slice(), &[0..BLOCK]);
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_missing_missing() {
        let file = file();
        assert!(write_from(&file, 2 * BLOCK).is_err());
        assert_eq!(missing(&file, 0..2 * BLOCK).unwrap().as_slice(), &[0..2 * BLOCK]);
    }

    #[test]
    fn blocks_that_cannot_be_punched_out_again_are_told_of() {
        let file = file();
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        assert!(matches!(write_from(&file, 0), Ok(Written::Torn(_))));
    }
}
