//! Leases of files, which show whether another process has the file open.

use std::ffi::c_int;
use std::io::Error;
use std::os::fd::RawFd;

/// From `fcntl.h`; the libc crate lacks it.
const F_SETSIG: c_int = 10;

/// Returns whether any process has the file open for writing. Takes a read lease for an instant.
pub fn has_writers(fd: RawFd) -> bool {
    if !lease(fd, libc::F_RDLCK) {
        return true;
    }
    // SAFETY: takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
    false
}

/// Takes the write lease of a file that is open for writing. The lease lasts until the file is
/// closed. Returns false if another process has the file open.
pub fn lease_exclusively(fd: RawFd) -> bool {
    lease(fd, libc::F_WRLCK)
}

/// Also returns true on file systems without leases. An attempt to break the lease sends the
/// ignored signal SIGURG instead of SIGIO, which would end this process.
fn lease(fd: RawFd, kind: c_int) -> bool {
    // SAFETY: these take no pointers.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        libc::fcntl(fd, libc::F_SETLEASE, kind) == 0
            || Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
    }
}
