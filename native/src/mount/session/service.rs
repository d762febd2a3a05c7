//! What all threads of a session share, and what each has of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::{FromBytes, IntoBytes};

use crate::mount::protocol::abi::{InHeader, OutHeader};
use crate::mount::protocol::handshake::MESSAGE_BYTES_MAX;
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request};
use crate::mount::protocol::opcode::fixed_bytes;
use crate::mount::requests::dispatch::Counts;
use crate::mount::requests::tree::Tree;

pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();

/// Room for the longest answer.
pub const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// The mount, for all threads that serve it.
pub struct Service {
    pub tree: Tree,
    pub counts: Counts,
    /// The flags that kernel and mount have agreed on.
    pub agreed: AtomicU64,
}

impl Service {
    pub fn new(tree: Tree) -> Service {
        Service { tree, counts: Counts::default(), agreed: AtomicU64::new(0) }
    }

    /// How many bytes the part of a request has that is of the same length in all of its kind.
    pub fn fixed_bytes(&self, opcode: u32) -> usize {
        fixed_bytes(opcode, self.agreed.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// A request as `/dev/fuse` gives it. None where it is too short.
    pub fn divided<'a>(&self, message: &'a [u8]) -> Option<Request<'a>> {
        divided(message, self.agreed.load(Ordering::Relaxed)).ok()
    }

    /// Answers a request into `out`. None where no answer is expected. `out` may be the memory that
    /// `request.rest` is in only if the request has no rest.
    pub fn answer(&self, request: &Request, out: &mut [u8]) -> Option<Answer<usize>> {
        self.counts.add(request.header.opcode);
        match self.tree.answer(request, out) {
            Ok(Outcome::Answered(length)) => Some(Ok(length)),
            Ok(Outcome::Silent) => None,
            Ok(Outcome::HandedOver) => Some(Err(Failure(libc::ENOSYS))),
            Err(failure) => Some(Err(failure)),
        }
    }
}

/// A message as `/dev/fuse` gives it, of a session that has agreed on these flags. Fails with EIO
/// where it is too short.
pub fn divided(message: &[u8], agreed: u64) -> Answer<Request<'_>> {
    let malformed = Failure(libc::EIO);
    let (header, rest) = InHeader::read_from_prefix(message).map_err(|_| malformed)?;
    let fixed = fixed_bytes(header.opcode, agreed).unwrap_or(0);
    let (fixed, rest) = rest.split_at_checked(fixed).ok_or(malformed)?;
    Ok(Request { header, fixed, rest })
}

/// The header of an answer with so many bytes, or with an error.
pub fn out_header(unique: u64, answer: &Answer<usize>) -> OutHeader {
    let (bytes, error) = match answer {
        Ok(length) => (*length, 0),
        Err(Failure(number)) => (0, -number),
    };
    OutHeader { length: (OUT_HEADER_BYTES + bytes) as u32, error, unique }
}

/// A request in one piece, as `/dev/fuse` gives it to libfuse.
pub fn whole(request: &Request) -> Vec<u8> {
    let mut header = request.header;
    let fixed = request.fixed;
    let length = IN_HEADER_BYTES + fixed.len() + request.rest.len();
    header.length = length as u32;
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(header.as_bytes());
    message.extend_from_slice(fixed);
    message.extend_from_slice(request.rest);
    message
}
