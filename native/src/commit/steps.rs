//! The two steps that make a file a stub, each in one call. What they mean, and why in this order,
//! is in `dedupd/stub/transition.py`; what they have on the disk, they have through `Effects`.

use std::ffi::CStr;
use std::io::Result;
use std::os::fd::RawFd;

use crate::system::calls;
use crate::system::effects::Effects;
use crate::system::files::{CAPABILITY, Identity, status_of};

/// Fail points: `dedupd/stub/transition.py` says what they mean.
const ATTRIBUTE_SET: &str = "stub.attribute-set";
const PUNCHED: &str = "stub.punched";
const TIMES_SET: &str = "stub.times-set";

/// Sets an attribute on a file that is `expected` and has the attribute `previous`; returns what
/// the file is then, or None where it is not, or has not, or a time that has no room in one, or a
/// capability that the punch would take away, and nothing was done.
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
    {
        return Ok(None);
    }
    effects.set_attribute(fd, name, value)?;
    let after = Identity::of(&status_of(fd)?);
    effects.reach(ATTRIBUTE_SET)?;
    Ok(Some(after))
}

/// Punches the first `length` bytes, then sets the times, then an attribute.
pub fn punch_and_settle(
    effects: &dyn Effects,
    fd: RawFd,
    length: i64,
    atime_ns: i128,
    mtime_ns: i64,
    name: &CStr,
    value: &[u8],
) -> Result<()> {
    effects.punch(fd, 0, length)?;
    effects.reach(PUNCHED)?;
    effects.set_times(fd, atime_ns, mtime_ns)?;
    effects.reach(TIMES_SET)?;
    effects.set_attribute(fd, name, value)
}
