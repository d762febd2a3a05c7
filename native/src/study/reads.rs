//! Small files of a study, read into one buffer.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ingest::file_reader::read_each;
use crate::study::walk::open_at;
use crate::system::files::{Identity, status_of};
use crate::system::reads::fill;

/// A file to be read completely, and its identity when it was found.
pub struct FileToRead<'a> {
    /// Relative to the tree's root.
    pub path: &'a [u8],
    pub identity: Identity,
}

/// Reads files into `out`, one after the other, from the first on, as long as they are readable and
/// unchanged. The rest of `out` is undefined. None if it is too short.
pub fn read_packed(
    root: RawFd,
    files: &[FileToRead],
    out: &mut [u8],
    threads: usize,
) -> Option<usize> {
    let is_over = AtomicBool::new(false);
    let size = |file: &FileToRead| usize::try_from(file.identity.size).unwrap_or(usize::MAX);
    let are_read = read_each(files, size, out, threads, |inside: &mut Directory, file, own| {
        let is_read = !is_over.load(Ordering::Relaxed) && inside.read(root, file, own);
        if !is_read {
            is_over.store(true, Ordering::Relaxed);
        }
        is_read
    })?;
    Some(are_read.into_iter().take_while(|&is_read| is_read).count())
}

/// The directory of the last file.
#[derive(Default)]
struct Directory(Option<(Vec<u8>, OwnedFd)>);

impl Directory {
    fn read(&mut self, root: RawFd, file: &FileToRead, out: &mut [u8]) -> bool {
        let slash = file.path.iter().rposition(|&byte| byte == b'/');
        let (path, name) = match slash {
            Some(slash) => (&file.path[..slash], &file.path[slash + 1..]),
            None => (&b"."[..], file.path),
        };
        if self.0.as_ref().is_none_or(|(open, _)| open != path) {
            self.0 = open_at(root, path, libc::O_PATH | libc::O_DIRECTORY)
                .ok()
                .map(|fd| (path.to_vec(), fd));
        }
        let Some((_, directory)) = &self.0 else { return false };
        read_file(directory.as_raw_fd(), name, file.identity, out)
    }
}

fn read_file(directory: RawFd, name: &[u8], expected: Identity, out: &mut [u8]) -> bool {
    const FLAGS: c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
    // Only the owner may use `O_NOATIME`.
    let file = match open_at(directory, name, FLAGS | libc::O_NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open_at(directory, name, FLAGS),
        result => result,
    };
    file.is_ok_and(|file| {
        let fd = file.as_raw_fd();
        status_of(fd).is_ok_and(|status| Identity::of(&status) == expected) && fill(fd, out).is_ok()
    })
}
