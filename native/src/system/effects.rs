//! Durable effects: native code changes the disk only by these calls.
//!
//! Code with several of them takes `Effects`. Production passes `SystemCalls`. Tests that observe
//! each effect, for example on a simulated disk, pass Python's disk. It may refuse an effect, lose
//! it, or end the process before it, in the same code as in production.

use std::ffi::{CStr, c_int, c_long};
use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

/// Each method is one durable effect, and one method of `dedupd_core.system.disk.Disk`.
pub trait Effects: Send + Sync {
    fn set_attribute(&self, fd: RawFd, name: &CStr, value: &[u8]) -> Result<()>;
    fn remove_attribute(&self, fd: RawFd, name: &CStr) -> Result<()>;
    fn punch(&self, fd: RawFd, offset: i64, length: i64) -> Result<()>;
    fn set_times(&self, fd: RawFd, atime_ns: i128, mtime_ns: i128) -> Result<()>;
    fn write_at(&self, file: &File, data: &[u8], offset: u64) -> Result<()>;
    /// One attempt, for all parts in a row; returns the number of bytes written.
    fn write_some(&self, fd: RawFd, parts: &[&[u8]], offset: u64) -> Result<usize>;
    fn allocate(&self, fd: RawFd, offset: i64, length: i64) -> Result<()>;
    fn truncate(&self, fd: RawFd, length: u64) -> Result<()>;
    fn sync_file(&self, fd: RawFd) -> Result<()>;

    /// Passes a fail point that `dedupd_core.failpoint` knows by this name. An error ends the work.
    fn reach(&self, point: &str) -> Result<()>;

    /// The number of threads, at most `threads`, that may have effects at the same time. It is one
    /// if their order must be the same each time.
    fn threads(&self, threads: usize) -> usize;
}

/// The file systems of this machine.
pub struct SystemCalls;

impl Effects for SystemCalls {
    fn set_attribute(&self, fd: RawFd, name: &CStr, value: &[u8]) -> Result<()> {
        let (data, length) = (value.as_ptr().cast(), value.len());
        // SAFETY: `name` is NUL-terminated, `value` readable for its length.
        check(unsafe { libc::fsetxattr(fd, name.as_ptr(), data, length, 0) }.into())
    }

    fn remove_attribute(&self, fd: RawFd, name: &CStr) -> Result<()> {
        // SAFETY: `name` is NUL-terminated.
        check(unsafe { libc::fremovexattr(fd, name.as_ptr()) }.into())
    }

    fn punch(&self, fd: RawFd, offset: i64, length: i64) -> Result<()> {
        punch_hole(fd, offset, length)
    }

    fn set_times(&self, fd: RawFd, atime_ns: i128, mtime_ns: i128) -> Result<()> {
        const SECOND: i128 = 1_000_000_000;
        let times = [atime_ns, mtime_ns].map(|time| libc::timespec {
            tv_sec: time.div_euclid(SECOND) as i64,
            tv_nsec: time.rem_euclid(SECOND) as i64,
        });
        // SAFETY: two timespecs, as the call requires.
        check(unsafe { libc::futimens(fd, times.as_ptr()) }.into())
    }

    fn write_at(&self, file: &File, data: &[u8], offset: u64) -> Result<()> {
        file.write_all_at(data, offset)
    }

    fn write_some(&self, fd: RawFd, parts: &[&[u8]], offset: u64) -> Result<usize> {
        let offset = i64::try_from(offset).map_err(|_| Error::from_raw_os_error(libc::EFBIG))?;
        let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        loop {
            // SAFETY: an `IoSlice` has the layout of an `iovec`, and its bytes are readable.
            let done =
                unsafe { libc::pwritev64(fd, parts.as_ptr().cast(), parts.len() as c_int, offset) };
            match (usize::try_from(done), Error::last_os_error()) {
                (Ok(count), _) => return Ok(count),
                (Err(_), error) if error.kind() == ErrorKind::Interrupted => {}
                (Err(_), error) => return Err(error),
            }
        }
    }

    fn allocate(&self, fd: RawFd, offset: i64, length: i64) -> Result<()> {
        fallocate_keep_size(fd, offset, length)
    }

    fn truncate(&self, fd: RawFd, length: u64) -> Result<()> {
        let length = i64::try_from(length).map_err(|_| Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::ftruncate64(fd, length) }.into())
    }

    fn sync_file(&self, fd: RawFd) -> Result<()> {
        // SAFETY: takes no pointers.
        check(unsafe { libc::fsync(fd) }.into())
    }

    fn reach(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn threads(&self, threads: usize) -> usize {
        threads
    }
}

fn check(result: c_long) -> Result<()> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

fn fallocate(fd: RawFd, mode: c_int, offset: i64, length: i64) -> Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::fallocate64(fd, mode, offset, length) }.into())
}

pub fn punch_hole(fd: RawFd, offset: i64, length: i64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    loop {
        match fallocate(fd, mode, offset, length) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

pub fn fallocate_keep_size(fd: RawFd, offset: i64, length: i64) -> Result<()> {
    fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, offset, length)
}

pub fn syncfs(fd: RawFd) -> Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::syncfs(fd) }.into())
}

pub fn renameat2(old_dir: RawFd, old: &CStr, new_dir: RawFd, new: &CStr, flags: u32) -> Result<()> {
    // SAFETY: both names are NUL-terminated and live during the call.
    check(unsafe {
        libc::syscall(libc::SYS_renameat2, old_dir, old.as_ptr(), new_dir, new.as_ptr(), flags)
    })
}
