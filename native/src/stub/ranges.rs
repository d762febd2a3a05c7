//! Ranges of a stub that are changed without data, by `fallocate`.
//!
//! A hole below `covered` stands for the recipe's bytes, so it cannot stand for zeros. To punch a
//! range, zeros are written, unless a hole reads as zeros: after `covered`, and in a hole of the
//! recipe. `covered` shrinks if the rest of the file becomes zeros. After a crash between two
//! changes, a part of the range is unchanged.
//!
//! A change consists of steps. Each step starts at the end of the previous step, with the current
//! state of the stub.

use std::ops::Range;
use std::os::fd::AsRawFd;

use super::open_stub::{Done, OpenStub};
use crate::format::stub::{StubHead, WRITTEN};
use crate::system::files::status_of;

/// Largest number of bytes, zeros or content, that one step writes while it has the file alone.
const STEP_BYTES: u64 = 4 << 20;

/// The end of a step, and whether the file is plain from now on.
pub type Step = (u64, bool);

impl OpenStub<'_> {
    /// Allocates blocks for a range, from its start on, so that later writes to it need no space.
    pub fn allocate(&mut self, range: Range<u64>, keeps_size: bool) -> Done<Step> {
        let (size, covered) = (self.size()?, self.block_end(self.state.head.covered));
        let low = self.block_start(range.start);
        let step_end = range.end.min(low + STEP_BYTES).min(covered);
        if range.start < step_end {
            for part in self.missing(low..step_end.min(size))? {
                let data = self.bytes_of(part.clone())?;
                self.write_all(part.start, &data)?;
            }
            if step_end < range.end {
                return Ok((step_end, false));
            }
        } else if covered < range.end {
            self.reserve(range.start.max(covered)..range.end, size)?;
        }
        if range.end > size && !keeps_size {
            self.truncate(range.end)?;
        }
        Ok((range.end, false))
    }

    /// Allocates blocks after those that the recipe covers, even after the end of the file: btrfs
    /// then clears the rest of the last block as if the file grew.
    fn reserve(&mut self, range: Range<u64>, size: u64) -> Done<()> {
        if range.end > size {
            self.store_attribute()?;
            self.fill_end(size, range.end)?;
            self.unseal_end(size)?;
        }
        self.allocate_blocks(range)
    }

    /// Makes a range read as zeros, from its start to the end of the file at most, and frees the
    /// blocks that this does not need.
    pub fn zero(&mut self, start: u64, end: u64) -> Done<Step> {
        let size = self.size()?;
        if start >= size {
            return Ok((end, false));
        }
        let end = end.min(size);
        let low = self.block_end(start);
        let high = if end == size { self.block_end(end) } else { self.block_start(end) };
        if start < low || low >= high {
            let edge = if start < low { low.min(end) } else { end };
            self.write_zeros(start..edge)?;
            return Ok((edge.max(start), false));
        }
        if high >= self.state.head.covered {
            self.write_zeros(high..end)?;
            return Ok((end, self.end_in_zeros(low..high)?));
        }
        let (step_end, mut at) = (high.min(low + STEP_BYTES), low);
        for data in self.blocks_with_data(low..step_end)? {
            self.release(at..data.start)?;
            self.write_all(data.start, &vec![0; (data.end - data.start) as usize])?;
            at = data.end;
        }
        self.release(at..step_end)?;
        Ok((step_end, false))
    }

    /// Writes zeros to less than a block, unless these bytes are zeros already.
    fn write_zeros(&mut self, range: Range<u64>) -> Done<()> {
        if range.start < range.end && self.bytes_of(range.clone())?.iter().any(|&byte| byte != 0) {
            self.write_all(range.start, &vec![0; (range.end - range.start) as usize])?;
        }
        Ok(())
    }

    /// Returns the complete blocks of a range in which the recipe has data, in order.
    fn blocks_with_data(&self, range: Range<u64>) -> Done<Vec<Range<u64>>> {
        let (mut found, mut at) = (Vec::new(), range.start);
        let head = &self.state.head;
        let covered = range.start..range.end.min(head.covered);
        let spans = self.bytes.content.spans(head, &covered, self.reads);
        for span in spans.map_err(|reason| vec![reason])?.iter().filter(|one| one.chunk.is_some()) {
            let low = self.block_start(span.start.max(covered.start)).max(at);
            let high = self.block_end(span.end.min(covered.end));
            if low < high {
                found.push(low..high);
                at = high;
            }
        }
        Ok(found)
    }

    /// Punches complete blocks if the recipe has a hole there, so that they read as zeros.
    fn release(&mut self, range: Range<u64>) -> Done<()> {
        if range.is_empty() || status_of(self.fd.as_raw_fd())?.st_blocks == 0 {
            return Ok(());
        }
        if self.state.head.local > 0 {
            self.uncount()?;
        }
        self.punch(range)
    }

    /// Punches complete blocks, up to the end of the covered bytes or farther, so that they read as
    /// zeros. Returns whether the file is plain from now on.
    ///
    /// The attribute changes first: a hole that is still covered would read as the recipe's bytes.
    /// The attribute is synced: if no block is punched, only the attribute records the zeros, and a
    /// user's fdatasync need not make an attribute durable.
    fn end_in_zeros(&mut self, range: Range<u64>) -> Done<bool> {
        let (fd, head) = (self.fd.as_raw_fd(), self.state.head.clone());
        if range.start == 0 {
            self.effects.remove_attribute(fd, &self.files.attribute)?;
        } else if range.start < head.covered || head.local > 0 {
            let (flags, covered) = (head.flags | WRITTEN, head.covered.min(range.start));
            self.change_attribute(StubHead { flags, covered, local: 0, ..head })?;
        }
        self.effects.sync_file(fd)?;
        let is_plain = range.start == 0;
        self.punch(range)?;
        Ok(is_plain)
    }
}
