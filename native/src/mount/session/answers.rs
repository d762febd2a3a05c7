//! Answers to requests, by whichever way these came, and whichever thread has the answer.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::writev;
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::OutHeader;
use crate::mount::protocol::message::{Answer, Failure, out_header};
use crate::mount::session::device::given;
use crate::mount::session::rings::seat::Seats;

/// Parts of an answer that the kernel takes at once, its limit being 1,024.
const PARTS_MAX: usize = 1000;

/// The kernel's end of a mount, for answers.
pub struct Answers {
    device: Arc<OwnedFd>,
    /// The requests that came by a ring, and that others than its thread answer. All others came by
    /// the device.
    pub seats: Seats,
}

impl Answers {
    pub fn new(device: Arc<OwnedFd>) -> Answers {
        Answers { device, seats: Seats::default() }
    }

    /// Answers a request with some bytes, in parts.
    pub fn give(&self, unique: u64, body: &[&[u8]]) -> Answer<()> {
        let length = body.iter().map(|part| part.len()).sum();
        self.give_under(&out_header(unique, &Ok(length)), body)
    }

    /// Answers a request with an error number.
    pub fn refuse(&self, unique: u64, number: i32) -> Answer<()> {
        self.give_under(&out_header(unique, &Err(Failure(number))), &[])
    }

    /// Gives an answer, or what the kernel is told without having asked. Nobody waits for an answer
    /// where the program was killed or the mount has gone.
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
