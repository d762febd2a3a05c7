//! Writes to a stub: to blocks that it has of its own already, or behind all that the recipe stands
//! for, and to missing blocks whose rest the write covers, or memory has.
//!
//! The rules are those of `dedupd_core/stub/stub_file.py`: a block that is missing is only ever written
//! whole, and what a failed write leaves in one is punched out again. Python has all other cases: a
//! chunk that has to be read, the first block of a stub's own, which the attribute has to allow for, a
//! file that grows from a block of the recipe's, and a disk that is nearly full.

use std::borrow::Cow;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::fs::fstatvfs;

use crate::format::stub::{LENGTH_BYTES_MAX, WRITTEN};
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

/// A write to a stub that needs nothing but what is in memory.
pub struct StubWrite {
    start: u64,
    /// What missing blocks have before the write, and behind it.
    head: Vec<u8>,
    tail: Vec<u8>,
    /// The parts of the blocks it touches that have been the recipe's until now.
    missing: Vec<Range<u64>>,
    block_bytes: u64,
}

impl StubWrite {
    /// None where the write is not one of these.
    pub fn of(
        store: &Arc<Store>,
        file: &DataFile,
        look: &Look,
        range: &Range<u64>,
    ) -> Option<StubWrite> {
        let block_bytes = store.block_bytes;
        let is_possible = range.start < range.end
            && range.start <= look.size
            && range.end <= LENGTH_BYTES_MAX
            && look.stub.flags & WRITTEN != 0;
        if !is_possible {
            return None;
        }
        let low = range.start - range.start % block_bytes;
        let high = range.end.checked_next_multiple_of(block_bytes)?;
        let missing = missing(file, low..high.min(look.stub.covered))?;
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let below = fstatvfs(file).ok()?;
            let is_low = below.f_bavail.saturating_mul(below.f_frsize) < LOW_SPACE_BYTES;
            if is_low || range.end > look.size {
                return None;
            }
            if low < range.start && first.start < low + block_bytes {
                head = store.bytes_at_hand(file, look, low..range.start)?;
            }
            let end = high.min(look.size);
            if range.end < end && last.end > high - block_bytes {
                tail = store.bytes_at_hand(file, look, range.end..end)?;
            }
        }
        Some(StubWrite { start: range.start, head, tail, missing, block_bytes })
    }

    pub fn perform(&self, file: &DataFile, data: &[u8]) -> Answer<Written> {
        let start = self.start - self.head.len() as u64;
        let end = self.start + data.len() as u64;
        let whole = match (&self.head[..], &self.tail[..]) {
            ([], []) => Cow::Borrowed(data),
            (head, tail) => Cow::Owned([head, data, tail].concat()),
        };
        let written = effects::write(file, &whole, start);
        let done = *written.as_ref().unwrap_or(&0);
        if done == whole.len() {
            return Ok(Written::Bytes(data.len()));
        }
        if self.missing.is_empty() {
            return Ok(Written::Bytes(written?));
        }
        let reached = start + done as u64;
        let kept = (reached - reached % self.block_bytes).max(start);
        if let Err(failure) = self.undo(file, kept) {
            return Ok(Written::Torn(failure));
        }
        if kept <= self.start {
            return Err(written.err().unwrap_or(Failure(libc::ENOSPC)));
        }
        Ok(Written::Bytes((kept.min(end) - self.start) as usize))
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
        let (head, tail) = (Vec::new(), Vec::new());
        StubWrite { start, head, tail, missing, block_bytes: BLOCK }
            .perform(file, &[1; 3 * BLOCK as usize])
    }

    /// A write from the middle of block to the middle of another one, both missing.
    fn write_between(file: &DataFile, first: u64, length: usize) -> Answer<Written> {
        let missing = missing(file, first..first + 2 * BLOCK).unwrap();
        let (head, tail) = (vec![2; 1000], vec![3; 2 * BLOCK as usize - 1000 - length]);
        StubWrite { start: first + 1000, head, tail, missing, block_bytes: BLOCK }
            .perform(file, &vec![1; length])
    }

    #[test]
    fn missing_blocks_are_filled_in_the_same_call() {
        let file = file();
        assert!(matches!(write_between(&file, 0, 5000), Ok(Written::Bytes(5000))));
        let mut bytes = vec![0; 2 * BLOCK as usize];
        assert_eq!(file.read_all(0, &mut bytes).unwrap(), bytes.len());
        assert_eq!(bytes, [vec![2; 1000], vec![1; 5000], vec![3; 2192]].concat());
    }

    #[test]
    fn of_a_write_that_ends_in_the_middle_only_its_own_bytes_count() {
        // The second block cannot be had: the file does not grow.
        for (length, counted) in [(5000, 3096), (3096, 3096), (500, 500)] {
            let file = file();
            let written = write_between(&file, BLOCK, length);
            assert!(matches!(written, Ok(Written::Bytes(count)) if count == counted));
            assert_eq!(missing(&file, 0..2 * BLOCK).unwrap().as_slice(), &[0..BLOCK]);
        }
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
