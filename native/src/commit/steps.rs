//! The two steps that make a file a stub, each in one call. What they mean, and why in this order,
//! is in `dedupd_core/stub/transition.py`; what they have on the disk, they have through `Effects`.

use std::ffi::CStr;
use std::io::Result;
use std::os::fd::RawFd;

use crate::system::calls;
use crate::system::effects::Effects;
use crate::system::extents::has_large_units;
use crate::system::files::{CAPABILITY, Identity, status_of};

/// Fail points: `dedupd_core/stub/transition.py` says what they mean.
const ATTRIBUTE_SET: &str = "stub.attribute-set";
const PUNCHED: &str = "stub.punched";
const TRIMMED: &str = "stub.trimmed";
const TIMES_SET: &str = "stub.times-set";

/// What `st_blocks` counts in.
const BLOCK_COUNTED: i64 = 512;

/// Sets an attribute on a file that is `expected` and has the attribute `previous`; returns what
/// the file is then, or None where it is not, or has not, or a time that has no room in one, or a
/// capability that the punch would take away, or blocks that cannot be freed one by one, and nothing
/// was done.
pub fn exchange_attribute(
    effects: &dyn Effects,
    fd: RawFd,
    expected: Identity,
    name: &CStr,
    previous: Option<&[u8]>,
    value: &[u8],
) -> Result<Option<Identity>> {
    let found = Identity::of(&status_of(fd)?);
    let is_expected = found == expected && found.has_mtime();
    if !is_expected
        || calls::fgetxattr(fd, name)?.as_deref() != previous
        || calls::fgetxattr(fd, CAPABILITY)?.is_some()
        || has_large_units(fd)?
    {
        return Ok(None);
    }
    effects.set_attribute(fd, name, value)?;
    let after = Identity::of(&status_of(fd)?);
    effects.reach(ATTRIBUTE_SET)?;
    Ok(Some(after))
}

/// Punches the first `length` bytes and what was allocated behind the end of the file, then sets the
/// times, then an attribute. Returns how many bytes of blocks the file has given up.
pub fn punch_and_settle(
    effects: &dyn Effects,
    fd: RawFd,
    length: i64,
    atime_ns: i128,
    mtime_ns: i64,
    name: &CStr,
    value: &[u8],
) -> Result<i64> {
    let before = status_of(fd)?;
    effects.punch(fd, 0, length)?;
    effects.reach(PUNCHED)?;
    let mut after = status_of(fd)?;
    if after.st_blocks > 0 {
        // ext4 punches nothing behind the end. To cut a file to its own length gives that up.
        effects.truncate(fd, after.st_size as u64)?;
        effects.reach(TRIMMED)?;
        after = status_of(fd)?;
    }
    effects.set_times(fd, atime_ns, mtime_ns.into())?;
    effects.reach(TIMES_SET)?;
    effects.set_attribute(fd, name, value)?;
    Ok((before.st_blocks - after.st_blocks).max(0) * BLOCK_COUNTED)
}
