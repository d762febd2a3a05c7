//! Checks of a file that is open for reading, before and after optimize reads it.

use std::io::Error;
use std::os::fd::RawFd;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::system::calls::number_of;
use crate::system::extents::{has_large_units, shared_bytes};
use crate::system::files::{Identity, status_of};
use crate::system::leases::has_writers;

/// A write within one tick of the kernel's clock (4 to 10 ms) of the last change of a file would
/// not change its times. So a file is read only when it is older than several ticks.
const SETTLE_NS: i64 = 50_000_000;

/// Why a file is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Unopened(i32),
    /// It differs from the file that was found.
    ChangedBefore,
    /// A process has it open for writing.
    InUse,
    /// Its blocks cannot be freed one by one.
    LargeUnits,
    /// Snapshots or copies below share this number of bytes of its blocks.
    Shared(i64),
    /// It changed while it was read.
    Changed,
    Io(i32),
}

impl Why {
    pub fn name(self) -> &'static str {
        match self {
            Why::Unopened(_) => "unopened",
            Why::ChangedBefore => "changed before",
            Why::InUse => "in use",
            Why::LargeUnits => "large units",
            Why::Shared(_) => "shared",
            Why::Changed => "changed",
            Why::Io(_) => "io",
        }
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Why {
        Why::Io(number_of(&error))
    }
}

/// Checks that a file has the `expected` identity, that no process has it open for writing, and
/// that its blocks can be freed. First waits until the last change is old enough.
pub fn examine(fd: RawFd, expected: &Identity, unshared_only: bool) -> Result<i64, Why> {
    wait_until_settled(fd)?;
    let status = status_of(fd)?;
    if Identity::of(&status) != *expected {
        return Err(Why::ChangedBefore);
    }
    // Checked after the identity: a write through a mapping whose page is already dirty does not
    // change the times. Only from here on, such a write is impossible.
    if has_writers(fd) {
        return Err(Why::InUse);
    }
    examine_blocks(fd, expected.size, unshared_only)
}

/// Checks the blocks of a file. Returns the number of bytes that snapshots or copies below share.
pub fn examine_blocks(fd: RawFd, size: i64, unshared_only: bool) -> Result<i64, Why> {
    let shared = shared_bytes(fd, size)?;
    match shared {
        _ if has_large_units(fd)? => Err(Why::LargeUnits),
        1.. if unshared_only => Err(Why::Shared(shared)),
        _ => Ok(shared),
    }
}

fn wait_until_settled(fd: RawFd) -> Result<(), Error> {
    let found = Identity::of(&status_of(fd)?);
    let coarse_ns = found.ctime_end_ns() - found.ctime_ns;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let age = (now as i64).saturating_sub(found.mtime_ns.max(found.ctime_end_ns()));
    if (-coarse_ns..SETTLE_NS).contains(&age) {
        sleep(Duration::from_nanos((SETTLE_NS - age) as u64));
    }
    Ok(())
}

/// Returns whether a file still has the expected identity.
pub fn is_unchanged(fd: RawFd, expected: &Identity) -> Result<(), Why> {
    let is_same = Identity::of(&status_of(fd)?) == *expected;
    if is_same { Ok(()) } else { Err(Why::Changed) }
}
