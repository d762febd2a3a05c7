//! The limit for writes of native code to a file system; see `dedupd_core.config.room`.

use std::fs::File;
use std::io::{Error, Result};

use rustix::fs::fstatvfs;

/// The free space of a file system without the reserve for users.
#[derive(Clone, Copy)]
pub struct Room {
    pub reserve_bytes: u64,
}

impl Room {
    /// Fails like a full disk if `need_bytes` may not be written to the file system of `file`.
    pub fn require(self, file: &File, need_bytes: usize) -> Result<()> {
        let found = fstatvfs(file)?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        if free_bytes < self.reserve_bytes.saturating_add(need_bytes as u64) {
            return Err(Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }
}
