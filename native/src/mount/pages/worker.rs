//! The worker: a process that opens files of the mount for the mount process.
//!
//! From Linux 6.16 on, a close returns after the mount has all pages of the file. Before, it takes
//! the lock of the inode, which the searching program holds. There the worker reports which pages
//! of the range are in the kernel's cache (Linux 6.5), and the mount treats them as data.

use std::ffi::CString;
use std::fs::read_to_string;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open, openat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::mount::pages::message::{NONE, Question, next_question, reply};
use crate::mount::protocol::message::{Answer, Failure};
use crate::system::calls::{PAGE_BYTES_MIN, cached_pages, open_by_handle};

/// `FILEID_INO64_GEN`: the kind of FUSE's handles.
const HANDLE_KIND: i32 = 0x81;
const MOUNTS: &str = "/proc/self/mountinfo";

/// The properties of a mount that a worker needs.
pub struct Worker {
    /// The original mount point.
    mountpoint: PathBuf,
    device: u64,
    /// True if a close of a file writes it back, and waits for that.
    closes_write_back: bool,
}

impl Worker {
    pub fn new(mountpoint: PathBuf, device: u64, closes_write_back: bool) -> Worker {
        Worker { mountpoint, device, closes_write_back }
    }

    /// Serves all connections that arrive through `control` until that is closed, each in a thread.
    pub fn serve(self, control: &OwnedFd) -> Answer<()> {
        let worker = Arc::new(self);
        while let Some(line) = received(control)? {
            let worker = Arc::clone(&worker);
            // Without a thread, the connection is closed, and the question gets no answer.
            let _ = Builder::new().name("pages".into()).spawn(move || worker.work(&line));
        }
        Ok(())
    }

    fn work(&self, line: &OwnedFd) {
        while let Ok(Some((question, path))) = next_question(line) {
            let answered = match self.opened(&question, &path) {
                Err(_) => reply(line, question.start),
                Ok(file) if self.closes_write_back => reply(line, written_back(file, &question)),
                // Closed after the answer, because the close waits for the search to end.
                Ok(file) => {
                    let range = question.start..question.end;
                    reply(line, first_cached(&file, range).unwrap_or(question.start))
                }
            };
            if answered.is_err() {
                return;
            }
        }
    }

    /// The file in the mount. Fails if this process can see the mount at no place.
    fn opened(&self, question: &Question, path: &[u8]) -> Answer<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let root = self.root()?;
        let file = if path.is_empty() {
            let handle = handle(question.inode, question.generation as u32);
            let file = open_by_handle(root.as_raw_fd(), &handle, flags.bits() as i32)?;
            // SAFETY: the call returned a new descriptor with no other owner.
            unsafe { OwnedFd::from_raw_fd(file) }
        } else {
            let path = CString::new(path).map_err(|_| Failure(libc::EINVAL))?;
            openat(&root, path, flags, Mode::empty())?
        };
        let status = fstat(&file)?;
        let is_it = status.st_ino == question.inode
            && status.st_dev == self.device
            && FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if is_it { Ok(file) } else { Err(Failure(libc::ESTALE)) }
    }

    fn root(&self) -> Answer<OwnedFd> {
        match self.root_at(&self.mountpoint) {
            Err(_) => {
                let table = read_to_string(MOUNTS)?;
                let found = points(&table, self.device).find_map(|at| self.root_at(&at).ok());
                found.ok_or(Failure(libc::ENOTCONN))
            }
            root => root,
        }
    }

    fn root_at(&self, point: &Path) -> Answer<OwnedFd> {
        // Opening by handle fails with a descriptor that only names an inode.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(point, flags, Mode::empty())?;
        if fstat(&root)?.st_dev == self.device { Ok(root) } else { Err(Failure(libc::ESTALE)) }
    }
}

/// Mount points of an entire file system, as written in `mountinfo`.
fn points(table: &str, device: u64) -> impl Iterator<Item = PathBuf> {
    let number = format!("{}:{}", major(device), minor(device));
    table.lines().filter_map(move |line| {
        let mut words = line.split(' ').skip(2);
        let is_whole = words.next() == Some(&number) && words.next() == Some("/");
        is_whole.then(|| words.next().map(unescaped)).flatten()
    })
}

/// A path in which the kernel has written blanks as octal numbers.
fn unescaped(word: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let (mut bytes, mut left) = (Vec::new(), word.as_bytes());
    while let Some((&first, rest)) = left.split_first() {
        let number = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = number.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal.filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                left = &rest[3..];
            }
            None => {
                bytes.push(first);
                left = rest;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn handle(inode: u64, generation: u32) -> Vec<u8> {
    let (high, low) = ((inode >> 32) as u32, inode as u32);
    let body = [high, low, generation].map(u32::to_ne_bytes).concat();
    [HANDLE_KIND.to_le_bytes().to_vec(), body].concat()
}

/// Writes back all newer pages of a file. Bytes that could not be written are lost, and may still
/// be visible.
fn written_back(file: OwnedFd, question: &Question) -> u64 {
    use std::os::fd::IntoRawFd;
    // SAFETY: this function owns the descriptor, and passes it to the call.
    let result = unsafe { libc::close(file.into_raw_fd()) };
    if result == 0 { NONE } else { question.start }
}

/// The first offset of a range whose page is in the page cache, or [`NONE`]. Fails before Linux
/// 6.5.
fn first_cached(file: &OwnedFd, range: Range<u64>) -> Answer<u64> {
    let count = |range: &Range<u64>| cached_pages(file.as_raw_fd(), range);
    if count(&range)? == 0 {
        return Ok(NONE);
    }
    let (mut low, mut high) = (range.start, range.end);
    while high - low > PAGE_BYTES_MIN {
        let middle = low + ((high - low) / 2).next_multiple_of(PAGE_BYTES_MIN).min(high - low - 1);
        if count(&(low..middle))? > 0 { high = middle } else { low = middle }
    }
    Ok(low)
}

fn received(control: &OwnedFd) -> Answer<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [std::io::IoSliceMut::new(&mut byte)];
    let message = recvmsg(control, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = part {
            return Ok(descriptors.next());
        }
    }
    Err(Failure(libc::EBADMSG))
}
