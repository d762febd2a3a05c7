//! Names of a directory, and looking them up: attributes, and the handle by which the inode opens
//! again.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, RawFd};

use crate::system::calls::name_to_handle;
use crate::system::files::{DIRENT_BYTES, next_entries, owned, status_of};

pub struct DirectoryEntry {
    pub status: libc::stat64,
    /// Empty where the file system has none.
    pub handle: Vec<u8>,
}

/// Looks up `name` in the directory `dir`, without following a link. None where there is no such
/// name.
pub fn look_up(dir: RawFd, name: &CStr) -> Result<Option<DirectoryEntry>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `name` is NUL-terminated.
    let fd = unsafe { libc::openat(dir, name.as_ptr(), flags) };
    if fd < 0 {
        let error = Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    // Status and handle come from one descriptor, because the name may be given to another file at
    // any moment.
    let fd = owned(fd)?;
    let status = status_of(fd.as_raw_fd())?;
    let handle = name_to_handle(fd.as_raw_fd()).unwrap_or_default();
    Ok(Some(DirectoryEntry { status, handle }))
}

/// Names in the directory `dir`, `.` and `..` among them. Each comes with a position: that of the
/// entry after it. `start` is 0 or such a position, and the listing begins there. All names that
/// are left, or at least `count` of them.
pub fn list(dir: RawFd, start: i64, count: usize) -> Result<Vec<(CString, i64)>> {
    // SAFETY: takes no pointers.
    if unsafe { libc::lseek64(dir, start, libc::SEEK_SET) } < 0 {
        return Err(Error::last_os_error());
    }
    let (mut names, mut buffer) = (Vec::new(), vec![0; DIRENT_BYTES]);
    while names.len() < count {
        let entries = next_entries(dir, &mut buffer)?;
        if entries.is_empty() {
            break;
        }
        names.extend(entries.into_iter().map(|entry| (entry.name, entry.next)));
    }
    Ok(names)
}
