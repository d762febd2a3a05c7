//! The first request of a session: the promises of the kernel and the mount.

use zerocopy::{FromBytes, IntoBytes};

use crate::mount::protocol::abi::{InitIn, InitOut, OutHeader, init};
use crate::mount::protocol::message::{Answer, Request};

/// Maximum of background requests that the kernel sends at a time: no program waits for them, or a
/// program has several (read-ahead, direct reads and writes). All users share this number. With the
/// kernel's default of 12, a dozen readers of one slow file would block all other readers.
pub const BACKGROUND_MAX: u16 = 128;
/// With this number of requests, the kernel stops reading ahead.
pub const CONGESTED_FROM: u16 = BACKGROUND_MAX / 4 * 3;

/// The first request of a session for libfuse, without offers that a socket does not support.
/// `absent`: flags that count as not offered.
pub fn for_libfuse(mut given: InitIn, absent: u64) -> InitIn {
    given.flags &= !((SPLICE | absent) as u32);
    given.flags2 &= !((absent >> 32) as u32);
    given
}

/// Flags that the answer to the kernel has in addition to those of libfuse.
///
/// These flags are not promised:
/// * `ATOMIC_O_TRUNC`: an open without a message would lose the truncation.
/// * `ASYNC_DIO`: the kernel does not drop pages after a direct write that no program waits for, so
///   a reader in between would keep the old bytes.
/// * `WRITEBACK_CACHE`: on a full disk, the write must fail, not the close after it.
/// * `AUTO_INVAL_DATA`: a new time of modification would drop all pages of a file, including those
///   of the write itself. All writes come through the mount, so the pages are right.
/// * `SECURITY_CTX`: for SELinux, all directories of the mount have the label of the mount, and so
///   would all new files in them.
/// * `READDIRPLUS_AUTO`: a listing always comes with all attributes, and is kept with them.
const ADDED: u64 = init::DONT_MASK
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT;

/// Flags that libfuse promises, and this mount does not.
const WITHDRAWN: u32 = (init::ATOMIC_O_TRUNC | init::ASYNC_DIO) as u32;

/// Flags that are agreed on if requests arrive through io_uring.
pub const BY_RING: u64 = init::INIT_EXT | init::OVER_IO_URING;

/// Data transfers that libfuse has for `/dev/fuse`, and that a socket does not support.
const SPLICE: u64 = 0b111 << 7;

/// The kernel's offer.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    flags: u64,
}

impl Offer {
    /// Reads the first request of a session. `absent`: flags that count as not offered.
    pub fn of(request: &Request, absent: u64) -> Answer<Offer> {
        let given: InitIn = request.part()?;
        let flags = u64::from(given.flags);
        let more = if flags & init::INIT_EXT != 0 { u64::from(given.flags2) << 32 } else { 0 };
        Ok(Offer { flags: (flags | more) & !absent })
    }

    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Adds to libfuse's answer the flags that it does not promise, and the number of requests that
    /// are served at a time. `wanted`: further promises of this mount, besides [`ADDED`].
    pub fn extended(&self, mut answer: InitOut, wanted: u64) -> InitOut {
        let added = self.flags & (ADDED | wanted);
        if self.flags & init::EXPLICIT_INVAL_DATA != 0 {
            answer.flags &= !(init::AUTO_INVAL_DATA as u32);
        }
        answer.flags &= !WITHDRAWN;
        answer.flags |= added as u32;
        answer.max_background = BACKGROUND_MAX;
        answer.congestion_threshold = CONGESTED_FROM;
        if added >> 32 != 0 {
            // This field of libfuse's answer is valid only with the flag for it.
            if u64::from(answer.flags) & init::INIT_EXT == 0 {
                answer.flags2 = 0;
            }
            answer.flags |= init::INIT_EXT as u32;
            answer.flags2 |= (added >> 32) as u32;
        }
        answer
    }

    /// As [`Offer::extended`], for an entire message. Returns the flags that are agreed on, or none
    /// if libfuse has refused.
    pub fn extend(&self, message: &mut [u8], wanted: u64) -> u64 {
        let Ok((header, body)) = OutHeader::read_from_prefix(message) else { return 0 };
        let Ok((answer, _)) = InitOut::read_from_prefix(body) else { return 0 };
        if header.error != 0 {
            return 0;
        }
        let extended = self.extended(answer, wanted);
        let place = &mut message[size_of::<OutHeader>()..];
        place[..size_of::<InitOut>()].copy_from_slice(extended.as_bytes());
        let has_more = u64::from(extended.flags) & init::INIT_EXT != 0;
        let more = if has_more { u64::from(extended.flags2) << 32 } else { 0 };
        u64::from(extended.flags) | more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::protocol::abi::InHeader;
    use crate::mount::protocol::message::divided;
    use crate::mount::protocol::opcode as op;

    const RING: u64 = init::OVER_IO_URING;
    const KERNEL: u64 = init::ASYNC_READ | init::DONT_MASK | init::INIT_EXT | init::OVER_IO_URING;

    fn offer(flags: u64) -> Offer {
        Offer { flags }
    }

    #[test]
    fn libfuse_is_offered_no_way_that_a_socket_lacks() {
        let given = InitIn { flags: u32::MAX, ..InitIn::default() };
        assert_eq!(for_libfuse(given, 0).flags, !(SPLICE as u32));
    }

    #[test]
    fn what_counts_as_absent_is_offered_to_nobody() {
        let mut message = InHeader { opcode: op::INIT, ..InHeader::default() }.as_bytes().to_vec();
        let given = InitIn { flags: KERNEL as u32, flags2: u32::MAX, ..InitIn::default() };
        message.extend(given.as_bytes());
        let request = divided(&message, 0).unwrap();
        let absent = init::ASYNC_READ | init::OVER_IO_URING;
        let (all, some) = (Offer::of(&request, 0).unwrap(), Offer::of(&request, absent).unwrap());
        assert!(all.has(absent) && !some.has(init::ASYNC_READ) && !some.has(BY_RING));
        assert!(some.has(KERNEL & !absent));
        let told = for_libfuse(given, absent);
        assert_eq!(u64::from(told.flags), KERNEL & !absent & 0xffff_ffff);
        assert_eq!(told.flags2, !((absent >> 32) as u32));
    }

    #[test]
    fn what_libfuse_does_not_promise_is_added_where_the_kernel_offers_it() {
        let answer = InitOut { flags: init::ASYNC_READ as u32, ..InitOut::default() };
        let cuts = answer.flags | WITHDRAWN;
        assert_eq!(offer(0).extended(InitOut { flags: cuts, ..answer }, RING).flags, answer.flags);
        let extended = offer(KERNEL).extended(answer, 0);
        assert_eq!(u64::from(extended.flags), init::ASYNC_READ | init::DONT_MASK);
        assert_eq!(offer(init::ASYNC_READ).extended(answer, 0).flags, answer.flags);
        assert_eq!(extended.max_background, BACKGROUND_MAX);
    }

    #[test]
    fn times_tell_of_no_new_content_where_the_kernel_can_be_told_of_it() {
        let answer = InitOut { flags: init::AUTO_INVAL_DATA as u32, ..InitOut::default() };
        let explicit = init::EXPLICIT_INVAL_DATA;
        assert_eq!(u64::from(offer(explicit).extended(answer, 0).flags), explicit);
        assert_eq!(offer(init::ASYNC_READ).extended(answer, 0).flags, answer.flags);
    }

    #[test]
    fn what_only_some_mounts_want_is_agreed_on_where_both_sides_have_it() {
        let answer = InitOut { flags: init::ASYNC_READ as u32, flags2: 1, ..InitOut::default() };
        let agreed = |flags, wanted| {
            let extended = offer(flags).extended(answer, wanted);
            (u64::from(extended.flags) & init::INIT_EXT != 0, extended.flags2)
        };
        assert_eq!(agreed(KERNEL, RING), (true, (RING >> 32) as u32));
        assert_eq!(agreed(KERNEL, RING | init::ALLOW_IDMAP), (true, (RING >> 32) as u32));
        let both = RING | init::ALLOW_IDMAP;
        assert_eq!(agreed(KERNEL | both, both), (true, (both >> 32) as u32));
        assert_eq!(agreed(KERNEL, 0), (false, 1));
        assert_eq!(agreed(KERNEL & !RING, RING), (false, 1));
    }
}
