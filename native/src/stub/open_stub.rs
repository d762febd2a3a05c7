//! A stub as a file that is written to: the sparse stream.
//!
//! A write lands in the stub's own file, at the same offset. The invariant is that of
//! `dedupd_core/stub/transition.py`: *a block that is present holds current content; a hole below
//! `covered` is what the recipe says*. So the file system's extent map is at all times the map of
//! what is local, and as durable as the data. Four rules keep it so:
//!
//! 1. A missing block is only ever written whole: what the write does not cover comes from the
//!    recipe, in the same call. No crash leaves a block that is half filled.
//! 2. What a failed write leaves in a block that was missing is punched out again, and so is what a
//!    file system that allocates in larger pieces adds beside the blocks that are written.
//! 3. The last block of a file that ends within it is filled before the file grows from beyond it.
//! 4. The file is cut first, then `covered` follows; it follows before the file grows again. File
//!    systems that journal keep the order of such changes to one file; docs/design/crash-safety.md
//!    goes through the states that a crash can leave.
//!
//! Every change may be repeated if it fails for lack of a chunk: it then has the same result.
//! Nothing here locks: reads may share a stub; changes need it alone.

use std::ffi::CString;
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::fs::{StatVfs, fstatvfs};

use super::blocks::TRANSIENT;
use crate::format::stub::{LENGTH_BYTES_MAX, StubHead, WRITTEN};
use crate::store::record_reader::Reads;
use crate::store::stub_bytes::{Failure, StubBytes};
use crate::system::effects::Effects;
use crate::system::extents::{
    extent_size_hint, gaps, has_large_units, local_bytes, present, written,
};
use crate::system::files::status_of;

/// With less than this free, blocks are allocated before they are written.
const LOW_SPACE_BYTES: u64 = 1 << 30;

/// How the attributes of a volume's stubs are kept.
pub struct StubFiles {
    pub attribute: CString,
    /// Of the checksum.
    pub seed: u64,
    /// A block that is missing is filled as a whole.
    pub block_bytes: u64,
}

/// What is known of a settled stub between two changes.
#[derive(Clone)]
pub struct State {
    pub head: StubHead,
    /// Whether `covered` on the disk is still that of before the file was cut.
    pub is_stale: bool,
    /// Whether blocks may have been left that are allocated and were never written.
    pub has_unwritten: bool,
    /// Whether blocks of the file's own may have been there since it was opened.
    pub may_be_local: bool,
}

impl State {
    /// `may_be_local`: whether the file has blocks.
    pub fn of(head: StubHead, may_be_local: bool) -> State {
        let (is_stale, has_unwritten) = (false, false);
        State { head, is_stale, has_unwritten, may_be_local }
    }

    /// The parts of a range of the file that are the recipe's: covered, and without a block.
    pub fn missing(&self, fd: RawFd, range: Range<u64>) -> Result<Vec<Range<u64>>, Error> {
        let end = range.end.min(self.head.covered);
        if range.start >= end || !self.may_be_local {
            return Ok(Vec::from_iter((range.start < end).then_some(range.start..end)));
        }
        let list = if self.has_unwritten { written } else { present };
        let (start, end) = (range.start as i64, end as i64);
        let missing = gaps(list(fd, start, end)?, start, end);
        Ok(missing.map(|(low, high)| low as u64..high as u64).collect())
    }
}

/// A stub for one change of it.
pub struct OpenStub<'a> {
    pub fd: BorrowedFd<'a>,
    pub state: State,
    pub files: &'a StubFiles,
    pub effects: &'a dyn Effects,
    pub bytes: StubBytes<'a>,
    pub reads: Reads,
}

pub type Done<T> = Result<T, Failure>;

impl OpenStub<'_> {
    pub fn size(&self) -> Done<u64> {
        Ok(status_of(self.fd.as_raw_fd())?.st_size as u64)
    }

    pub fn block_start(&self, at: u64) -> u64 {
        at - at % self.files.block_bytes
    }

    pub fn block_end(&self, at: u64) -> u64 {
        at.next_multiple_of(self.files.block_bytes)
    }

    pub fn missing(&self, range: Range<u64>) -> Done<Vec<Range<u64>>> {
        Ok(self.state.missing(self.fd.as_raw_fd(), range)?)
    }

    /// Fills `out` with a range that ends with the file, or before.
    pub fn read(&self, range: Range<u64>, out: &mut [u8]) -> Done<()> {
        let missing = self.missing(range.clone())?.into_iter().map(|part| (part.start, part.end));
        let own = gaps(missing, range.start, range.end);
        self.bytes.fill(self.fd, &self.state.head, own, range, self.reads, out)
    }

    /// The bytes of a range; zeros behind the end of the file.
    pub fn bytes_of(&self, range: Range<u64>) -> Done<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let end = range.end.min(self.size()?).max(range.start);
        self.read(range.start..end, &mut bytes[..(end - range.start) as usize])?;
        Ok(bytes)
    }

    /// Returns how many bytes, fewer only if the space ends. If a chunk cannot be read nothing was
    /// written.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Done<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let end = checked_length(offset.saturating_add(data.len() as u64))?;
        let size = self.size()?;
        if end > size {
            self.store_attribute()?;
        }
        let (low, high) = (self.block_start(offset), self.block_end(end));
        if offset > size {
            self.fill_end(size, low)?;
        }
        let missing = self.missing(low..high)?;
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        match (missing.first(), missing.last()) {
            (Some(first), Some(last)) => {
                if low < offset && first.start < low + self.files.block_bytes {
                    head = self.bytes_of(low..offset)?;
                }
                let stop = high.min(size);
                if end < stop && last.end > high - self.files.block_bytes {
                    tail = self.bytes_of(end..stop)?;
                }
                self.unseal()?;
            }
            _ if high > self.state.head.covered => self.unseal()?,
            _ => {}
        }
        self.write_blocks(offset, [&head, data, &tail], size, &missing)
    }

    /// As [`OpenStub::write`], all of `data`.
    pub fn write_all(&mut self, mut offset: u64, mut data: &[u8]) -> Done<()> {
        while !data.is_empty() {
            let count = self.write(offset, data)?;
            (offset, data) = (offset + count as u64, &data[count..]);
        }
        Ok(())
    }

    /// Writes head, data (at `offset`) and tail, which together fill every missing block that they
    /// touch. Returns how many bytes of `data`.
    fn write_blocks(
        &mut self,
        offset: u64,
        parts: [&[u8]; 3],
        size: u64,
        missing: &[Range<u64>],
    ) -> Done<usize> {
        let [head, data, tail] = parts;
        let (start, end) = (offset - head.len() as u64, offset + data.len() as u64);
        let stop = end + tail.len() as u64;
        self.state.may_be_local |= !missing.is_empty();
        let beside = self.holes_beside(self.block_start(start)..self.block_end(stop))?;
        let written = self.allocate_if_low(size, missing).and_then(|()| {
            self.effects.write_some(self.fd.as_raw_fd(), &parts, start).map_err(Failure::from)
        });
        let reached = start + *written.as_ref().unwrap_or(&0) as u64;
        let punched = beside.into_iter().try_for_each(|hole| self.punch(hole));
        let mut kept = reached;
        if reached < stop && !missing.is_empty() {
            kept = self.block_start(reached).max(start);
            self.undo(kept, size, missing)?;
        }
        punched?;
        written?;
        match kept.min(end).checked_sub(offset) {
            Some(count) if count > 0 => Ok(count as usize),
            _ => Err(errno(libc::ENOSPC)),
        }
    }

    /// If space is low, finds out before anything is written whether it suffices.
    ///
    /// A write that spans several blocks of one page of the cache, and runs out of space in the
    /// middle, makes ext4 fill the blocks that it did get with zeros. They would count as current
    /// until [`OpenStub::undo`]. Allocated blocks that are not written are holes for `SEEK_DATA`, and
    /// for settling after a kill. Behind the end of the file (`size`) btrfs would fill the rest of
    /// the last block with zeros, and so make it one that is present.
    fn allocate_if_low(&self, size: u64, missing: &[Range<u64>]) -> Done<()> {
        if missing.is_empty() || free_bytes(&fstatvfs(self.fd)?) >= LOW_SPACE_BYTES {
            return Ok(());
        }
        for part in missing {
            let end = self.block_end(part.end).min(size);
            self.allocate_blocks(self.block_start(part.start)..end)?;
        }
        Ok(())
    }

    pub fn allocate_blocks(&self, range: Range<u64>) -> Done<()> {
        let (offset, length) = (range.start as i64, (range.end - range.start) as i64);
        Ok(self.effects.allocate(self.fd.as_raw_fd(), offset, length)?)
    }

    /// The missing ranges that the blocks around a range may be allocated in, to be punched once it
    /// is written.
    ///
    /// Of a file with a hint for the size of its extents, XFS fills these holes with blocks that are
    /// not written. `SEEK_DATA` would call them data once the kernel has read ahead into them, and
    /// they would be read as zeros. A crash in between leaves them to settling.
    fn holes_beside(&self, written: Range<u64>) -> Done<Vec<Range<u64>>> {
        let fd = self.fd.as_raw_fd();
        let unit = extent_size_hint(fd)?;
        if unit <= self.files.block_bytes {
            return Ok(Vec::new());
        }
        // An extent is aligned to its unit, and moved by less than one if another is in the way.
        let start = (written.start - written.start % unit).saturating_sub(unit);
        let end = written.end.next_multiple_of(unit).saturating_add(unit).min(i64::MAX as u64);
        let mut there = present(fd, start as i64, written.start as i64)?;
        there.push((written.start as i64, written.end as i64));
        there.extend(present(fd, written.end as i64, end as i64)?);
        let covered = self.block_end(self.state.head.covered);
        let beside = gaps(there, start as i64, end as i64).map(|gap| gap.0 as u64..gap.1 as u64);
        let is_beside = |gap: &Range<u64>| {
            gap.start < covered && (gap.end == written.start || gap.start == written.end)
        };
        Ok(beside.filter(is_beside).map(|gap| gap.start..gap.end.min(covered)).collect())
    }

    /// Makes what was missing from `kept` on missing again, and the file as long as it was.
    fn undo(&mut self, kept: u64, size: u64, missing: &[Range<u64>]) -> Done<()> {
        if self.size()? > size.max(kept) {
            self.effects.truncate(self.fd.as_raw_fd(), size.max(kept))?;
        }
        let unit = fstatvfs(self.fd)?.f_bsize.max(1);
        let mut parts = missing.iter().filter(|part| kept < part.end);
        parts.try_for_each(|part| self.punch(part.start.max(kept)..part.end.next_multiple_of(unit)))
    }

    /// Makes blocks holes again: what was only allocated, or filled.
    ///
    /// XFS may have no room for that, on a disk that others fill up meanwhile. From then on the
    /// extents tell what was only allocated, until the file is settled when it is opened next.
    pub fn punch(&mut self, range: Range<u64>) -> Done<()> {
        let (offset, length) = (range.start as i64, (range.end - range.start) as i64);
        let punched = self.effects.punch(self.fd.as_raw_fd(), offset, length);
        self.state.has_unwritten |= punched.is_err();
        Ok(punched?)
    }

    /// Sets the length. Returns whether the file is plain from now on.
    pub fn truncate(&mut self, size: u64) -> Done<bool> {
        let (fd, old) = (self.fd.as_raw_fd(), self.size()?);
        if size > old {
            checked_length(size)?;
            self.store_attribute()?;
            self.fill_end(old, size)?;
            self.unseal_end(old)?;
            self.effects.truncate(fd, size)?;
            return Ok(false);
        }
        if self.state.head.local > 0 {
            self.uncount()?;
        }
        self.effects.truncate(fd, size)?;
        if size < self.state.head.covered {
            self.state.head.covered = size;
            self.state.is_stale = true;
        }
        if size == 0 {
            self.effects.remove_attribute(fd, &self.files.attribute)?;
            return Ok(true);
        }
        self.store_attribute()?;
        Ok(false)
    }

    /// Fills the last block, if the file ends within it and grows from beyond it.
    ///
    /// btrfs clears the rest of that block then, and in doing so gives a missing one zeros.
    pub fn fill_end(&mut self, size: u64, grows_from: u64) -> Done<()> {
        let low = self.block_start(size);
        if grows_from <= low {
            return Ok(());
        }
        let missing = self.missing(low..size)?;
        if missing.is_empty() {
            return Ok(());
        }
        let data = self.bytes_of(low..size)?;
        self.unseal()?;
        match self.write_blocks(low, [&[], &data, &[]], size, &missing)? {
            count if count < data.len() => Err(errno(libc::ENOSPC)),
            _ => Ok(()),
        }
    }

    /// For a file that is about to grow, and ends within a block: btrfs makes one of zeros if that is
    /// a hole behind `covered`.
    pub fn unseal_end(&mut self, size: u64) -> Done<()> {
        if size % self.files.block_bytes == 0 { Ok(()) } else { self.unseal() }
    }

    /// Says that blocks are about to be added to those that the attribute counts.
    ///
    /// It becomes durable before the first of them does: both are changes of one file's metadata.
    fn unseal(&mut self) -> Done<()> {
        if self.state.head.flags & WRITTEN != 0 {
            return Ok(());
        }
        let flags = self.state.head.flags | WRITTEN;
        self.change_attribute(StubHead { flags, ..self.state.head.clone() })
    }

    /// Says that blocks are about to come, and blocks to go that the attribute counts.
    pub fn uncount(&mut self) -> Done<()> {
        if self.state.head.local == 0 && self.state.head.flags & WRITTEN != 0 {
            return Ok(());
        }
        let flags = self.state.head.flags | WRITTEN;
        self.change_attribute(StubHead { flags, local: 0, ..self.state.head.clone() })
    }

    pub fn change_attribute(&mut self, changed: StubHead) -> Done<()> {
        self.write_attribute(&changed)?;
        self.state.head = changed;
        self.state.is_stale = false;
        Ok(())
    }

    pub fn write_attribute(&self, head: &StubHead) -> Done<()> {
        let fd = self.fd.as_raw_fd();
        if has_large_units(fd)? {
            return Err(errno(libc::EOPNOTSUPP));
        }
        let value = head.to_bytes(self.files.seed);
        Ok(self.effects.set_attribute(fd, &self.files.attribute, &value)?)
    }

    /// Brings `covered` on the disk up to date, before the file can grow.
    pub fn store_attribute(&mut self) -> Done<()> {
        if !self.state.is_stale {
            return Ok(());
        }
        self.change_attribute(self.state.head.clone())
    }

    /// Makes the attribute count the blocks of the stub's own: from then on a change below the mount
    /// is noticed. False if some have no place on the disk yet.
    ///
    /// Needs no sync: extents and attributes of one file become durable in the order in which they
    /// were made (docs/design/crash-safety.md), and only extents that are there are counted.
    pub fn seal(&mut self) -> Done<bool> {
        if self.state.has_unwritten {
            return Ok(false);
        }
        self.store_attribute()?;
        let flags = self.state.head.flags;
        if flags & TRANSIENT != 0 || flags & WRITTEN == 0 {
            return Ok(true);
        }
        let end = self.block_end(self.size()?) as i64;
        let (found, pending) = local_bytes(self.fd.as_raw_fd(), end, false)?;
        if pending > 0 {
            return Ok(false);
        }
        let (flags, local) = (flags & !WRITTEN, found as u64);
        self.change_attribute(StubHead { flags, local, ..self.state.head.clone() })?;
        Ok(true)
    }
}

pub fn errno(number: i32) -> Failure {
    Error::from_raw_os_error(number).into()
}

fn free_bytes(found: &StatVfs) -> u64 {
    found.f_bavail.saturating_mul(found.f_frsize)
}

fn checked_length(length: u64) -> Done<u64> {
    if length <= LENGTH_BYTES_MAX { Ok(length) } else { Err(errno(libc::EFBIG)) }
}
