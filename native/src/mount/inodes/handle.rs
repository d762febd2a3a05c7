//! The handle that opens an inode again, in little memory.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::mount::protocol::message::Answer;
use crate::system::calls::open_by_handle;

const SHORT_BYTES: usize = 30;

/// Type (i32, little-endian), then the bytes of the handle. With the type, handles of ext4, XFS and
/// btrfs have 12, 16 and 24 bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum Handle {
    Short { length: u8, bytes: [u8; SHORT_BYTES] },
    Long(Box<[u8]>),
}

impl Handle {
    pub fn new(whole: &[u8]) -> Handle {
        let mut bytes = [0; SHORT_BYTES];
        match bytes.get_mut(..whole.len()) {
            Some(place) => {
                place.copy_from_slice(whole);
                Handle::Short { length: whole.len() as u8, bytes }
            }
            None => Handle::Long(whole.into()),
        }
    }

    pub fn whole(&self) -> &[u8] {
        match self {
            Handle::Short { length, bytes } => &bytes[..usize::from(*length)],
            Handle::Long(whole) => whole,
        }
    }

    /// Opens the inode in the file system of `root`. Fails with ESTALE if it no longer exists.
    pub fn open(&self, root: impl AsFd, flags: OFlags) -> Answer<OwnedFd> {
        let root = root.as_fd().as_raw_fd();
        loop {
            match open_by_handle(root, self.whole(), flags.bits() as i32) {
                // SAFETY: the call returned a new descriptor with no other owner.
                Ok(fd) => return Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_any_length_is_given_back() {
        for length in [0, 4, 12, 16, 24, SHORT_BYTES, SHORT_BYTES + 1, 132] {
            let whole: Vec<u8> = (0..length as u8).collect();
            assert_eq!(Handle::new(&whole).whole(), whole);
        }
        assert_eq!(size_of::<Handle>(), 32);
    }
}
