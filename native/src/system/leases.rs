//! Leases of files: whether anybody else has them open.

use std::ffi::c_int;
use std::io::Error;
use std::os::fd::RawFd;

/// From `fcntl.h`; the libc crate leaves it out.
const F_SETSIG: c_int = 10;

/// Asked by taking a read lease for an instant.
pub fn has_writers(fd: RawFd) -> bool {
    if !lease(fd, libc::F_RDLCK) {
        return true;
    }
    // SAFETY: takes no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
    false
}

/// Takes the write lease of a file open for writing, until it is closed; false where anybody else
/// has it open.
pub fn lease_exclusively(fd: RawFd) -> bool {
    lease(fd, libc::F_WRLCK)
}

/// True also where leases cannot be had. Who would break it makes the kernel send SIGURG, which is
/// ignored, and not SIGIO, which kills.
fn lease(fd: RawFd, kind: c_int) -> bool {
    // SAFETY: these take no pointers.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        libc::fcntl(fd, libc::F_SETLEASE, kind) == 0
            || Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
    }
}
