//! Answers to requests, for each transport and from any thread.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::writev;
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::OutHeader;
use crate::mount::protocol::message::{Answer, Failure, out_header};
use crate::mount::session::device::given;
use crate::mount::session::rings::seat::Seats;

/// Number of parts of an answer that one call accepts; the limit of the kernel is 1,024.
const PARTS_MAX: usize = 1000;

/// The connection to the kernel of a mount, for answers.
pub struct Answers {
    device: Arc<OwnedFd>,
    /// Requests from a ring that another thread answers. All other answers go to the device.
    pub seats: Seats,
}

impl Answers {
    pub fn new(device: Arc<OwnedFd>) -> Answers {
        Answers { device, seats: Seats::default() }
    }

    /// Answers a request with the bytes of `body`, in parts.
    pub fn give(&self, unique: u64, body: &[&[u8]]) -> Answer<()> {
        let length = body.iter().map(|part| part.len()).sum();
        self.give_under(&out_header(unique, &Ok(length)), body)
    }

    /// Answers a request with an error number.
    pub fn refuse(&self, unique: u64, number: i32) -> Answer<()> {
        self.give_under(&out_header(unique, &Err(Failure(number))), &[])
    }

    /// Gives the kernel an answer, or a notification. Does nothing if the program was killed or the
    /// mount has ended, because then no program waits.
    pub fn give_under(&self, header: &OutHeader, body: &[&[u8]]) -> Answer<()> {
        if self.seats.give(header, body) {
            return Ok(());
        }
        let header = header.as_bytes();
        if body.len() < PARTS_MAX {
            let mut slices = Vec::with_capacity(body.len() + 1);
            slices.push(IoSlice::new(header));
            slices.extend(body.iter().map(|part| IoSlice::new(part)));
            return given(writev(&*self.device, &slices));
        }
        let body = body.concat();
        given(writev(&*self.device, &[IoSlice::new(header), IoSlice::new(&body)]))
    }
}
