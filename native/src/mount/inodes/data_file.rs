//! A regular file or a directory, open for its content.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

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
        let mut done = 0;
        while done < room.len() {
            match pread(self, &mut room[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

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
