//! One entry of a queue of the kernel's, with a ring of its own: one call gives the answer to a request
//! and takes the next one (io_uring, Linux 6.14).

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::mount::protocol::abi::{
    InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeader,
};
use crate::mount::protocol::message::{Answer, Failure, MESSAGE_BYTES_MAX, Request, out_header};
use crate::mount::protocol::opcode::fixed_bytes;

/// Answers that are not as long as the longest message; the longest of them is a list of extended
/// attributes.
pub const SHORT_BYTES_MAX: usize = 68 << 10;

const SUBMISSIONS: u32 = 4;
const COMMAND_BYTES: usize = 80;

/// What a completion is of.
const OF_COMMAND: u64 = 0;
const OF_END: u64 = 1;

/// How many queues the kernel has: one for each processor that there may ever be. Fails where that
/// cannot be told, as without `/sys`: a kernel that has too few of them waits for the rest.
pub fn queues() -> Answer<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    last_processor(&text.unwrap_or_default()).map(|last| last + 1).ok_or(Failure(libc::ENOENT))
}

fn last_processor(possible: &str) -> Option<usize> {
    possible.trim().rsplit(['-', ',']).next()?.parse().ok()
}

/// The memory of an entry. The kernel writes to it from a submission to its completion.
pub struct Memory {
    header: Box<RingHeader>,
    payload: Vec<u8>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { header: Box::new(RingHeader::new_zeroed()), payload: vec![0; MESSAGE_BYTES_MAX] }
    }
}

impl Memory {
    /// Has `serve` look at the request that is there. It may answer into the bytes that it is given:
    /// the answer's own where nothing follows the fixed part of the request, else `scratch`.
    pub fn serve<T>(
        &mut self,
        agreed: u64,
        scratch: &mut [u8],
        serve: impl FnOnce(&Request, &mut [u8]) -> T,
    ) -> Answer<T> {
        let RingHeader { header, fixed, entry } = &*self.header;
        let (given, _) = InHeader::read_from_prefix(header).map_err(|_| Failure(libc::EIO))?;
        let fixed = &fixed[..fixed_bytes(given.opcode, agreed).unwrap_or(0).min(fixed.len())];
        let length = (entry.payload_bytes as usize).min(self.payload.len());
        Ok(if length == 0 {
            serve(&Request { header: given, fixed, rest: &[] }, &mut self.payload)
        } else {
            serve(&Request { header: given, fixed, rest: &self.payload[..length] }, scratch)
        })
    }

    /// Puts the answer to the request there that [`Memory::serve`] has found.
    pub fn answer(&mut self, unique: u64, answer: &Answer<usize>, scratch: &[u8]) {
        let has_rest = self.header.entry.payload_bytes > 0;
        if let (Ok(length), true) = (answer, has_rest) {
            self.payload[..*length].copy_from_slice(&scratch[..*length]);
        }
        self.put_header(&out_header(unique, answer), answer.unwrap_or(0));
    }

    /// Puts an answer there that is in parts.
    pub fn put(&mut self, header: &OutHeader, body: &[&[u8]]) {
        let mut length = 0;
        for part in body {
            let Some(place) = self.payload.get_mut(length..length + part.len()) else {
                return self.put_header(&out_header(header.unique, &Err(Failure(libc::EIO))), 0);
            };
            place.copy_from_slice(part);
            length += part.len();
        }
        self.put_header(header, length);
    }

    /// The answer that was put there.
    pub fn answered(&self) -> Answer<&[u8]> {
        let RingHeader { header, entry, .. } = &*self.header;
        match OutHeader::read_from_prefix(header) {
            Ok((OutHeader { error: 0, .. }, _)) => {
                let length = (entry.payload_bytes as usize).min(self.payload.len());
                Ok(&self.payload[..length])
            }
            Ok((header, _)) => Err(Failure(-header.error)),
            Err(_) => Err(Failure(libc::EIO)),
        }
    }

    fn put_header(&mut self, header: &OutHeader, length: usize) {
        self.header.header[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.header.entry.payload_bytes = length as u32;
    }

    fn vectors(&mut self) -> [libc::iovec; 2] {
        let (header, payload) = (&raw mut *self.header, self.payload.as_mut_ptr());
        [
            libc::iovec { iov_base: header.cast(), iov_len: size_of::<RingHeader>() },
            libc::iovec { iov_base: payload.cast(), iov_len: self.payload.len() },
        ]
    }
}

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// What a wait finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A request is in the entry's memory.
    Request,
    /// What [`Entry::watch`] has named is readable.
    End,
}

/// An entry of a queue. Used by the thread that has made it.
pub struct Entry {
    ring: Ring,
    device: Arc<OwnedFd>,
    queue: u16,
    /// What was there before the first wait.
    early: VecDeque<Answer<Found>>,
}

impl Entry {
    pub fn new(device: Arc<OwnedFd>, queue: usize) -> Answer<Entry> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_coop_taskrun();
        let ring = match builder.clone().setup_defer_taskrun().build(SUBMISSIONS) {
            Ok(ring) => ring,
            Err(_) => builder.build(SUBMISSIONS)?,
        };
        Ok(Entry { ring, device, queue: queue as u16, early: VecDeque::new() })
    }

    /// One that need not be registered: whether rings can be made and used here.
    pub fn trial(device: Arc<OwnedFd>) -> Answer<Entry> {
        queues()?;
        let mut entry = Entry::new(device, 0)?;
        // Where rules of a container let a ring be made, and not be used, this says so in time.
        entry.push(&opcode::Nop::new().build().into())?;
        entry.wait()?;
        Ok(entry)
    }

    /// Has [`Entry::wait`] tell once `end` is readable, which stays open as long as this.
    pub fn watch(&mut self, end: &OwnedFd) -> Answer<()> {
        let poll = opcode::PollAdd::new(types::Fd(end.as_raw_fd()), libc::POLLIN as u32);
        self.push(&poll.build().user_data(OF_END).into())
    }

    /// Gives the kernel the entry's memory, for the first request.
    pub fn register(&mut self, memory: &mut Memory) -> Answer<()> {
        let vectors = memory.vectors();
        let command = RingCommand { queue: self.queue, ..RingCommand::default() };
        let mut submission = self.command(RING_REGISTER, &command, Some(&vectors));
        set_length(&mut submission, vectors.len() as u32);
        self.push(&submission)?;
        self.submit()?;
        // Where it failed, that is said at once. Anything else is for the wait to tell.
        let said: Vec<_> = self.ring.completion().map(|completion| found(&completion)).collect();
        for found in said {
            match found {
                Err(failure) => return Err(failure),
                found => self.early.push_back(found),
            }
        }
        Ok(())
    }

    /// Has a kernel that has not begun to use rings do without them.
    pub fn refuse(&mut self) {
        // What cannot be registered is the sign.
        self.queue = u16::MAX;
        let _ = self.register(&mut Memory::default());
    }

    /// Has the next [`Entry::submit`] or [`Entry::wait`] give the kernel the answer that is in the
    /// entry's memory.
    pub fn commit(&mut self, unique: u64) -> Answer<()> {
        let command = RingCommand { queue: self.queue, commit: unique, ..RingCommand::default() };
        let submission = self.command(RING_COMMIT_AND_FETCH, &command, None);
        self.push(&submission)
    }

    pub fn submit(&mut self) -> Answer<()> {
        loop {
            match self.ring.submit() {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Waits for the next request. Fails with ENOTCONN where the mount has gone.
    pub fn wait(&mut self) -> Answer<Found> {
        loop {
            if let Some(found) = self.early.pop_front() {
                return found;
            }
            if let Some(completion) = self.ring.completion().next() {
                return found(&completion);
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                result => {
                    result?;
                }
            }
        }
    }

    fn command(
        &self,
        operation: u32,
        command: &RingCommand,
        vectors: Option<&[libc::iovec; 2]>,
    ) -> squeue::Entry128 {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(bytes)
            .addr(vectors.map(|vectors| vectors.as_ptr() as u64))
            .build()
            .user_data(OF_COMMAND)
    }

    fn push(&mut self, submission: &squeue::Entry128) -> Answer<()> {
        // SAFETY: the entry's memory lives as long as the ring, which ends first; vectors are read
        // by the call that submits, before they go.
        unsafe { self.ring.submission().push(submission) }.map_err(|_| Failure(libc::EBUSY))
    }
}

fn found(completion: &cqueue::Entry) -> Answer<Found> {
    match (completion.user_data(), completion.result()) {
        (OF_END, _) => Ok(Found::End),
        (_, failure @ ..0) => Err(Failure(-failure)),
        _ => Ok(Found::Request),
    }
}

/// Sets the length of a submission, which the library has no call for.
fn set_length(submission: &mut squeue::Entry128, length: u32) {
    /// Of `len` in `struct io_uring_sqe`.
    const LENGTH_AT: usize = 24;
    let start = (&raw mut *submission).cast::<u8>();
    // SAFETY: within the 128 bytes of the submission; four bytes of any value are valid there.
    unsafe { start.add(LENGTH_AT).cast::<u32>().write_unaligned(length) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_is_told_or_none() {
        let told = ["0\n", "0-1\n", "0-3,8-11\n", ""].map(last_processor);
        assert_eq!(told, [Some(0), Some(1), Some(11), None]);
    }
}
