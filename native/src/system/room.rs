//! How much may be written to a file system: `dedupd_core.config.room`, for what native code writes.

use std::fs::File;
use std::io::{Error, Result};

use rustix::fs::fstatvfs;

/// The free space of a file system beyond what is reserved for users.
#[derive(Clone, Copy)]
pub struct Room {
    pub reserve_bytes: u64,
}

impl Room {
    /// An error, that of a full disk, where so much may not be written beside `file` now.
    pub fn require(self, file: &File, need_bytes: usize) -> Result<()> {
        let found = fstatvfs(file)?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        if free_bytes < self.reserve_bytes.saturating_add(need_bytes as u64) {
            return Err(Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }
}
