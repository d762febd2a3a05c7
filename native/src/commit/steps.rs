//! The two steps that make a file a stub, with a sync of the file system between them. They change
//! the disk only through `Effects`.
//!
//! Every step keeps the rule of `dedupd_core/stub/transition.py`: a block that is present holds the
//! current content of the file, and a hole holds the content of the recipe. So a crash may leave
//! any number of blocks.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::commit::requests::Request;
use crate::format::stub::{COMMITTING, DIRECT, STUB_BYTES, Seeds, StubHead};
use crate::system::calls::{self, generation_of, number_of};
use crate::system::effects::Effects;
use crate::system::extents::has_large_units;
use crate::system::file_systems::file_system_status;
use crate::system::files::{CAPABILITY, Identity, status_of, times_ns};

/// Fail points: `dedupd_core/stub/transition.py` describes them.
const ATTRIBUTE_SET: &str = "stub.attribute-set";
const PUNCHED: &str = "stub.punched";
const TRIMMED: &str = "stub.trimmed";
const TIMES_SET: &str = "stub.times-set";

/// The unit of `st_blocks`.
const BLOCK_COUNTED: i64 = 512;

/// More blocks than any file system takes for an attribute.
const BLOCKS_PER_ATTRIBUTE: u64 = 16;

/// Why a file does not become a stub. Its content is the same in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It cannot be opened, for this reason.
    Unopened(i32),
    /// The mount that offered its parts has ended.
    Unoffered,
    /// Another process has it open.
    InUse,
    /// Another process opened it between the two steps.
    Opened,
    /// It has another attribute than the expected one.
    OtherStub,
    /// It has capabilities, which the kernel would remove with its blocks.
    Capable,
    /// Its blocks cannot be freed one by one.
    LargeUnits,
    /// It differs from the file that was read.
    Changed,
    /// It changed between the two steps.
    Touched,
    /// Its attributes leave no space for another one, and the disk has space.
    Full,
    /// A step failed, and the file is as before.
    Io(i32),
    /// Its punch, or a step after that, failed. It stays a stub, which is settled when it is
    /// opened: as a plain file, it could consist of zeros.
    HalfWay(i32),
}

impl Why {
    pub fn name(self) -> &'static str {
        match self {
            Why::Unopened(_) => "unopened",
            Why::Unoffered => "unoffered",
            Why::InUse => "in use",
            Why::Opened => "opened",
            Why::OtherStub => "other stub",
            Why::Capable => "capable",
            Why::LargeUnits => "large units",
            Why::Changed => "changed",
            Why::Touched => "touched",
            Why::Full => "full",
            Why::Io(_) => "io",
            Why::HalfWay(_) => "half way",
        }
    }

    /// The error number, or 0.
    pub fn errno(self) -> i32 {
        match self {
            Why::Unopened(number) | Why::Io(number) | Why::HalfWay(number) => number,
            _ => 0,
        }
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Why {
        Why::Io(number_of(&error))
    }
}

/// The common properties of the stubs of a volume.
pub struct Space {
    pub attribute: CString,
    pub seeds: Seeds,
    pub block_bytes: i64,
    pub effects: Arc<dyn Effects>,
}

impl Space {
    /// The first step: sets the attribute of a file that is still the expected one. Returns the
    /// identity of the file with the attribute.
    pub fn begin(&self, fd: RawFd, request: &Request) -> std::result::Result<Identity, Why> {
        let (name, effects, expected) = (&self.attribute, &*self.effects, request.expected);
        let found = Identity::of(&status_of(fd)?);
        if calls::fgetxattr(fd, name)? != request.previous {
            return Err(Why::OtherStub);
        }
        if calls::fgetxattr(fd, CAPABILITY)?.is_some() {
            return Err(Why::Capable);
        }
        if has_large_units(fd)? {
            return Err(Why::LargeUnits);
        }
        // The time of a later file has no room in the attribute.
        if found != expected || !found.has_mtime() {
            return Err(Why::Changed);
        }
        let value = self.stub(fd, request, COMMITTING)?;
        self.set(fd, &value)?;
        let after = Identity::of(&status_of(fd)?);
        effects.reach(ATTRIBUTE_SET)?;
        if (after.size, after.mtime_ns) != (expected.size, expected.mtime_ns) {
            // A writer changed it: setting the attribute moves the ctime only.
            self.revert(fd, request)?;
            return Err(Why::Touched);
        }
        Ok(after)
    }

    /// The second step, when the attribute is durable: punches the blocks of a file that is still
    /// `begun`. Returns the bytes of the blocks that it frees. A file that changed is as before the
    /// first step.
    pub fn finish(
        &self,
        fd: RawFd,
        request: &Request,
        begun: Identity,
    ) -> std::result::Result<i64, Why> {
        let status = status_of(fd)?;
        if Identity::of(&status) != begun {
            self.revert(fd, request)?;
            return Err(Why::Touched);
        }
        // The change time is that of the attribute, so the attribute is that of the first step.
        let value = self.stub(fd, request, 0)?;
        let length = (status.st_size + self.block_bytes - 1) / self.block_bytes * self.block_bytes;
        let (atime_ns, _) = times_ns(&status);
        let (mtime_ns, name) = (request.expected.mtime_ns, &self.attribute);
        let freed = punch(&*self.effects, fd, length, status.st_blocks).and_then(|freed| {
            settle(&*self.effects, fd, (atime_ns, mtime_ns), name, &value).map(|()| freed)
        });
        freed.map_err(|error| Why::HalfWay(number_of(&error)))
    }

    /// Rolls back the first step.
    pub fn revert(&self, fd: RawFd, request: &Request) -> Result<()> {
        match &request.previous {
            None => self.effects.remove_attribute(fd, &self.attribute),
            Some(value) => self.effects.set_attribute(fd, &self.attribute, value),
        }
    }

    /// Sets the attribute. ext4 returns ENOSPC both for a full disk and for a file whose attributes
    /// fill their block. A second attempt distinguishes these, if the disk has free space.
    fn set(&self, fd: RawFd, value: &[u8]) -> std::result::Result<(), Why> {
        let full = |error: &Error| error.raw_os_error() == Some(libc::ENOSPC);
        let set = || self.effects.set_attribute(fd, &self.attribute, value);
        let Err(first) = set() else { return Ok(()) };
        if !full(&first) || file_system_status(fd)?.f_bavail < BLOCKS_PER_ATTRIBUTE {
            return Err(first.into());
        }
        set().map_err(|again| if full(&again) { Why::Full } else { again.into() })
    }

    /// The attribute of the stub that the file becomes.
    fn stub(&self, fd: RawFd, request: &Request, state: u8) -> Result<[u8; STUB_BYTES]> {
        let stub = StubHead {
            flags: state | if request.direct { DIRECT } else { 0 },
            recipe: request.recipe,
            digest: request.digest,
            covered: request.expected.size as u64,
            mtime_ns: request.expected.mtime_ns,
            binding: self.seeds.binding(request.expected.inode, generation_of(fd)?),
            local: 0,
        };
        Ok(stub.to_bytes(self.seeds.attribute))
    }
}

/// Punches the first `length` bytes, and frees blocks after the end of the file. Returns the bytes
/// of blocks that this frees, of `blocks` before.
fn punch(effects: &dyn Effects, fd: RawFd, length: i64, blocks: i64) -> Result<i64> {
    effects.punch(fd, 0, length)?;
    effects.reach(PUNCHED)?;
    let mut after = status_of(fd)?;
    if after.st_blocks > 0 {
        // ext4 punches nothing after the end. Truncating a file to its own length frees that.
        effects.truncate(fd, after.st_size as u64)?;
        effects.reach(TRIMMED)?;
        after = status_of(fd)?;
    }
    Ok((blocks - after.st_blocks).max(0) * BLOCK_COUNTED)
}

fn settle(
    effects: &dyn Effects,
    fd: RawFd,
    (atime_ns, mtime_ns): (i128, i64),
    name: &CStr,
    value: &[u8],
) -> Result<()> {
    effects.set_times(fd, atime_ns, mtime_ns.into())?;
    effects.reach(TIMES_SET)?;
    effects.set_attribute(fd, name, value)
}
