//! Requests that are not answered here go to libfuse, by a socket that keeps messages apart.
//!
//! libfuse takes its end for `/dev/fuse`: it reads one request at a time and writes one answer. The
//! thread that took the request from the kernel waits for the answer and passes it on. One of the
//! threads that wait receives for all of them, so that a request that comes alone wakes no thread but
//! its own.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
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
const BUFFER_BYTES: usize = HEADER_BYTES + MESSAGE_BYTES_MAX;

/// One request that waits for its answer, and the answer once another thread has received it.
#[derive(Default)]
struct Wait {
    answer: Option<Answer<Vec<u8>>>,
    woken: Arc<Condvar>,
}

#[derive(Default)]
struct Waits {
    all: HashMap<u64, Wait>,
    /// Whether one of the threads that wait receives for all of them.
    is_receiving: bool,
}

/// Our end of the socket.
pub struct HandOver {
    ours: OwnedFd,
    waits: Mutex<Waits>,
    /// Of the thread that receives.
    buffer: Mutex<Vec<u8>>,
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
        let buffer = Mutex::new(vec![0; BUFFER_BYTES]);
        Ok((HandOver { ours, waits: Mutex::default(), buffer }, theirs))
    }

    /// Sends a request, and waits for the answer to it.
    pub fn ask(&self, unique: u64, message: &[u8], out: &mut [u8]) -> Answer<usize> {
        let signal = Arc::new(Condvar::new());
        let wait = Wait { answer: None, woken: Arc::clone(&signal) };
        locked(&self.waits).all.insert(unique, wait);
        let answer = self.tell(message).and_then(|()| self.answer(unique, &signal));
        let mut waits = locked(&self.waits);
        waits.all.remove(&unique);
        // If this thread was the one that received, another one has to.
        if let (false, Some(next)) = (waits.is_receiving, waits.all.values().next()) {
            next.woken.notify_one();
        }
        drop(waits);
        let body = answer?;
        out.get_mut(..body.len()).ok_or(Failure(libc::EIO))?.copy_from_slice(&body);
        Ok(body.len())
    }

    /// Waits for the answer to a request, and receives those of others meanwhile.
    fn answer(&self, unique: u64, signal: &Condvar) -> Answer<Vec<u8>> {
        let mut waits = locked(&self.waits);
        loop {
            if let Some(answer) = waits.all.get_mut(&unique).and_then(|own| own.answer.take()) {
                return answer;
            }
            if waits.is_receiving {
                waits = woken(signal, waits);
                continue;
            }
            waits.is_receiving = true;
            drop(waits);
            let received = self.received();
            waits = locked(&self.waits);
            waits.is_receiving = false;
            let (to, answer) = received?;
            if to == unique {
                return answer;
            }
            if let Some(other) = waits.all.get_mut(&to) {
                other.answer = Some(answer);
                other.woken.notify_one();
            }
        }
    }

    /// The next answer, and the request that it belongs to. Fails with EIO once libfuse has ended.
    fn received(&self) -> Answer<(u64, Answer<Vec<u8>>)> {
        let mut buffer = locked(&self.buffer);
        let length = self.receive(&mut buffer)?;
        let (header, body) =
            OutHeader::read_from_prefix(&buffer[..length]).map_err(|_| Failure(libc::EIO))?;
        let answer =
            if header.error == 0 { Ok(body.to_vec()) } else { Err(Failure(-header.error)) };
        Ok((header.unique, answer))
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

    /// The next message of libfuse; of no bytes once it has ended.
    pub fn receive(&self, buffer: &mut [u8]) -> Answer<usize> {
        loop {
            match recv(&self.ours, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                result => return Ok(result?.0),
            }
        }
    }
}
