//! A regular file or a directory, open for its content.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
