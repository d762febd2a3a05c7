//! The first request of a session: what kernel and mount promise each other.

use zerocopy::{FromBytes, IntoBytes};

use crate::mount::protocol::abi::{InitIn, InitOut, OutHeader, init};
use crate::mount::protocol::message::{Answer, Request};

/// Requests for which no program waits, or of which a program has several (reading ahead, direct
/// reads and writes), that the kernel sends at a time. All users share them, and with the kernel's
/// default of 12 a dozen readers of one slow file would keep all others from reading.
pub const BACKGROUND_MAX: u16 = 128;
/// With so many the kernel ceases to read ahead.
pub const CONGESTED_FROM: u16 = BACKGROUND_MAX / 4 * 3;

/// The first request of a session as libfuse gets it: without offers that are none by a socket.
pub fn for_libfuse(mut given: InitIn) -> InitIn {
    given.flags &= !(SPLICE as u32);
    given
}

/// What the kernel should do where libfuse has answered it, beyond what libfuse promises.
///
/// Not among what is promised: `ATOMIC_O_TRUNC`. An open without a message would lose the truncation.
/// `WRITEBACK_CACHE`: on a full disk the write must fail, not the close after it.
/// `AUTO_INVAL_DATA`: a new time of modification would drop all pages of a file, also that of the
/// write that has just put them there. All writes come through the mount, so the pages are right.
/// `READDIRPLUS_AUTO`: a listing comes with all attributes at once, and is kept with them.
const ADDED: u64 =
    init::DONT_MASK | init::CACHE_SYMLINKS | init::EXPLICIT_INVAL_DATA | init::HANDLE_KILLPRIV_V2;

/// What is agreed on where requests come by io_uring.
pub const BY_RING: u64 = init::INIT_EXT | init::OVER_IO_URING;

/// Ways for data that libfuse has for `/dev/fuse`, and that a socket does not have.
const SPLICE: u64 = 0b111 << 7;

/// What the kernel offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    flags: u64,
}

impl Offer {
    /// Reads the first request of a session.
    pub fn of(request: &Request) -> Answer<Offer> {
        let given: InitIn = request.part()?;
        let flags = u64::from(given.flags);
        let more = if flags & init::INIT_EXT != 0 { u64::from(given.flags2) << 32 } else { 0 };
        Ok(Offer { flags: flags | more })
    }

    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// libfuse's answer with what it does not promise, and with room for as many requests as are
    /// served at a time. `ring`: requests are to come by io_uring.
    pub fn extended(&self, mut answer: InitOut, ring: bool) -> InitOut {
        let added = (self.flags & ADDED) as u32;
        if self.flags & init::EXPLICIT_INVAL_DATA != 0 {
            answer.flags &= !(init::AUTO_INVAL_DATA as u32);
        }
        // An opening without a message would lose the truncation.
        answer.flags &= !(init::ATOMIC_O_TRUNC as u32);
        answer.flags |= added;
        answer.max_background = BACKGROUND_MAX;
        answer.congestion_threshold = CONGESTED_FROM;
        if ring && self.has(BY_RING) {
            // What libfuse has there counts only with the flag that says so.
            if u64::from(answer.flags) & init::INIT_EXT == 0 {
                answer.flags2 = 0;
            }
            answer.flags |= BY_RING as u32;
            answer.flags2 |= (BY_RING >> 32) as u32;
        }
        answer
    }

    /// As [`Offer::extended`], of a whole message. Returns the flags that are agreed on: none where
    /// libfuse has refused.
    pub fn extend(&self, message: &mut [u8], ring: bool) -> u64 {
        let Ok((header, body)) = OutHeader::read_from_prefix(message) else { return 0 };
        let Ok((answer, _)) = InitOut::read_from_prefix(body) else { return 0 };
        if header.error != 0 {
            return 0;
        }
        let extended = self.extended(answer, ring);
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

    const KERNEL: u64 = init::ASYNC_READ | init::DONT_MASK | init::INIT_EXT | init::OVER_IO_URING;

    fn offer(flags: u64) -> Offer {
        Offer { flags }
    }

    #[test]
    fn libfuse_is_offered_no_way_that_a_socket_lacks() {
        let given = InitIn { flags: u32::MAX, ..InitIn::default() };
        assert_eq!(for_libfuse(given).flags, !(SPLICE as u32));
    }

    #[test]
    fn what_libfuse_does_not_promise_is_added_where_the_kernel_offers_it() {
        let answer = InitOut { flags: init::ASYNC_READ as u32, ..InitOut::default() };
        let cuts = answer.flags | init::ATOMIC_O_TRUNC as u32;
        assert_eq!(offer(0).extended(InitOut { flags: cuts, ..answer }, true).flags, answer.flags);
        let extended = offer(KERNEL).extended(answer, false);
        assert_eq!(u64::from(extended.flags), init::ASYNC_READ | init::DONT_MASK);
        assert_eq!(offer(init::ASYNC_READ).extended(answer, false).flags, answer.flags);
        assert_eq!(extended.max_background, BACKGROUND_MAX);
    }

    #[test]
    fn times_tell_of_no_new_content_where_the_kernel_can_be_told_of_it() {
        let answer = InitOut { flags: init::AUTO_INVAL_DATA as u32, ..InitOut::default() };
        let explicit = init::EXPLICIT_INVAL_DATA;
        assert_eq!(u64::from(offer(explicit).extended(answer, false).flags), explicit);
        assert_eq!(offer(init::ASYNC_READ).extended(answer, false).flags, answer.flags);
    }

    #[test]
    fn rings_are_agreed_on_where_both_sides_have_them() {
        let answer = InitOut { flags: init::ASYNC_READ as u32, flags2: 1, ..InitOut::default() };
        let agreed = |flags, ring| {
            let extended = offer(flags).extended(answer, ring);
            (u64::from(extended.flags) & init::INIT_EXT != 0, extended.flags2)
        };
        assert_eq!(agreed(KERNEL, true), (true, (init::OVER_IO_URING >> 32) as u32));
        assert_eq!(agreed(KERNEL, false), (false, 1));
        assert_eq!(agreed(KERNEL & !init::OVER_IO_URING, true), (false, 1));
        assert_eq!(agreed(KERNEL & !init::INIT_EXT, true), (false, 1));
    }
}
