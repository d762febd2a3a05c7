//! The kernel's end of a mount, `/dev/fuse`: requests are read from it, and answers written to it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, read, write};
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::{InvalidateInode, NOTIFY_INVALIDATE_INODE, OutHeader};
use crate::mount::protocol::message::{Answer, OUT_HEADER_BYTES};

/// Errors of `/dev/fuse` once the mount has gone.
const UNMOUNTED: [Errno; 2] = [Errno::NODEV, Errno::CONNABORTED];

/// What a look for the next request finds.
pub enum Received {
    /// A message of so many bytes.
    Message(usize),
    /// None is there, for a descriptor that does not wait.
    Nothing,
    /// The mount has gone.
    Ended,
}

/// Reads a message of the kernel.
pub fn receive(device: impl AsFd, buffer: &mut [u8]) -> Answer<Received> {
    loop {
        return match read(&device, &mut *buffer) {
            Ok(length) => Ok(Received::Message(length)),
            // The program that asked was killed meanwhile.
            Err(Errno::INTR | Errno::NOENT) => continue,
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(error) if UNMOUNTED.contains(&error) => Ok(Received::Ended),
            Err(error) => Err(error.into()),
        };
    }
}

/// Gives the kernel an answer, by the descriptor that the request came by.
pub fn give(device: impl AsFd, answer: &[u8]) -> Answer<()> {
    given(write(device, answer))
}

/// What becomes of an answer: nobody waits for it where the program was killed or the mount has gone.
pub fn given(written: Result<usize, Errno>) -> Answer<()> {
    match written {
        Err(Errno::NOENT) => Ok(()),
        Err(error) if UNMOUNTED.contains(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Has the kernel ask again for an inode's attributes. Fails with ENOENT where the kernel does not
/// know the inode.
pub fn forget_attributes(device: &OwnedFd, node: u64) -> Answer<()> {
    let body = InvalidateInode { node, offset: -1, length: 0 };
    let length = (OUT_HEADER_BYTES + size_of_val(&body)) as u32;
    let header = OutHeader { length, error: NOTIFY_INVALIDATE_INODE, unique: 0 };
    write(device, &[header.as_bytes(), body.as_bytes()].concat())?;
    Ok(())
}
