//! The first request of a session: what kernel and mount promise each other.

use crate::mount::protocol::abi::{InitIn, InitOut, init};
use crate::mount::protocol::message::{Answer, Request};

/// The longest read and write, and the memory for one request: 1 MiB, as many pages as the kernel
/// allows by default (`fs.fuse.max_pages_limit`).
pub const MESSAGE_PAGES_MAX: u16 = 256;
pub const PAGE_BYTES: usize = 4096;
pub const MESSAGE_BYTES_MAX: usize = MESSAGE_PAGES_MAX as usize * PAGE_BYTES;

/// Reads ahead, direct writes and the like that may wait here at a time. The kernel's default of 12
/// would let a few sequential readers hold up all others.
const BACKGROUND_MAX: u16 = 64;

/// What the kernel should do, where it can.
///
/// Not among it: `ATOMIC_O_TRUNC`. An open without a message would lose the truncation.
/// `WRITEBACK_CACHE`: on a full disk the write must fail, not the close after it.
/// `READDIRPLUS_AUTO`: a listing comes with all attributes at once, and is kept with them.
const WANTED: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::AUTO_INVAL_DATA
    | init::DO_READDIRPLUS
    | init::ASYNC_DIO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT;

const MINOR: u32 = 45;

/// What the kernel offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    minor: u32,
    max_readahead: u32,
    flags: u64,
}

impl Offer {
    /// Reads the first request of a session.
    pub fn of(request: &Request) -> Answer<Offer> {
        let given: InitIn = request.part()?;
        let flags = u64::from(given.flags);
        let more = if flags & init::INIT_EXT != 0 { u64::from(given.flags2) << 32 } else { 0 };
        Ok(Offer { minor: given.minor, max_readahead: given.max_readahead, flags: flags | more })
    }

    /// What is taken of the offer; `ring`: io_uring too.
    pub fn taken(&self, ring: bool) -> u64 {
        self.flags & (WANTED | if ring { init::OVER_IO_URING } else { 0 })
    }

    pub fn answer(&self, taken: u64) -> InitOut {
        InitOut {
            major: 7,
            minor: self.minor.min(MINOR),
            max_readahead: self.max_readahead.max(MESSAGE_BYTES_MAX as u32),
            flags: taken as u32,
            flags2: (taken >> 32) as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: MESSAGE_BYTES_MAX as u32,
            time_granularity: 1,
            max_pages: MESSAGE_PAGES_MAX,
            ..InitOut::default()
        }
    }
}
