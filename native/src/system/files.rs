//! Files and directories: opening, attributes, listing.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use crate::format::bytes::layout;
use crate::system::attributes::getxattr_at;
use crate::system::calls::name_to_handle_at;
use crate::system::handle_forms::generation_in;

/// Shows whether a file is still the same. Times are nanoseconds since the epoch. Times before 1677
/// and after 2262 become the first or last time that 64 bits can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub inode: u64,
    pub size: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
}

impl Identity {
    pub fn of(status: &libc::stat64) -> Identity {
        Identity {
            inode: status.st_ino,
            size: status.st_size,
            mtime_ns: ns_of(status.st_mtime, status.st_mtime_nsec),
            ctime_ns: ns_of(status.st_ctime, status.st_ctime_nsec),
        }
    }

    /// The end of the clock tick of the last change: another change within the tick has the same
    /// time. A change time without a fraction probably comes from a file system that keeps whole
    /// seconds.
    pub fn ctime_end_ns(&self) -> i64 {
        let is_whole = self.ctime_ns % SECOND_NS == 0;
        self.ctime_ns.saturating_add(if is_whole { SECOND_NS } else { 0 })
    }

    /// Returns whether `mtime_ns` is the exact time of the file. Any other time cannot be restored.
    pub fn has_mtime(&self) -> bool {
        !matches!(self.mtime_ns, i64::MIN | i64::MAX)
    }
}

pub const SECOND_NS: i64 = 1_000_000_000;

/// The access and the modification time, in nanoseconds since 1970.
pub fn times_ns(status: &libc::stat64) -> (i128, i128) {
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * i128::from(SECOND_NS) + i128::from(ns);
    let modified = ns(status.st_mtime, status.st_mtime_nsec);
    (ns(status.st_atime, status.st_atime_nsec), modified)
}

fn ns_of(seconds: i64, nanoseconds: i64) -> i64 {
    let exactly = seconds.checked_mul(SECOND_NS).and_then(|ns| ns.checked_add(nanoseconds));
    exactly.unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX })
}

pub enum Entry {
    Directory {
        name: CString,
    },
    File {
        name: CString,
        identity: Identity,
        links: u64,
        owner: u32,
        allocated: i64,
        attribute: Option<Vec<u8>>,
        /// Generation of the inode; 0 unless it was requested.
        generation: u32,
        /// True if a plain program has capabilities.
        is_capable: bool,
    },
}

/// Opens a file below the directory `dir`, without following links or entering another file system.
/// Needs Linux 5.6. Also fails with `EPERM` if a container's filter does not know the call.
pub fn open_beneath(dir: RawFd, path: &CStr, flags: c_int) -> Result<OwnedFd> {
    // The kernel takes a path of at most `PATH_MAX` bytes, but trees may be deeper.
    let (mut rest, mut parent) = (path.to_bytes(), None::<OwnedFd>);
    while rest.len() >= libc::PATH_MAX as usize {
        let piece = &rest[..libc::PATH_MAX as usize];
        let end = piece.iter().rposition(|byte| *byte == b'/');
        let end = end.ok_or_else(|| Error::from_raw_os_error(libc::ENAMETOOLONG))?;
        let from = parent.as_ref().map_or(dir, AsRawFd::as_raw_fd);
        let directory = CString::new(&rest[..end])?;
        parent = Some(open_short(from, &directory, libc::O_PATH | libc::O_DIRECTORY)?);
        rest = &rest[end + 1..];
    }
    match &parent {
        Some(parent) => open_short(parent.as_raw_fd(), &CString::new(rest)?, flags),
        None => open_short(dir, path, flags),
    }
}

fn open_short(dir: RawFd, path: &CStr, flags: c_int) -> Result<OwnedFd> {
    // With `O_PATH`, the call accepts no other flags.
    let waits_not = if flags & libc::O_PATH == 0 { libc::O_NONBLOCK } else { 0 };
    let flags = flags | waits_not | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `open_how` is plain data, and zero bytes are a valid value of it.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV;
    // SAFETY: `path` is NUL-terminated, `how` readable for the given size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    owned(fd as c_int)
}

pub fn owned(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new descriptor for the open file of `fd`. `fd` still belongs to its owner.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) })
}

/// Opens a file in the directory `dir` for reading, without following a link.
pub fn open_in(dir: RawFd, name: &str) -> Result<File> {
    let name = CString::new(name)?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: the name is NUL-terminated and lives during the call.
    Ok(owned(unsafe { libc::openat(dir, name.as_ptr(), flags) })?.into())
}

pub fn status_of(fd: RawFd) -> Result<libc::stat64> {
    // SAFETY: `stat64` is plain data, and zero bytes are a valid value of it.
    let mut status: libc::stat64 = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is writable during the call.
    match unsafe { libc::fstat64(fd, &raw mut status) } {
        0 => Ok(status),
        _ => Err(Error::last_os_error()),
    }
}

pub fn status_at(dir: RawFd, name: &CStr) -> Result<libc::stat64> {
    // SAFETY: as above.
    let mut status: libc::stat64 = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: `name` is NUL-terminated, `status` writable during the call.
    match unsafe { libc::fstatat64(dir, name.as_ptr(), &raw mut status, flags) } {
        0 => Ok(status),
        _ => Err(Error::last_os_error()),
    }
}

/// Lists directories, and regular files of the same file system, in a directory. Works in steps,
/// for callers with other work in between. Files that vanish during the scan are omitted.
pub struct Scan<'a> {
    directory: OwnedFd,
    attribute: &'a CStr,
    with_generations: bool,
    device: libc::dev_t,
    buffer: Vec<u8>,
    names: VecDeque<(CString, u8)>,
    pub is_over: bool,
}

impl<'a> Scan<'a> {
    /// `attribute` is the extended attribute to read for each file. `with_generations` adds the
    /// generation of files with this attribute, by one call per file.
    pub fn new(fd: RawFd, attribute: &'a CStr, with_generations: bool) -> Result<Scan<'a>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: the name is NUL-terminated.
        let directory = owned(unsafe { libc::openat(fd, c".".as_ptr(), flags) })?;
        let device = status_of(directory.as_raw_fd())?.st_dev;
        let (buffer, names) = (vec![0; DIRENT_BYTES], VecDeque::new());
        Ok(Scan { directory, attribute, with_generations, device, buffer, names, is_over: false })
    }

    /// Adds entries until there are `count`, or no more. After an error, the next call continues at
    /// the same entry.
    pub fn next(&mut self, count: usize, entries: &mut Vec<Entry>) -> Result<()> {
        while !self.is_over && entries.len() < count {
            let Some((name, kind)) = self.names.front() else {
                self.names = next_names(self.directory.as_raw_fd(), &mut self.buffer)?.into();
                self.is_over = self.names.is_empty();
                continue;
            };
            entries.extend(self.entry(name.clone(), *kind)?);
            self.names.pop_front();
        }
        Ok(())
    }

    fn entry(&self, name: CString, kind: u8) -> Result<Option<Entry>> {
        let fd = self.directory.as_raw_fd();
        let status = match look_up(fd, &name, kind, self.device)? {
            None => return Ok(None),
            Some(TreeEntry::Directory) => return Ok(Some(Entry::Directory { name })),
            Some(TreeEntry::File(status)) => status,
        };
        let attribute = attribute_of(fd, &name, self.attribute);
        let generation = match attribute {
            Some(_) if self.with_generations => generation_at(fd, &name),
            _ => 0,
        };
        let is_program = status.st_mode & 0o111 != 0 && attribute.is_none();
        Ok(Some(Entry::File {
            identity: Identity::of(&status),
            links: status.st_nlink as u64,
            owner: status.st_uid,
            allocated: status.st_blocks * 512,
            attribute,
            generation,
            is_capable: is_program && attribute_of(fd, &name, CAPABILITY).is_some(),
            name,
        }))
    }
}

/// Returns 0 if the generation is unknown, so that no attribute is bound to the file.
fn generation_at(dir: RawFd, name: &CStr) -> u32 {
    name_to_handle_at(dir, name, generation_in).ok().flatten().unwrap_or(0)
}

/// An entry of a directory that belongs to a tree.
pub enum TreeEntry {
    Directory,
    File(libc::stat64),
}

/// Checks a name in a directory, with its kind (`DT_*`). Returns None for other kinds of files, for
/// a file of another file system than `device`, and for a file that has vanished.
pub fn look_up(
    dir: RawFd,
    name: &CStr,
    kind: u8,
    device: libc::dev_t,
) -> Result<Option<TreeEntry>> {
    match kind {
        libc::DT_DIR => return Ok(Some(TreeEntry::Directory)),
        libc::DT_REG | libc::DT_UNKNOWN => {}
        _ => return Ok(None),
    }
    let status = match status_at(dir, name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        result => result?,
    };
    Ok(match status.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Some(TreeEntry::Directory),
        libc::S_IFREG if status.st_dev == device => Some(TreeEntry::File(status)),
        _ => None,
    })
}

/// The kernel removes this attribute if the file's blocks change.
pub const CAPABILITY: &CStr = c"security.capability";

pub const DIRENT_BYTES: usize = 64 << 10;
layout! {
    /// `struct linux_dirent64`, up to the name.
    mod dirent: 19 bytes {
        INODE: 8 at 0,
        NEXT: 8 at 8,
        RECORD_LENGTH: 2 at 16,
        KIND: 1 at 18,
    }
}

/// An entry of a directory from the kernel. `kind` is one of `DT_*`, `next` the position of the
/// next entry.
pub struct Dirent {
    pub inode: u64,
    pub name: CString,
    pub kind: u8,
    pub next: i64,
}

/// The next entries of a directory, as many as fit into `buffer`; empty at its end.
pub fn next_entries(fd: RawFd, buffer: &mut [u8]) -> Result<Vec<Dirent>> {
    // SAFETY: the kernel writes at most the buffer's length.
    let count =
        unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) };
    if count < 0 {
        return Err(Error::last_os_error());
    }
    let mut rest = &buffer[..count as usize];
    let mut found = Vec::new();
    while rest.len() > dirent::BYTES {
        let length = dirent::RECORD_LENGTH.u16(rest);
        let (record, after) = rest.split_at(usize::from(length));
        rest = after;
        let Ok(name) = CStr::from_bytes_until_nul(&record[dirent::BYTES..]) else { continue };
        let next = dirent::NEXT.u64(record) as i64;
        found.push(Dirent {
            inode: dirent::INODE.u64(record),
            name: name.to_owned(),
            kind: dirent::KIND.u8(record),
            next,
        });
    }
    Ok(found)
}

/// Names and kinds (`DT_*`) of the next entries of a directory, as many as fit into `buffer`; empty
/// at its end.
pub fn next_names(fd: RawFd, buffer: &mut [u8]) -> Result<Vec<(CString, u8)>> {
    loop {
        let entries = next_entries(fd, buffer)?;
        let is_over = entries.is_empty();
        let is_other = |entry: &Dirent| !matches!(entry.name.to_bytes(), b"." | b"..");
        let found: Vec<_> =
            entries.into_iter().filter(is_other).map(|entry| (entry.name, entry.kind)).collect();
        if is_over || !found.is_empty() {
            return Ok(found);
        }
    }
}

/// Returns None if the file has no such attribute. Empty if the attribute cannot be read, so that a
/// stub never counts as a plain file.
fn attribute_of(dir: RawFd, name: &CStr, attribute: &CStr) -> Option<Vec<u8>> {
    const USUAL: usize = 256;
    // SAFETY: the caller's descriptor stays open during this call.
    let dir = unsafe { BorrowedFd::borrow_raw(dir) };
    let mut value = vec![0u8; USUAL];
    let mut length = getxattr_at(dir, name, attribute, &mut value);
    if length == Err(Errno::RANGE) {
        value = vec![0u8; 64 << 10];
        length = getxattr_at(dir, name, attribute, &mut value);
    }
    match length {
        Ok(length) => value.truncate(length),
        Err(Errno::NODATA | Errno::NOENT | Errno::OPNOTSUPP) => return None,
        Err(_) => return Some(Vec::new()),
    }
    Some(value)
}
