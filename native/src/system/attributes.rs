//! Extended attributes by a name in a directory. Linux 6.13 added the system call. Before, a path
//! in `/proc` leads to the file, which takes several times as long.
//!
//! (The call does not work for an inode that is only named by a descriptor, with `O_PATH`.)

use std::ffi::{CStr, c_long};
use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// The kernel's `struct xattr_args`.
#[repr(C)]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// The same number on every architecture.
const SYS_GETXATTRAT: c_long = 464;
/// False after the first call that the kernel, or a seccomp filter, rejects as unknown.
static GETXATTRAT: AtomicBool = AtomicBool::new(true);

/// Reads an attribute into `value`, and returns its length. An empty `value` only asks for the
/// length. Follows no link.
pub fn getxattr_at(
    dir: BorrowedFd,
    name: &CStr,
    attribute: &CStr,
    value: &mut [u8],
) -> Result<usize, Errno> {
    if GETXATTRAT.load(Ordering::Relaxed) {
        match by_call(dir, name, attribute, value) {
            Err(Errno::NOSYS | Errno::PERM) => GETXATTRAT.store(false, Ordering::Relaxed),
            result => return result,
        }
    }
    by_path(dir, name, attribute, value)
}

fn by_call(
    dir: BorrowedFd,
    name: &CStr,
    attribute: &CStr,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let args = XattrArgs { value: value.as_mut_ptr() as u64, size, flags: 0 };
    // SAFETY: both strings are NUL-terminated; `args` names a buffer that is writable for its size.
    checked(unsafe {
        libc::syscall(
            SYS_GETXATTRAT,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const args,
            size_of::<XattrArgs>(),
        )
    })
}

fn by_path(
    dir: BorrowedFd,
    name: &CStr,
    attribute: &CStr,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes_with_nul());
    let (path, start) = (path.as_ptr().cast(), value.as_mut_ptr().cast());
    // SAFETY: both strings are NUL-terminated, `value` is writable for its length.
    checked(unsafe { libc::lgetxattr(path, attribute.as_ptr(), start, value.len()) } as c_long)
}

fn checked(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        Errno::from_raw_os_error(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{CWD, Mode, OFlags, XattrFlags, openat, setxattr, symlinkat};

    use super::*;

    const NAME: &CStr = c"user.dedupd.test";

    #[test]
    fn the_call_and_the_path_find_the_same_of_files_links_and_directories() {
        let base = std::env::temp_dir().join(format!("dedupd-attributes-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        std::fs::write(base.join("file"), b"").unwrap();
        let _ = symlinkat("file", CWD, base.join("link"));
        for place in [base.join("file"), base.clone()] {
            setxattr(place, NAME, b"value", XattrFlags::empty()).unwrap();
        }
        let dir = openat(CWD, &base, OFlags::PATH, Mode::empty()).unwrap();
        let value = || Ok(b"value".to_vec());
        for (name, found) in [
            (c"file", value()),
            (c".", value()),
            (c"link", Err(Errno::NODATA)),
            (c"none", Err(Errno::NOENT)),
        ] {
            for find in [by_call, by_path, getxattr_at] {
                let room = &mut [0; 64];
                let got = find(dir.as_fd(), name, NAME, room).map(|length| room[..length].to_vec());
                let is_unknown = got == Err(Errno::NOSYS);
                assert!(is_unknown || got == found || got == Err(Errno::PERM), "{name:?} {got:?}");
                let length = find(dir.as_fd(), name, NAME, &mut []);
                assert!(is_unknown || length == found.clone().map(|value| value.len()));
            }
        }
        std::fs::remove_dir_all(&base).unwrap();
    }
}
