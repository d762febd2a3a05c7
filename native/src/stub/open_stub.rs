//! A stub as a file that is written to: the sparse stream.
//!
//! A write lands in the stub's own file, at the same offset. The invariant is that of
//! `dedupd_core/stub/transition.py`: *a block that is present holds current content; a hole below
//! `covered` has the recipe's content*. So the file system's extent map is always the map of the
//! local content, and as durable as the data. Four rules keep it so:
//!
//! 1. A missing block is only written completely: bytes outside the write come from the recipe, in
//!    the same call. No crash leaves a block that is half filled.
//! 2. If a write fails, the blocks that were missing are punched again. So are blocks that a file
//!    system with larger allocation units adds around the written blocks.
//! 3. The last block of a file that ends within it is filled before the file grows from beyond it.
//! 4. The file is truncated first, then `covered` is updated, before the file grows again.
//!    Journaling file systems keep the order of such changes to one file.
//!    docs/design/crash-safety.md describes the states that a crash can leave.
//!
//! If a change fails because a chunk is missing, it can be repeated with the same result.
//! This module takes no locks: reads may share a stub; changes need it alone.

use std::ffi::CString;
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::fs::{StatVfs, fstatvfs};

use super::blocks::TRANSIENT;
use crate::format::stub::{LENGTH_BYTES_MAX, StubHead, WRITTEN};
use crate::store::record_reader::CacheUse;
use crate::store::stub_bytes::{Failure, StubBytes};
use crate::system::effects::Effects;
use crate::system::extents::{
    extent_size_hint, gaps, has_large_units, local_bytes, present, written,
};
use crate::system::files::status_of;

/// With less than this free, blocks are allocated before they are written.
const LOW_SPACE_BYTES: u64 = 1 << 30;

/// Properties of the attributes of a volume's stubs.
pub struct StubFiles {
    pub attribute: CString,
    /// Seed of the checksum.
    pub seed: u64,
    /// A missing block is filled completely.
    pub block_bytes: u64,
}

/// The state of a settled stub between two changes.
#[derive(Clone)]
pub struct State {
    pub head: StubHead,
    /// Whether `covered` on the disk still has its value from before the file was truncated.
    pub is_stale: bool,
    /// Whether allocated blocks may exist that were never written.
    pub has_unwritten: bool,
    /// Whether the file may have had local blocks since it was opened.
    pub may_be_local: bool,
}

impl State {
    /// `may_be_local`: whether the file has blocks.
    pub fn of(head: StubHead, may_be_local: bool) -> State {
        let (is_stale, has_unwritten) = (false, false);
        State { head, is_stale, has_unwritten, may_be_local }
    }

    /// Returns the parts of a range that only the recipe has: covered, and without a block.
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
    pub reads: CacheUse,
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

    /// Returns the bytes of a range; zeros after the end of the file.
    pub fn bytes_of(&self, range: Range<u64>) -> Done<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let end = range.end.min(self.size()?).max(range.start);
        self.read(range.start..end, &mut bytes[..(end - range.start) as usize])?;
        Ok(bytes)
    }

    /// Returns the number of written bytes; fewer only if no space is free. If a chunk cannot be
    /// read, nothing is written.
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
        let touched = self.block_start(start)..self.block_end(stop);
        let allocates = !missing.is_empty() || touched.end > self.state.head.covered;
        let beside = if allocates { self.holes_beside(touched)? } else { Vec::new() };
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

    /// If space is low, checks before the first write whether it suffices.
    ///
    /// If a write spans several blocks of one cache page and runs out of space, ext4 fills the
    /// blocks that it has allocated with zeros. They would count as current until
    /// [`OpenStub::undo`]. `SEEK_DATA` reports allocated, unwritten blocks as holes, and so does
    /// settling after a kill. After the end of the file (`size`) btrfs would fill the rest of the
    /// last block with zeros, so that the block is present.
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

    /// Returns the missing ranges around a range where the file system may allocate blocks. They
    /// are punched after the write.
    ///
    /// If a file has an extent size hint, XFS fills these holes with unwritten blocks. After a
    /// read-ahead by the kernel, `SEEK_DATA` would report them as data, and reads would return
    /// zeros. After a crash, settling punches them.
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

    /// Punches the blocks from `kept` on that were missing, and restores the file's length.
    fn undo(&mut self, kept: u64, size: u64, missing: &[Range<u64>]) -> Done<()> {
        if self.size()? > size.max(kept) {
            self.effects.truncate(self.fd.as_raw_fd(), size.max(kept))?;
        }
        let unit = fstatvfs(self.fd)?.f_bsize.max(1);
        let mut parts = missing.iter().filter(|part| kept < part.end);
        parts.try_for_each(|part| self.punch(part.start.max(kept)..part.end.next_multiple_of(unit)))
    }

    /// Punches blocks that were only allocated, or filled.
    ///
    /// XFS may lack the space for this if other processes fill the disk. The extents then show
    /// which blocks were only allocated, until the file is settled at the next open.
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

    /// Fills the last block if the file ends within it and grows beyond it.
    ///
    /// btrfs then clears the rest of that block, and so fills a missing block with zeros.
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

    /// Prepares a file that ends within a block and is about to grow: if the block is a hole after
    /// `covered`, btrfs fills it with zeros.
    pub fn unseal_end(&mut self, size: u64) -> Done<()> {
        if size % self.files.block_bytes == 0 { Ok(()) } else { self.unseal() }
    }

    /// Marks the attribute before blocks are added to those that it counts.
    ///
    /// It becomes durable before the first of them does: both are changes of one file's metadata.
    fn unseal(&mut self) -> Done<()> {
        if self.state.head.flags & WRITTEN != 0 {
            return Ok(());
        }
        let flags = self.state.head.flags | WRITTEN;
        self.change_attribute(StubHead { flags, ..self.state.head.clone() })
    }

    /// Marks the attribute before blocks are added, and counted blocks are removed.
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

    /// Updates `covered` on the disk before the file can grow.
    pub fn store_attribute(&mut self) -> Done<()> {
        if !self.state.is_stale {
            return Ok(());
        }
        self.change_attribute(self.state.head.clone())
    }

    /// Updates the number of local bytes in the attribute: it then reveals changes below the mount.
    /// Returns false if some blocks have no place on the disk yet.
    ///
    /// Needs no sync: extents and attributes of one file become durable in the order in which they
    /// were made (docs/design/crash-safety.md), and only existing extents are counted.
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
