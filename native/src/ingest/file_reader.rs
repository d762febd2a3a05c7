//! Plain files read as a whole, many at once.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use crate::ingest::small_files::PlainFile;
use crate::system::files::{Identity, SECOND_NS, open_beneath, status_of};
use crate::system::leases::has_writers;
use crate::system::reads::fill;
use crate::threads::scoped;

/// Reads the whole of a file without holes into `out`, which has its size, provided that it is and
/// stays the one that was found, that nothing changed it within `settle_ns`, and that nobody has
/// it open for writing. False, with `out` in any state, where one of these does not hold.
fn read_unchanged(
    dir: RawFd,
    path: &CStr,
    expected: Identity,
    settle_ns: i64,
    out: &mut [u8],
) -> bool {
    let Ok(file) = open_beneath(dir, path, libc::O_RDONLY | libc::O_NOATIME) else { return false };
    let fd = file.as_raw_fd();
    let same = || status_of(fd).is_ok_and(|status| Identity::of(&status) == expected);
    same()
        && is_settled(&expected, settle_ns)
        && !has_writers(fd)
        && has_no_hole(fd, expected.size)
        && fill(fd, out)
        && same()
}

/// Files that a thread reads at once.
const GROUP: usize = 32;

/// Reads files one after the other as [`read_unchanged`] does, each into as many bytes of `out` as
/// it had. None where `out` is too short for all of them.
pub fn read_files(
    dir: RawFd,
    files: &[PlainFile],
    settle_ns: i64,
    mut out: &mut [u8],
    threads: usize,
) -> Option<Vec<bool>> {
    let mut read = vec![false; files.len()];
    let mut groups = Vec::with_capacity(files.len().div_ceil(GROUP));
    for (files, read) in files.chunks(GROUP).zip(read.chunks_mut(GROUP)) {
        let size = files.iter().try_fold(0, |sum: usize, file| sum.checked_add(file.size()))?;
        let own;
        (own, out) = out.split_at_mut_checked(size)?;
        groups.push((files, read, own));
    }
    scoped::for_each(groups.into_iter(), threads, |(files, read, mut out)| {
        for (file, read) in files.iter().zip(read) {
            let (own, rest) = out.split_at_mut(file.size());
            *read = read_unchanged(dir, &file.path, file.identity, settle_ns, own);
            out = rest;
        }
    });
    Some(read)
}

fn is_settled(identity: &Identity, settle_ns: i64) -> bool {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as i64);
    let age = now - identity.mtime_ns.max(identity.ctime_end_ns());
    !(-SECOND_NS..settle_ns).contains(&age)
}

fn has_no_hole(fd: RawFd, size: i64) -> bool {
    // SAFETY: takes no pointers.
    unsafe {
        libc::lseek64(fd, 0, libc::SEEK_HOLE) >= size && libc::lseek64(fd, 0, libc::SEEK_SET) == 0
    }
}
