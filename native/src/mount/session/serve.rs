//! A session from its first request on.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::{read, write};
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::init;
use crate::mount::protocol::handshake::{MESSAGE_BYTES_MAX, Offer, PAGE_BYTES};
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::session::device::{Readers, another};
use crate::mount::session::ring;
use crate::mount::session::service::{OUT_HEADER_BYTES, Service, divided, out_header};

/// How requests are to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By `/dev/fuse` only.
    Device,
    /// By io_uring where the kernel offers it.
    Ring,
}

/// Answers the first request of a session, and starts the threads that serve it until the mount
/// ends. Returns what was agreed.
pub fn begin(service: &Arc<Service>, device: &Arc<OwnedFd>, way: Way) -> Answer<u64> {
    let mut message = vec![0; MESSAGE_BYTES_MAX + PAGE_BYTES];
    let length = read(&**device, &mut message)?;
    let request = divided(&message[..length]).ok_or(Failure(libc::EIO))?;
    let offer = Offer::of(&request)?;
    let taken = offer.taken(way == Way::Ring);
    let answer = offer.answer(taken);
    let header = out_header(request.header.unique, &Ok(size_of_val(&answer)));
    let mut bytes = Vec::with_capacity(OUT_HEADER_BYTES + size_of_val(&answer));
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(answer.as_bytes());
    write(&**device, &bytes)?;
    if taken & init::OVER_IO_URING != 0 {
        ring::start(service, device)?;
    }
    let readers = Readers::new(Arc::clone(service), another(&**device)?);
    readers.start()?;
    Ok(taken)
}
