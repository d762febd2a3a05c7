//! Reads complete plain files, many at once.

use std::io::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::ingest::examination::{Why, examine, is_unchanged};
use crate::ingest::small_files::{PlainFile, Read};
use crate::system::calls::number_of;
use crate::system::extents::hole_bytes;
use crate::system::files::open_beneath;
use crate::system::reads::fill;
use crate::threads::scoped;

/// Reads a complete file into `out`, which has its size, if its identity is and stays the expected
/// one. Otherwise the content of `out` is undefined.
fn read_unchanged(
    dir: RawFd,
    file: &PlainFile,
    unshared_only: bool,
    out: &mut [u8],
) -> std::result::Result<Read, Why> {
    let open = open_unnoticed(dir, file).map_err(|error| Why::Unopened(number_of(&error)))?;
    let fd = open.as_raw_fd();
    let shared_bytes = examine(fd, &file.identity, unshared_only)?;
    let hole_bytes = hole_bytes(fd, file.identity.size)?;
    let filled = fill(fd, out);
    is_unchanged(fd, &file.identity)?;
    filled?;
    Ok(Read { hole_bytes, shared_bytes })
}

/// Keeps the access time unchanged if this is allowed: only the owner may do this.
fn open_unnoticed(dir: RawFd, file: &PlainFile) -> Result<OwnedFd> {
    match open_beneath(dir, &file.path, libc::O_RDONLY | libc::O_NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            open_beneath(dir, &file.path, libc::O_RDONLY)
        }
        result => result,
    }
}

/// Files that a thread reads at once.
const GROUP: usize = 32;

/// Reads files one after the other into `out`, each into as many bytes as `size` says, on several
/// threads. `read` fills the bytes of a file, with something to keep from one file to the next.
/// Returns its results, or None if `out` is too short for all files.
pub fn read_each<T: Sync, S: Default, R: Clone + Default + Send>(
    files: &[T],
    size: impl Fn(&T) -> usize,
    mut out: &mut [u8],
    threads: usize,
    read: impl Fn(&mut S, &T, &mut [u8]) -> R + Sync,
) -> Option<Vec<R>> {
    let mut results = vec![R::default(); files.len()];
    let mut groups = Vec::with_capacity(files.len().div_ceil(GROUP));
    for (files, results) in files.chunks(GROUP).zip(results.chunks_mut(GROUP)) {
        let mut tasks = Vec::with_capacity(files.len());
        for (file, result) in files.iter().zip(results) {
            let own;
            (own, out) = out.split_at_mut_checked(size(file))?;
            tasks.push((file, result, own));
        }
        groups.push(tasks);
    }
    scoped::for_each(groups.into_iter(), threads, |tasks| {
        let mut kept = S::default();
        for (file, result, own) in tasks {
            *result = read(&mut kept, file, own);
        }
    });
    Some(results)
}

/// Reads `files` one after the other into `out` from `offset` on, and notes the results.
/// Removes unread files from the list, and returns them with the reasons. Returns None if `out` is
/// too short.
pub fn read_files(
    dir: RawFd,
    files: &mut Vec<PlainFile>,
    unshared_only: bool,
    (out, offset): (&mut [u8], usize),
    threads: usize,
) -> Option<Vec<(PlainFile, Why)>> {
    let own = out.get_mut(offset..)?;
    let read = |(): &mut (), file: &PlainFile, own: &mut [u8]| {
        Some(read_unchanged(dir, file, unshared_only, own))
    };
    let results = read_each(files, PlainFile::size, own, threads, read)?;
    let (mut start, mut unread) = (offset, Vec::new());
    for (mut file, result) in std::mem::take(files).into_iter().zip(results.into_iter().flatten()) {
        file.start = start;
        start += file.size();
        match result {
            Ok(read) => {
                file.read = read;
                files.push(file);
            }
            Err(why) => unread.push((file, why)),
        }
    }
    Some(unread)
}
