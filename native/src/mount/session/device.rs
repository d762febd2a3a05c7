//! The connection to the kernel of a mount, `/dev/fuse`, for requests and their answers.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, read, write};
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::{InvalidateInode, NOTIFY_INVALIDATE_INODE, OutHeader};
use crate::mount::protocol::message::{Answer, Failure, OUT_HEADER_BYTES};

/// Errors of `/dev/fuse` after the end of the mount.
const UNMOUNTED: [Errno; 2] = [Errno::NODEV, Errno::CONNABORTED];

/// The result of reading the next request.
pub enum Received {
    /// A message of this many bytes.
    Message(usize),
    /// No request is pending, and the descriptor does not block.
    Nothing,
    /// The mount has ended.
    Ended,
}

/// Reads a message of the kernel.
pub fn receive(device: impl AsFd, buffer: &mut [u8]) -> Answer<Received> {
    loop {
        return match read(&device, &mut *buffer) {
            Ok(length) => Ok(Received::Message(length)),
            // The program that sent the request was killed.
            Err(Errno::INTR | Errno::NOENT) => continue,
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(error) if UNMOUNTED.contains(&error) => Ok(Received::Ended),
            Err(error) => Err(error.into()),
        };
    }
}

/// Gives the kernel an answer, through the descriptor that its request came from.
pub fn give(device: impl AsFd, answer: &[u8]) -> Answer<()> {
    given(write(device, answer))
}

/// The result of giving an answer. No program waits for it if it was killed or the mount has ended.
pub fn given(written: Result<usize, Errno>) -> Answer<()> {
    match written {
        Err(Errno::NOENT) => Ok(()),
        Err(error) if UNMOUNTED.contains(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Makes the kernel ask for an inode's attributes again. Fails with ENOENT for an unknown inode.
pub fn forget_attributes(device: &OwnedFd, node: u64) -> Answer<()> {
    invalidate(device, InvalidateInode { node, offset: -1, length: 0 })
}

/// Makes the kernel drop its pages of a range that is not empty, and forget the inode's attributes.
/// Fails as [`forget_attributes`].
///
/// The kernel waits for requests of these pages, and writes changed pages. So the caller must not
/// be a thread that answers requests.
pub fn drop_pages(device: &OwnedFd, node: u64, range: &Range<u64>) -> Answer<()> {
    let offset = i64::try_from(range.start).map_err(|_| Failure(libc::EINVAL))?;
    let end = i64::try_from(range.end).unwrap_or(i64::MAX);
    invalidate(device, InvalidateInode { node, offset, length: end - offset })
}

fn invalidate(device: &OwnedFd, body: InvalidateInode) -> Answer<()> {
    let length = (OUT_HEADER_BYTES + size_of_val(&body)) as u32;
    let header = OutHeader { length, error: NOTIFY_INVALIDATE_INODE, unique: 0 };
    write(device, &[header.as_bytes(), body.as_bytes()].concat())?;
    Ok(())
}
