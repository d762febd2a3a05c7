//! Many directories of a tree at once, each read by one of several threads.

use std::ffi::{CStr, CString};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::system::files::{Entry, Scan, open_beneath, status_of};
use crate::threads::scoped;

/// Entries that are processed between two calls of `safe_point`: few, because every stub may need a
/// read of its recipe from a slow disk.
const ENTRIES_AT_ONCE: usize = 64;

/// Reads directories below `root` on several threads; returns results in their order. `count` takes
/// entries, with generations if `with_generations`; its last argument is scratch state for one
/// directory. `go_on` is called in between: if it returns false, the walk stops, and the results
/// end there. A directory of another file system than `root` is not read: `EXDEV`.
pub fn look_at<L: Default + Send, S: Default>(
    root: RawFd,
    directories: &[CString],
    (attribute, with_generations): (&CStr, bool),
    threads: usize,
    count: impl Fn(&mut Vec<Entry>, &mut L, &mut S) + Sync,
    go_on: impl Fn() -> bool + Sync,
) -> Vec<Result<L>> {
    let mut results: Vec<Option<Result<L>>> = Vec::new();
    results.resize_with(directories.len(), || None);
    let tasks = directories.iter().zip(results.iter_mut());
    let looked_at = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    scoped::for_each(tasks, threads, |(path, result)| {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let step = |entries: &mut Vec<Entry>, listed: &mut L, scratch: &mut S| {
            let before = looked_at.fetch_add(entries.len(), Ordering::Relaxed);
            let after = before + entries.len();
            count(entries, listed, scratch);
            if before / ENTRIES_AT_ONCE != after / ENTRIES_AT_ONCE && !go_on() {
                is_over.store(true, Ordering::Relaxed);
            }
            !is_over.load(Ordering::Relaxed)
        };
        *result = Some(look_at_one(root, path, attribute, with_generations, step));
    });
    results.into_iter().flatten().collect()
}

fn look_at_one<L: Default, S: Default>(
    root: RawFd,
    path: &CStr,
    attribute: &CStr,
    with_generations: bool,
    mut step: impl FnMut(&mut Vec<Entry>, &mut L, &mut S) -> bool,
) -> Result<L> {
    let directory = open_directory(root, path)?;
    if status_of(directory.as_raw_fd())?.st_dev != status_of(root)?.st_dev {
        // A subvolume of btrfs, not a mount: the mount does not show it, and gc does not enter it.
        return Err(Error::from_raw_os_error(libc::EXDEV));
    }
    let mut scan = Scan::new(directory.as_raw_fd(), attribute, with_generations)?;
    let (mut listed, mut scratch, mut entries) = (L::default(), S::default(), Vec::new());
    while !scan.is_over {
        scan.next(ENTRIES_AT_ONCE, &mut entries)?;
        if !step(&mut entries, &mut listed, &mut scratch) {
            break;
        }
    }
    Ok(listed)
}

/// Opens a directory with a path of any length: the kernel limits the length per call.
fn open_directory(root: RawFd, path: &CStr) -> Result<OwnedFd> {
    let mut rest = path.to_bytes();
    let mut parent: Option<OwnedFd> = None;
    while rest.len() >= libc::PATH_MAX as usize {
        let head = &rest[..libc::PATH_MAX as usize];
        let Some(end) = head.iter().rposition(|&byte| byte == b'/') else { break };
        let at = parent.as_ref().map_or(root, AsRawFd::as_raw_fd);
        let step =
            open_beneath(at, &CString::new(&head[..end])?, libc::O_RDONLY | libc::O_DIRECTORY)?;
        parent = Some(step);
        rest = &rest[end + 1..];
    }
    let at = parent.as_ref().map_or(root, AsRawFd::as_raw_fd);
    open_beneath(at, &CString::new(rest)?, libc::O_RDONLY | libc::O_DIRECTORY)
}
