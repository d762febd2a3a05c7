//! One request from any transport, and the answer to it.

use std::ffi::CStr;
use std::io::Error;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mount::protocol::abi::{InHeader, OutHeader};
use crate::mount::protocol::opcode::fixed_bytes;

const IN_HEADER_BYTES: usize = size_of::<InHeader>();
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();

/// The longest read and write, and the memory for one request. 1 MiB is the number of pages that
/// the kernel allows by default (`fs.fuse.max_pages_limit`).
pub const MESSAGE_BYTES_MAX: usize = 256 * PAGE_BYTES;
const PAGE_BYTES: usize = 4096;

/// Maximum length of a request with its header: the kernel needs room for the longest write.
pub const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX + PAGE_BYTES;
/// Room for the longest answer.
pub const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// One request. Its numbers come from the kernel, and its lengths are checked when they are read.
pub struct Request<'a> {
    pub header: InHeader,
    /// The part of equal length in all requests of the kind.
    pub fixed: &'a [u8],
    /// Names and data after the fixed part.
    pub rest: &'a [u8],
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with this many bytes of the output.
    Answered(usize),
    /// No answer is expected.
    Silent,
    /// For the code that handles all cases.
    HandedOver,
}

/// An error number for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub i32);

impl From<Errno> for Failure {
    fn from(error: Errno) -> Failure {
        Failure(error.raw_os_error())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

pub type Answer<T> = Result<T, Failure>;

const INVALID: Failure = Failure(libc::EINVAL);

/// Splits a message of `/dev/fuse` with the `agreed` flags. Fails with EIO if it is too short.
pub fn divided(message: &[u8], agreed: u64) -> Answer<Request<'_>> {
    let malformed = Failure(libc::EIO);
    let (header, rest) = InHeader::read_from_prefix(message).map_err(|_| malformed)?;
    let fixed = fixed_bytes(header.opcode, agreed).unwrap_or(0);
    let (fixed, rest) = rest.split_at_checked(fixed).ok_or(malformed)?;
    Ok(Request { header, fixed, rest })
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

/// The header of an answer with a number of bytes, or with an error.
pub fn out_header(unique: u64, answer: &Answer<usize>) -> OutHeader {
    let (bytes, error) = match answer {
        Ok(length) => (*length, 0),
        Err(Failure(number)) => (0, -number),
    };
    OutHeader { length: (OUT_HEADER_BYTES + bytes) as u32, error, unique }
}

impl<'a> Request<'a> {
    /// The fixed part. Fails with EINVAL if the request is shorter.
    pub fn part<T: FromBytes + KnownLayout + Immutable>(&self) -> Answer<T> {
        T::read_from_prefix(self.fixed).map(|(part, _)| part).map_err(|_| INVALID)
    }

    /// As [`Request::part`], with zeros for fields that an older kernel does not send.
    pub fn part_or_older<T: FromBytes + IntoBytes>(&self) -> T {
        let mut part = T::new_zeroed();
        let length = self.fixed.len().min(size_of::<T>());
        part.as_mut_bytes()[..length].copy_from_slice(&self.fixed[..length]);
        part
    }

    /// The name that follows the fixed part.
    pub fn name(&self) -> Answer<&'a CStr> {
        CStr::from_bytes_until_nul(self.rest).map_err(|_| INVALID)
    }

    /// Two names that follow the fixed part.
    pub fn names(&self) -> Answer<(&'a CStr, &'a CStr)> {
        let first = self.name()?;
        let rest = &self.rest[first.count_bytes() + 1..];
        Ok((first, CStr::from_bytes_until_nul(rest).map_err(|_| INVALID)?))
    }
}

/// Writes a structure to the start of `out`, and returns its length.
pub fn put<T: IntoBytes + Immutable>(out: &mut [u8], part: &T) -> Answer<usize> {
    part.write_to_prefix(out).map_err(|_| Failure(libc::EIO))?;
    Ok(size_of::<T>())
}
