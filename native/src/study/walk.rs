//! Finding the files of a study in a tree.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr, c_int};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::system::files::{
    DIRENT_BYTES, Identity, TreeEntry, look_up, next_names, open_beneath, owned, status_at,
    status_of,
};

/// Regular files found by a walk, in parallel columns.
#[derive(Default)]
pub struct FileColumns {
    /// Relative to the root, each with a NUL after it.
    pub paths: Vec<u8>,
    /// For each file: inode, size, mtime and ctime in ns, links, allocated bytes.
    pub statuses: Vec<[i64; 6]>,
    /// Directories that could not be listed, with the error's number.
    pub failures: Vec<(Vec<u8>, c_int)>,
}

/// A walk over a tree, depth first, without following links or entering other file systems.
pub struct Walk {
    root: OwnedFd,
    device: libc::dev_t,
    left_out: (libc::dev_t, libc::ino64_t),
    /// The name of the root if it is a file.
    single: Option<CString>,
    /// The next directory is at the end.
    pending: Vec<Vec<u8>>,
    open: Option<Directory>,
    /// Directories that could not be resumed.
    failures: Vec<(Vec<u8>, Error)>,
    buffer: Vec<u8>,
    names: Names,
}

/// Distinguishes further names of a file from the first, within the limit of `max` inodes.
struct Names {
    /// Inodes of files with several names that were found.
    inodes: HashSet<i64>,
    max: usize,
    beyond: bool,
}

impl Names {
    fn is_first(&mut self, [inode, .., links, _]: [i64; 6]) -> bool {
        if links == 1 {
            return true;
        }
        if self.inodes.len() >= self.max {
            let is_new = !self.inodes.contains(&inode);
            self.beyond |= is_new;
            return is_new;
        }
        self.inodes.insert(inode)
    }
}

/// A directory that is being read. The study's memory is limited, but the entries of a directory
/// are not. So the walk takes one buffer of entries at a time.
struct Directory {
    fd: OwnedFd,
    path: Vec<u8>,
    below: Vec<Vec<u8>>,
}

pub fn open_at(dir: RawFd, path: &[u8], flags: c_int) -> Result<OwnedFd> {
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
    /// Walks over a directory, or a single file. Skips the directory `left_out` (device and inode),
    /// and further names of up to `names_max` files with hard links.
    pub fn new(root: &[u8], left_out: (u64, u64), names_max: usize) -> Result<Walk> {
        let path = Path::new(OsStr::from_bytes(root));
        let is_file = status_at(libc::AT_FDCWD, &CString::new(root)?)?.st_mode & libc::S_IFMT
            == libc::S_IFREG;
        let (root, single) = match (is_file, path.parent(), path.file_name()) {
            (true, Some(parent), Some(name)) => (parent, Some(CString::new(name.as_bytes())?)),
            _ => (path, None),
        };
        let root = root.as_os_str().as_bytes();
        let root = open_at(libc::AT_FDCWD, root, libc::O_PATH | libc::O_DIRECTORY)?;
        let device = status_of(root.as_raw_fd())?.st_dev;
        let pending = if single.is_some() { Vec::new() } else { vec![Vec::new()] };
        let buffer = vec![0; DIRENT_BYTES];
        let names = Names { inodes: HashSet::new(), max: names_max, beyond: false };
        let (open, failures) = (None, Vec::new());
        Ok(Walk { root, device, left_out, single, pending, open, failures, buffer, names })
    }

    /// The state of the walk for [`Walk::resume`]. It starts with the position in the open
    /// directory (i64, -1 if none is open) and the number of directories found in it (u32). Then
    /// come its path, these directories, and all other pending ones, each with a NUL after it.
    pub fn state(&self) -> Result<Vec<u8>> {
        let (position, path, below) = match &self.open {
            None => (-1, &b""[..], &[][..]),
            Some(directory) => (directory.position()?, &directory.path[..], &directory.below[..]),
        };
        let mut state = position.to_le_bytes().to_vec();
        state.extend((below.len() as u32).to_le_bytes());
        for path in [path].into_iter().chain(below.iter().chain(&self.pending).map(Vec::as_slice)) {
            state.extend_from_slice(path);
            state.push(0);
        }
        Ok(state)
    }

    /// Continues another walk of the tree. None if `state` is not the state of a walk. Does not
    /// know the names that the other walk has found.
    pub fn resume(&mut self, state: &[u8]) -> Option<()> {
        let (position, rest) = state.split_first_chunk::<8>()?;
        let (below, rest) = rest.split_first_chunk::<4>()?;
        let position = i64::from_le_bytes(*position);
        let mut paths = rest
            .split_inclusive(|&byte| byte == 0)
            .map(|path| path.strip_suffix(b"\0").map(<[u8]>::to_vec));
        let path = paths.next()??;
        let mut below =
            paths.by_ref().take(u32::from_le_bytes(*below) as usize).collect::<Option<Vec<_>>>()?;
        let pending = paths.collect::<Option<Vec<_>>>()?;
        (self.single, self.pending, self.open) = (None, pending, None);
        if position >= 0 {
            match self.enter(&path).and_then(|fd| {
                fd.map(|fd| seek(&fd, position, libc::SEEK_SET).map(|_| fd)).transpose()
            }) {
                Ok(Some(fd)) => {
                    self.open = Some(Directory { fd, path, below });
                    return Some(());
                }
                Ok(None) => {}
                Err(error) => self.failures.push((path, error)),
            }
        }
        self.pending.append(&mut below);
        Some(())
    }

    /// Returns whether too many files had several names to distinguish them: some were found twice.
    pub fn beyond_names(&self) -> bool {
        self.names.beyond
    }

    /// At least `files` of the remaining files, or all of them; None at the end.
    pub fn next(&mut self, files: usize) -> Option<FileColumns> {
        let mut found = FileColumns::default();
        for (path, error) in self.failures.drain(..) {
            found.failed(path, &error);
        }
        if let Some(name) = self.single.take() {
            match status_at(self.root.as_raw_fd(), &name) {
                Ok(status) => found.add(b"", &name, columns(&status)),
                Err(error) => found.failed(Vec::new(), &error),
            }
        }
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

    /// Returns None if the directory is not part of the study, or vanished.
    fn enter(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        let (root, flags) = (self.root.as_raw_fd(), libc::O_RDONLY | libc::O_DIRECTORY);
        let name = if path.is_empty() { b"." } else { path };
        let fd = match open_beneath(root, &CString::new(name)?, flags) {
            // With an older kernel, or the filter of a container, only the device can differ. It
            // does not differ if a part of the file system is mounted again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                open_at(root, name, flags | libc::O_NOFOLLOW)
            }
            result => result,
        };
        let fd = match fd {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EXDEV)) => {
                return Ok(None);
            }
            result => result?,
        };
        let status = status_of(fd.as_raw_fd())?;
        let ours = status.st_dev == self.device;
        Ok((ours && (status.st_dev, status.st_ino) != self.left_out).then_some(fd))
    }

    /// Takes the next entries of a directory in the order of their inodes, which is mostly that of
    /// the disk. At its end, the directories in it become the next ones.
    fn list(&mut self, mut directory: Directory, found: &mut FileColumns) {
        let mut files = Vec::new();
        let more = match directory.read(self.device, &mut self.buffer, &mut files) {
            Ok(more) => more,
            Err(error) => {
                found.failed(directory.path.clone(), &error);
                false
            }
        };
        files.sort_unstable_by_key(|(_, status): &(CString, [i64; 6])| status[0]);
        for (name, status) in files {
            if self.names.is_first(status) {
                found.add(&directory.path, &name, status);
            }
        }
        if more {
            self.open = Some(directory);
        } else {
            directory.below.sort_unstable_by(|one, other| other.cmp(one));
            self.pending.append(&mut directory.below);
        }
    }
}

impl FileColumns {
    fn add(&mut self, directory: &[u8], name: &CStr, status: [i64; 6]) {
        if !directory.is_empty() {
            self.paths.extend_from_slice(directory);
            self.paths.push(b'/');
        }
        self.paths.extend_from_slice(name.to_bytes_with_nul());
        self.statuses.push(status);
    }

    fn failed(&mut self, path: Vec<u8>, error: &Error) {
        self.failures.push((path, error.raw_os_error().unwrap_or(libc::EIO)));
    }
}

fn seek(directory: &OwnedFd, offset: i64, whence: c_int) -> Result<i64> {
    // SAFETY: takes no pointers.
    match unsafe { libc::lseek64(directory.as_raw_fd(), offset, whence) } {
        -1 => Err(Error::last_os_error()),
        position => Ok(position),
    }
}

impl Directory {
    /// The position after the entries that were read.
    fn position(&self) -> Result<i64> {
        seek(&self.fd, 0, libc::SEEK_CUR)
    }

    /// Reads the next entries; false at the end. Skips files that vanish during the call.
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
            match look_up(fd, &name, kind, device)? {
                None => {}
                Some(TreeEntry::Directory) => self.below.push(join(&self.path, name.to_bytes())),
                Some(TreeEntry::File(status)) => files.push((name, columns(&status))),
            }
        }
        Ok(more)
    }
}

fn columns(status: &libc::stat64) -> [i64; 6] {
    let Identity { inode, size, mtime_ns, ctime_ns } = Identity::of(status);
    [inode as i64, size, mtime_ns, ctime_ns, status.st_nlink as i64, status.st_blocks * 512]
}
