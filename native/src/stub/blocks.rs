//! The local blocks of a stub: the bytes that its attribute counts, and the bytes that exist.

use std::io::Result;
use std::os::fd::RawFd;

use crate::format::stub::{COMMITTING, DIRECT, RESTORING, StubHead, WRITTEN};
use crate::system::extents::local_bytes;
use crate::system::files::status_of;

pub const TRANSIENT: u8 = COMMITTING | RESTORING;

/// Returns the bytes of local blocks that a settled stub has beyond the count of its attribute:
/// negative if blocks are missing. A program that punches zeros, for example `fallocate -d`, would
/// make old bytes visible again; a program that writes zeros into holes would hide content.
pub fn uncounted_bytes(fd: RawFd, stub: &StubHead, block_bytes: u64) -> Result<i64> {
    let status = status_of(fd)?;
    let is_clean = stub.flags & !DIRECT == 0 && stub.local == 0;
    if stub.flags & TRANSIENT != 0 || (is_clean && status.st_blocks == 0) {
        return Ok(0);
    }
    let end = (status.st_size as u64).next_multiple_of(block_bytes) as i64;
    let mut more = 0;
    for sync in [false, true] {
        // The last written data may have no place on the disk yet.
        let (found, pending) = local_bytes(fd, end, sync)?;
        more = found - stub.local as i64;
        let is_right = more >= 0 && stub.flags & WRITTEN != 0;
        if is_right || (more == 0 && (sync || pending == 0)) {
            return Ok(0);
        }
    }
    Ok(more)
}
