//! A regular file or a directory, open for its content.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{ReadWriteFlags, preadv2};

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
    /// Fills the start of `room` from the page cache, as far as the file goes; None where that lacks
    /// anything.
    pub fn read_cached(&self, offset: u64, room: &mut [u8]) -> Option<usize> {
        let mut done = 0;
        while done < room.len() {
            let parts = &mut [IoSliceMut::new(&mut room[done..])];
            match preadv2(self, parts, offset + done as u64, ReadWriteFlags::NOWAIT).ok()? {
                0 => break,
                count => done += count,
            }
        }
        Some(done)
    }
}
