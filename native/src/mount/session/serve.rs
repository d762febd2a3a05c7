//! A session from its first request on.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::{read, write};
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::{
    InitOut, InvalidateInode, NOTIFY_INVALIDATE_INODE, OutHeader, init,
};
use crate::mount::protocol::handshake::{MESSAGE_BYTES_MAX, Offer, PAGE_BYTES};
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::session::device::{Readers, another};
use crate::mount::session::rings::ring;
use crate::mount::session::service::{Service, out_header};

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
    let request = service.divided(&message[..length]).ok_or(Failure(libc::EIO))?;
    let offer = Offer::of(&request)?;
    let answer = offer.answer(offer.taken(way == Way::Ring));
    write(&**device, &joined(request.header.unique, &answer))?;
    start(service, device, &answer)
}

/// Has the kernel ask again for an inode's attributes. Fails with ENOENT where the kernel does not
/// know the inode.
pub fn forget_attributes(device: &OwnedFd, node: u64) -> Answer<()> {
    let body = InvalidateInode { node, offset: -1, length: 0 };
    let length = (size_of::<OutHeader>() + size_of_val(&body)) as u32;
    let header = OutHeader { length, error: NOTIFY_INVALIDATE_INODE, unique: 0 };
    write(device, &[header.as_bytes(), body.as_bytes()].concat())?;
    Ok(())
}

fn joined(unique: u64, answer: &InitOut) -> Vec<u8> {
    let header = out_header(unique, &Ok(size_of_val(answer)));
    [header.as_bytes(), answer.as_bytes()].concat()
}

/// Starts the threads for what was agreed, and returns that.
fn start(service: &Arc<Service>, device: &Arc<OwnedFd>, answer: &InitOut) -> Answer<u64> {
    let agreed = u64::from(answer.flags) | u64::from(answer.flags2) << 32;
    service.agreed.store(agreed, Ordering::Relaxed);
    if agreed & init::OVER_IO_URING != 0 {
        ring::start(service, device)?;
    }
    Readers::new(Arc::clone(service), another(&**device)?).start()?;
    Ok(agreed)
}
