//! A regular file or a directory, open for its content.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::system::reads;

/// An open file. All that use it share the descriptor: its own position means nothing.
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
    /// Fills the start of `room` as far as the file goes, and waits for the disk.
    pub fn read_all(&self, offset: u64, room: &mut [u8]) -> Result<usize, Errno> {
        reads::read_all(self, offset, room)
    }

    /// Fills the start of `room` from the page cache, as far as the file goes; None where that lacks
    /// anything.
    pub fn read_cached(&self, offset: u64, room: &mut [u8]) -> Option<usize> {
        reads::read_cached(self, offset, room)
    }
}
