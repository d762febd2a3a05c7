//! One request, by whichever way it came, and the answer to it.

use std::ffi::CStr;
use std::io::Error;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::mount::protocol::abi::InHeader;

/// One request. Its numbers are the kernel's, and its lengths are checked as they are read.
pub struct Request<'a> {
    pub header: InHeader,
    /// What is of the same length in all requests of the kind.
    pub fixed: &'a [u8],
    /// Names and data that follow.
    pub rest: &'a [u8],
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered by so many bytes of the output.
    Answered(usize),
    /// No answer is expected.
    Silent,
    /// For the code that knows all cases.
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

impl<'a> Request<'a> {
    /// The fixed part. Fails with EINVAL where the request has less.
    pub fn part<T: FromBytes + KnownLayout + Immutable>(&self) -> Answer<T> {
        T::read_from_prefix(self.fixed).map(|(part, _)| part).map_err(|_| INVALID)
    }

    /// As [`Request::part`], with zeros for what an older kernel does not send.
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

/// Puts a structure at the start of `out`, and returns its length.
pub fn put<T: IntoBytes + Immutable>(out: &mut [u8], part: &T) -> Answer<usize> {
    part.write_to_prefix(out).map_err(|_| Failure(libc::EIO))?;
    Ok(size_of::<T>())
}
