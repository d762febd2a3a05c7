//! System calls that Python's `os` lacks and that change nothing (`effects` has those that do).
//! Each makes one attempt; the caller retries on EINTR.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint};
use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::RawFd;

use crate::system::handle_forms::{KIND_BYTES, generation_in};

fn check(result: c_long) -> Result<c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

const HANDLE_BYTES_MAX: usize = 128;

/// The kernel's `struct file_handle` with the largest body.
#[repr(C)]
struct FileHandle {
    handle_bytes: u32,
    handle_type: i32,
    body: [u8; HANDLE_BYTES_MAX],
}

/// The handle of the inode that `fd` has open: type (i32, little-endian), then its bytes.
pub fn name_to_handle(fd: RawFd) -> Result<Vec<u8>> {
    name_to_handle_at(fd, c"", |handle| handle.to_vec())
}

/// As [`name_to_handle`], for `name` in the directory `dir`, without following a link. An empty
/// name means `dir` itself.
pub fn name_to_handle_at<T>(dir: RawFd, name: &CStr, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
    let mut handle = FileHandle {
        handle_bytes: HANDLE_BYTES_MAX as u32,
        handle_type: 0,
        body: [0; HANDLE_BYTES_MAX],
    };
    let mut mount_id: c_int = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: all pointers are to live locals; the kernel writes at most `handle_bytes`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir,
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            flags,
        )
    };
    check(result)?;
    let mut out = [0; KIND_BYTES + HANDLE_BYTES_MAX];
    let length = KIND_BYTES + handle.handle_bytes as usize;
    out[..KIND_BYTES].copy_from_slice(&handle.handle_type.to_le_bytes());
    out[KIND_BYTES..].copy_from_slice(&handle.body);
    Ok(take(&out[..length]))
}

/// The number of an error; EIO if it has none.
pub fn number_of(error: &Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The generation of the inode that `fd` has open, even by `O_PATH`. 0 if its file system has none.
pub fn generation_of(fd: RawFd) -> Result<u32> {
    match name_to_handle(fd) {
        Ok(handle) => Ok(generation_in(&handle).unwrap_or(0)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(0),
        Err(error) => Err(error),
    }
}

/// The new descriptor is close-on-exec, like all of Python's.
pub fn open_by_handle(mount_fd: RawFd, handle: &[u8], flags: c_int) -> Result<RawFd> {
    let invalid = || Error::from_raw_os_error(libc::EINVAL);
    let (handle_type, bytes) = handle.split_first_chunk::<KIND_BYTES>().ok_or_else(invalid)?;
    let mut body = [0; HANDLE_BYTES_MAX];
    body.get_mut(..bytes.len()).ok_or_else(invalid)?.copy_from_slice(bytes);
    let handle = FileHandle {
        handle_bytes: bytes.len() as u32,
        handle_type: i32::from_le_bytes(*handle_type),
        body,
    };
    // SAFETY: `handle` is a live local with the number of bytes that it states.
    let result = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount_fd,
            &raw const handle,
            flags | libc::O_CLOEXEC,
        )
    };
    check(result).map(|fd| fd as RawFd)
}

/// `SYS_cachestat`, the same number on all architectures except Alpha.
const CACHESTAT: c_long = 451;

/// The kernel's `struct cachestat`: pages of a range of a file.
#[repr(C)]
#[derive(Default)]
struct CachedPages {
    cached: u64,
    others: [u64; 4],
}

/// The smallest page of the page cache on any machine.
pub const PAGE_BYTES_MIN: u64 = 4096;

/// Number of pages of a range that are in the page cache. Fails before Linux 6.5.
pub fn cached_pages(fd: RawFd, range: &Range<u64>) -> Result<u64> {
    let mut pages = CachedPages::default();
    let asked = [range.start, range.end - range.start];
    // SAFETY: both are live locals with the layout that the kernel expects.
    let result =
        unsafe { libc::syscall(CACHESTAT, fd, asked.as_ptr(), &raw mut pages, 0 as c_uint) };
    check(result).map(|_| pages.cached)
}

/// Returns whether the page cache has an entire range of a file. False before Linux 6.5.
pub fn is_cached(fd: RawFd, range: &Range<u64>) -> bool {
    // SAFETY: takes no pointers.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let all = range.end.div_ceil(page_bytes) - range.start / page_bytes;
    cached_pages(fd, range).is_ok_and(|cached| cached >= all)
}

/// Covers all of an ext4 inode's attributes in one call.
const XATTR_BYTES_USUAL: usize = 4096;
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Returns None if the file has no such attribute, or its file system does not support it.
pub fn fgetxattr(fd: RawFd, name: &CStr) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; XATTR_BYTES_USUAL];
    loop {
        // SAFETY: `value` is writable for its length, `name` NUL-terminated.
        let result = unsafe {
            libc::fgetxattr(
                fd,
                name.as_ptr().cast::<c_char>(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        };
        match check(result as c_long) {
            Ok(length) => {
                value.truncate(length as usize);
                return Ok(Some(value));
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ENODATA | libc::EOPNOTSUPP) => return Ok(None),
                Some(libc::ERANGE) if value.len() < XATTR_BYTES_MAX => {
                    value.resize(XATTR_BYTES_MAX, 0);
                }
                _ => return Err(error),
            },
        }
    }
}
