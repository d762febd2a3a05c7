//! What all threads of a session share, and what each has of its own.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::mount::protocol::abi::{InHeader, OutHeader};
use crate::mount::protocol::handshake::MESSAGE_BYTES_MAX;
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request};
use crate::mount::protocol::opcode::fixed_bytes;
use crate::mount::requests::caller::Caller;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::tree::Tree;
use crate::mount::session::handover::HandOver;

pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();

/// Room for the longest answer.
pub const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// The mount, for all threads that serve it.
pub struct Service {
    pub tree: Tree,
    pub counts: Counts,
    /// Answers what is not answered here; without it, such requests are not known.
    pub others: Option<Arc<HandOver>>,
}

impl Service {
    /// Answers a request into `out`. None where no answer is expected. `out` may be the memory that
    /// `request.rest` is in only if the request has no rest.
    ///
    /// `message` makes the request's bytes in one piece, for those to whom it may be handed over.
    pub fn answer(
        &self,
        request: &Request,
        out: &mut [u8],
        caller: &mut Caller,
        message: impl FnOnce() -> Vec<u8>,
    ) -> Option<Answer<usize>> {
        self.counts.add(request.header.opcode);
        match self.tree.answer(request, out, caller) {
            Ok(Outcome::Answered(length)) => Some(Ok(length)),
            Ok(Outcome::Silent) => None,
            Ok(Outcome::HandedOver) => Some(match &self.others {
                Some(others) => others.ask(request.header.unique, &message(), out),
                None => Err(Failure(libc::ENOSYS)),
            }),
            Err(failure) => Some(Err(failure)),
        }
    }
}

/// A request as `/dev/fuse` gives it. None where it is too short, or of a kind that is not known and
/// cannot be divided.
pub fn divided(message: &[u8]) -> Option<Request<'_>> {
    let (header, rest) = InHeader::read_from_prefix(message).ok()?;
    let fixed = fixed_bytes(header.opcode).unwrap_or(0);
    let (fixed, rest) = rest.split_at_checked(fixed)?;
    Some(Request { header, fixed, rest })
}

/// The header of an answer with so many bytes, or with an error.
pub fn out_header(unique: u64, answer: &Answer<usize>) -> OutHeader {
    let (bytes, error) = match answer {
        Ok(length) => (*length, 0),
        Err(Failure(number)) => (0, -number),
    };
    OutHeader { length: (OUT_HEADER_BYTES + bytes) as u32, error, unique }
}

/// A request in one piece, as `/dev/fuse` gives it.
pub fn whole(request: &Request) -> Vec<u8> {
    let mut header = request.header;
    let length = IN_HEADER_BYTES + request.fixed.len() + request.rest.len();
    header.length = length as u32;
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(header.as_bytes());
    message.extend_from_slice(request.fixed);
    message.extend_from_slice(request.rest);
    message
}
