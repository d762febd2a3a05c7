//! The system calls of a commit, together: a file costs two crossings of the language border
//! instead of ten. What they mean, and why in this order, is in `dedupd/stub.py`.

use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::RawFd;

use crate::system::calls;
use crate::system::files::{CAPABILITY, Identity, status_of};

fn check(result: libc::c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn set_attribute(fd: RawFd, name: &CStr, value: &[u8]) -> Result<()> {
    // SAFETY: `name` is NUL-terminated, `value` readable for its length.
    check(unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
}

/// Sets an attribute on a file that is `expected` and has the attribute `previous`; returns what
/// the file is then, or None where it is not, or has not, or a time that has no room in one, or a
/// capability that the punch would take away, and nothing was done.
pub fn exchange_attribute(
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
    set_attribute(fd, name, value)?;
    Ok(Some(Identity::of(&status_of(fd)?)))
}

/// Punches the first `length` bytes, then sets the times, then an attribute.
pub fn punch_and_settle(
    fd: RawFd,
    length: i64,
    atime_ns: i64,
    mtime_ns: i64,
    name: &CStr,
    value: &[u8],
) -> Result<()> {
    const SECOND: i64 = 1_000_000_000;
    calls::punch_hole(fd, 0, length)?;
    let times = [atime_ns, mtime_ns].map(|time| libc::timespec {
        tv_sec: time.div_euclid(SECOND),
        tv_nsec: time.rem_euclid(SECOND),
    });
    // SAFETY: two timespecs, as the call wants.
    check(unsafe { libc::futimens(fd, times.as_ptr()) })?;
    set_attribute(fd, name, value)
}
