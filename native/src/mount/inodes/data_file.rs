//! An open regular file or directory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::system::reads;

/// An open file. All users share the descriptor, so its position has no meaning.
pub struct DataFile {
    pub fd: OwnedFd,
    pub is_writable: bool,
}

impl AsFd for DataFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl DataFile {
    /// Fills the start of `room` up to the end of the file, and waits for the disk.
    pub fn read_all(&self, offset: u64, room: &mut [u8]) -> Result<usize, Errno> {
        reads::read_all(self, offset, room)
    }

    /// Fills the start of `room` from the page cache, up to the end of the file. Returns None if
    /// the page cache lacks a part.
    pub fn read_cached(&self, offset: u64, room: &mut [u8]) -> Option<usize> {
        reads::read_cached(self, offset, room)
    }
}
