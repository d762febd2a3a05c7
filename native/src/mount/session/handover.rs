//! Requests that are not answered here go to libfuse, by a socket that keeps messages apart.
//!
//! libfuse takes its end for `/dev/fuse`: it reads one request at a time and writes one answer. The
//! thread that took the request from the kernel waits for the answer and passes it on.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use zerocopy::FromBytes;

use crate::mount::protocol::abi::OutHeader;
use crate::mount::protocol::handshake::MESSAGE_BYTES_MAX;
use crate::mount::protocol::message::{Answer, Failure};
use crate::threads::lock::{locked, woken};

const HEADER_BYTES: usize = size_of::<OutHeader>();

/// One request that waits for its answer.
#[derive(Default)]
struct Wait {
    answer: Mutex<Option<Vec<u8>>>,
    arrived: Condvar,
}

/// Our end of the socket.
pub struct HandOver {
    ours: OwnedFd,
    waits: Mutex<HashMap<u64, Arc<Wait>>>,
}

impl HandOver {
    /// Also returns the other end, which takes the place of libfuse's descriptor.
    pub fn new() -> Answer<(HandOver, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        // One write of 1 MiB must fit, with its header.
        for end in [&ours, &theirs] {
            rustix::net::sockopt::set_socket_send_buffer_size_force(end, 4 * MESSAGE_BYTES_MAX)
                .or_else(|_| {
                    rustix::net::sockopt::set_socket_send_buffer_size(end, 4 * MESSAGE_BYTES_MAX)
                })?;
        }
        Ok((HandOver { ours, waits: Mutex::default() }, theirs))
    }

    /// Sends a request, and waits for the answer to it.
    pub fn ask(&self, unique: u64, message: &[u8], out: &mut [u8]) -> Answer<usize> {
        let wait = Arc::new(Wait::default());
        locked(&self.waits).insert(unique, Arc::clone(&wait));
        if let Err(error) = self.tell(message) {
            locked(&self.waits).remove(&unique);
            return Err(error);
        }
        let mut answer = locked(&wait.answer);
        let bytes = loop {
            match answer.take() {
                Some(bytes) => break bytes,
                None => answer = woken(&wait.arrived, answer),
            }
        };
        let header = OutHeader::read_from_prefix(&bytes).map_err(|_| Failure(libc::EIO))?.0;
        if header.error != 0 {
            return Err(Failure(-header.error));
        }
        let body = &bytes[HEADER_BYTES..];
        out.get_mut(..body.len()).ok_or(Failure(libc::EIO))?.copy_from_slice(body);
        Ok(body.len())
    }

    /// Sends a request that has no answer.
    pub fn tell(&self, message: &[u8]) -> Answer<()> {
        loop {
            match send(&self.ours, message, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Ends the conversation: libfuse reads that the mount has gone.
    pub fn end(&self) {
        // It fails only where it was done already.
        let _ = shutdown(&self.ours, Shutdown::Both);
    }

    /// The next answer, or what libfuse tells the kernel of itself, in one piece.
    pub fn receive(&self, buffer: &mut [u8]) -> Answer<usize> {
        loop {
            match recv(&self.ours, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                result => return Ok(result?.0),
            }
        }
    }

    /// Gives the answers of libfuse to those that wait for them, until libfuse ends. What it tells
    /// the kernel of itself goes to `device`.
    pub fn pass_answers_on(&self, device: impl AsFd) {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX + HEADER_BYTES];
        while let Ok(length @ HEADER_BYTES..) = self.receive(&mut buffer) {
            let message = &buffer[..length];
            let Ok((header, _)) = OutHeader::read_from_prefix(message) else { continue };
            if header.unique == 0 {
                // The kernel does not know the inode: nothing to forget.
                let _ = rustix::io::write(&device, message);
            } else if let Some(wait) = locked(&self.waits).remove(&header.unique) {
                *locked(&wait.answer) = Some(message.to_vec());
                wait.arrived.notify_one();
            }
        }
        let failed = OutHeader { length: HEADER_BYTES as u32, error: -libc::EIO, unique: 0 };
        for (_, wait) in locked(&self.waits).drain() {
            *locked(&wait.answer) = Some(zerocopy::IntoBytes::as_bytes(&failed).to_vec());
            wait.arrived.notify_one();
        }
    }
}
