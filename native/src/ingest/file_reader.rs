//! Plain files read as a whole, many at once.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};

use crate::ingest::small_files::PlainFile;
use crate::system::extents::{has_large_units, has_shared};
use crate::system::files::{Identity, SECOND_NS, open_beneath, status_of};
use crate::system::leases::has_writers;
use crate::system::reads::fill;
use crate::threads::scoped;

/// Reads the whole of a file without holes into `out`, which has its size, provided that it is and
/// stays the one that was found, that nothing changed it within `settle_ns`, that nobody has it open
/// for writing, that no block of it belongs to others as well, and that each block can be freed alone.
/// False, with `out` in any state, where one of these does not hold.
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
        && !has_shared(fd, expected.size)
        && has_large_units(fd).is_ok_and(|has| !has)
        && fill(fd, out)
        && same()
}

/// Files that a thread reads at once.
const GROUP: usize = 32;

/// Reads files one after the other into `out`, each into as many bytes as `size` says, on several
/// threads. `read` fills the bytes of a file, with something to keep from one file to the next; the
/// result says which files it could read. None where `out` is too short for all of them.
pub fn read_each<T: Sync, S: Default>(
    files: &[T],
    size: impl Fn(&T) -> usize,
    mut out: &mut [u8],
    threads: usize,
    read: impl Fn(&mut S, &T, &mut [u8]) -> bool + Sync,
) -> Option<Vec<bool>> {
    let mut are_read = vec![false; files.len()];
    let mut groups = Vec::with_capacity(files.len().div_ceil(GROUP));
    for (files, are_read) in files.chunks(GROUP).zip(are_read.chunks_mut(GROUP)) {
        let mut tasks = Vec::with_capacity(files.len());
        for (file, is_read) in files.iter().zip(are_read) {
            let own;
            (own, out) = out.split_at_mut_checked(size(file))?;
            tasks.push((file, is_read, own));
        }
        groups.push(tasks);
    }
    scoped::for_each(groups.into_iter(), threads, |tasks| {
        let mut kept = S::default();
        for (file, is_read, own) in tasks {
            *is_read = read(&mut kept, file, own);
        }
    });
    Some(are_read)
}

/// Reads files as [`read_unchanged`] does.
pub fn read_files(
    dir: RawFd,
    files: &[PlainFile],
    settle_ns: i64,
    out: &mut [u8],
    threads: usize,
) -> Option<Vec<bool>> {
    read_each(files, PlainFile::size, out, threads, |(): &mut (), file, own| {
        read_unchanged(dir, &file.path, file.identity, settle_ns, own)
    })
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
