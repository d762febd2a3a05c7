//! Small files of a study, read into one buffer.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::study::walk::open_at;
use crate::system::files::{Identity, status_of};
use crate::system::reads::fill;
use crate::threads::scoped;

/// A file to be read as a whole, as it was found.
pub struct Wanted<'a> {
    /// Relative to the tree's root.
    pub path: &'a [u8],
    pub identity: Identity,
}

/// Files that a thread reads at once.
const GROUP: usize = 32;

/// Reads files into `out`, one behind the other: as many of them, from the first on, as can be
/// read and still are what was found. The rest of `out` is in any state.
///
/// # Panics
///
/// Where `out` is smaller than all files together.
pub fn read_packed(root: RawFd, files: &[Wanted], mut out: &mut [u8], threads: usize) -> usize {
    let mut groups = VecDeque::new();
    for group in files.chunks(GROUP) {
        let length = group.iter().map(|file| file.identity.size as usize).sum();
        let (head, tail) = out.split_at_mut(length);
        groups.push_back((group, head, 0usize));
        out = tail;
    }
    let failed = AtomicBool::new(false);
    scoped::for_each(groups.iter_mut(), threads, |(group, out, read)| {
        if !failed.load(Ordering::Relaxed) {
            *read = read_group(root, group, out);
            if *read < group.len() {
                failed.store(true, Ordering::Relaxed);
            }
        }
    });
    let mut total = 0;
    for (group, _, read) in groups {
        total += read;
        if read < group.len() {
            break;
        }
    }
    total
}

fn read_group(root: RawFd, files: &[Wanted], mut out: &mut [u8]) -> usize {
    let mut inside: Option<(&[u8], OwnedFd)> = None;
    for (at, file) in files.iter().enumerate() {
        let slash = file.path.iter().rposition(|&byte| byte == b'/');
        let (directory, name) = match slash {
            Some(slash) => (&file.path[..slash], &file.path[slash + 1..]),
            None => (&b"."[..], file.path),
        };
        if inside.as_ref().is_none_or(|(path, _)| *path != directory) {
            let Ok(fd) = open_at(root, directory, libc::O_PATH | libc::O_DIRECTORY) else {
                return at;
            };
            inside = Some((directory, fd));
        }
        let Some((_, directory)) = &inside else { return at };
        let (head, tail) = out.split_at_mut(file.identity.size as usize);
        if !read_file(directory.as_raw_fd(), name, file.identity, head) {
            return at;
        }
        out = tail;
    }
    files.len()
}

fn read_file(directory: RawFd, name: &[u8], expected: Identity, out: &mut [u8]) -> bool {
    const FLAGS: c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    // Only the owner may leave the access time alone.
    let file = match open_at(directory, name, FLAGS | libc::O_NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open_at(directory, name, FLAGS),
        result => result,
    };
    file.is_ok_and(|file| {
        let fd = file.as_raw_fd();
        status_of(fd).is_ok_and(|status| Identity::of(&status) == expected) && fill(fd, out)
    })
}
