//! Looking up names of a directory: attributes, and the handle by which the inode opens again.

use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};

use crate::files::{owned, status_of};
use crate::sys::name_to_handle;

pub struct Entry {
    pub status: libc::stat64,
    /// Empty where the file system has none.
    pub handle: Vec<u8>,
}

/// What `name` in the directory `dir` is, and no link's target; None where there is no such name.
pub fn look_up(dir: RawFd, name: &CStr) -> Result<Option<Entry>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `name` is NUL-terminated.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags) };
    if fd < 0 {
        let error = Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    // Both of one descriptor: the name may come to mean something else at any moment.
    let fd = owned(fd)?;
    let status = status_of(fd.as_raw_fd())?;
    let handle = name_to_handle(fd.as_raw_fd()).unwrap_or_default();
    Ok(Some(Entry { status, handle }))
}
