//! What a study does to many files at once: finding them in a tree, and reading small ones.

use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::files::{DIRENT_BYTES, Identity, fill, next_names, owned, status_at, status_of};
use crate::parallel;

/// Regular files as a walk came upon them: parallel columns.
#[derive(Default)]
pub struct Found {
    /// Relative to the root, each with a NUL behind it.
    pub paths: Vec<u8>,
    /// Of each file: inode, size, mtime and ctime in ns, links, allocated bytes.
    pub statuses: Vec<[i64; 6]>,
    /// Directories, each with a NUL behind it, and how many of the files in a row are in it.
    pub directories: Vec<u8>,
    pub counts: Vec<u32>,
    /// What could not be listed, and the error's number.
    pub failures: Vec<(Vec<u8>, c_int)>,
}

/// A walk over a tree, depth first, without links and other file systems.
pub struct Walk {
    root: OwnedFd,
    device: libc::dev_t,
    left_out: (libc::dev_t, libc::ino64_t),
    /// The next one is at the end.
    pending: Vec<Vec<u8>>,
    open: Option<Directory>,
    buffer: Vec<u8>,
}

/// One whose entries are being read. The study's memory has a bound, and that of a directory's
/// entries has none: so they are taken a buffer full at a time.
struct Directory {
    fd: OwnedFd,
    path: Vec<u8>,
    below: Vec<Vec<u8>>,
}

fn open_at(dir: RawFd, path: &[u8], flags: c_int) -> Result<OwnedFd> {
    let path = CString::new(path)?;
    // SAFETY: `path` is NUL-terminated.
    owned(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC) })
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

impl Walk {
    /// `left_out` is a directory to pass over: device and inode.
    pub fn new(root: &[u8], left_out: (u64, u64)) -> Result<Walk> {
        let root = open_at(libc::AT_FDCWD, root, libc::O_PATH | libc::O_DIRECTORY)?;
        let device = status_of(root.as_raw_fd())?.st_dev;
        let buffer = vec![0; DIRENT_BYTES];
        Ok(Walk { root, device, left_out, pending: vec![Vec::new()], open: None, buffer })
    }

    /// At least `files` of the files that are left, unless these are all; none at the end.
    pub fn next(&mut self, files: usize) -> Option<Found> {
        let mut found = Found::default();
        while found.statuses.len() < files {
            let directory = match self.open.take() {
                Some(directory) => directory,
                None => match self.pending.pop() {
                    None => break,
                    Some(path) => match self.enter(&path) {
                        Ok(None) => continue,
                        Ok(Some(fd)) => Directory { fd, path, below: Vec::new() },
                        Err(error) => {
                            found.failed(path, &error);
                            continue;
                        }
                    },
                },
            };
            self.list(directory, &mut found);
        }
        let nothing = found.statuses.is_empty() && found.failures.is_empty();
        (!nothing).then_some(found)
    }

    /// None where the directory is not part of the study, or vanished.
    fn enter(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let name = if path.is_empty() { b"." } else { path };
        let fd = match open_at(self.root.as_raw_fd(), name, flags) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            result => result?,
        };
        let status = status_of(fd.as_raw_fd())?;
        let ours = status.st_dev == self.device;
        Ok((ours && (status.st_dev, status.st_ino) != self.left_out).then_some(fd))
    }

    /// Takes in the next entries of a directory, in the order of their inodes: that of the disk,
    /// mostly. At its end, the directories in it are the next ones.
    fn list(&mut self, mut directory: Directory, found: &mut Found) {
        let mut files = Vec::new();
        let more = match directory.read(self.device, &mut self.buffer, &mut files) {
            Ok(more) => more,
            Err(error) => {
                found.failed(directory.path.clone(), &error);
                false
            }
        };
        files.sort_unstable_by_key(|(_, status): &(CString, [i64; 6])| status[0]);
        if !files.is_empty() {
            found.directories.extend_from_slice(&directory.path);
            found.directories.push(0);
            found.counts.push(files.len() as u32);
        }
        for (name, status) in files {
            found.paths.extend(join(&directory.path, name.as_bytes_with_nul()));
            found.statuses.push(status);
        }
        if more {
            self.open = Some(directory);
        } else {
            directory.below.sort_unstable_by(|one, other| other.cmp(one));
            self.pending.append(&mut directory.below);
        }
    }
}

impl Found {
    fn failed(&mut self, path: Vec<u8>, error: &Error) {
        self.failures.push((path, error.raw_os_error().unwrap_or(libc::EIO)));
    }
}

impl Directory {
    /// The next entries; false at the end. What vanishes meanwhile is passed over.
    fn read(
        &mut self,
        device: libc::dev_t,
        buffer: &mut [u8],
        files: &mut Vec<(CString, [i64; 6])>,
    ) -> Result<bool> {
        let fd = self.fd.as_raw_fd();
        let names = next_names(fd, buffer)?;
        let more = !names.is_empty();
        for (name, kind) in names {
            match kind {
                libc::DT_DIR => self.below.push(join(&self.path, name.to_bytes())),
                libc::DT_REG | libc::DT_UNKNOWN => {
                    let status = match status_at(fd, &name) {
                        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                        result => result?,
                    };
                    match status.st_mode & libc::S_IFMT {
                        libc::S_IFDIR => self.below.push(join(&self.path, name.to_bytes())),
                        libc::S_IFREG if status.st_dev == device => {
                            files.push((name, columns(&status)));
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        Ok(more)
    }
}

fn columns(status: &libc::stat64) -> [i64; 6] {
    let Identity { inode, size, mtime_ns, ctime_ns } = Identity::of(status);
    [inode as i64, size, mtime_ns, ctime_ns, status.st_nlink as i64, status.st_blocks * 512]
}

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
    parallel::for_each(groups.iter_mut(), threads, |(group, out, read)| {
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
