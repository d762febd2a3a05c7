//! One entry of a kernel queue, with a separate ring: one call gives the answer to a request and
//! takes the next request (io_uring, Linux 6.14).

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

/// Limit for answers to requests with a variable part: a list of extended attributes.
pub const SHORT_BYTES_MAX: usize = 68 << 10;

const SUBMISSIONS: u32 = 4;
const COMMAND_BYTES: usize = 80;

/// The subject of a completion.
const OF_COMMAND: u64 = 0;
const OF_END: u64 = 1;

/// Returns the number of kernel queues: one for each possible processor. Fails if that number is
/// unknown, for example without `/sys`: with too few queues, the kernel waits for the rest.
pub fn queues() -> Answer<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    last_processor(&text.unwrap_or_default()).map(|last| last + 1).ok_or(Failure(libc::ENOENT))
}

fn last_processor(possible: &str) -> Option<usize> {
    possible.trim().rsplit(['-', ',']).next()?.parse().ok()
}

/// The memory of an entry. The kernel writes to it from a submission to the completion.
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
    /// Calls `serve` with the request in this memory, and with room for the answer. If nothing
    /// follows the fixed part of the request, this is the memory of the answer, otherwise
    /// `scratch`.
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

    /// Stores the answer to the request that [`Memory::serve`] has found.
    pub fn answer(&mut self, unique: u64, answer: &Answer<usize>, scratch: &[u8]) {
        let has_rest = self.header.entry.payload_bytes > 0;
        if let (Ok(length), true) = (answer, has_rest) {
            self.payload[..*length].copy_from_slice(&scratch[..*length]);
        }
        self.put_header(&out_header(unique, answer), answer.unwrap_or(0));
    }

    /// Stores an answer that is in parts.
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

    /// The stored answer.
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

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A request is in the entry's memory.
    Request,
    /// The descriptor of [`Entry::watch`] is readable.
    End,
}

/// An entry of a queue. Only the thread that creates it may use it.
pub struct Entry {
    ring: Ring,
    device: Arc<OwnedFd>,
    queue: u16,
    /// Completions before the first wait.
    early: VecDeque<Answer<WaitOutcome>>,
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

    /// Creates an entry that need not be registered, to test whether rings can be created and used.
    pub fn trial(device: Arc<OwnedFd>) -> Answer<Entry> {
        queues()?;
        let mut entry = Entry::new(device, 0)?;
        // Finds out in time if a container allows rings to be created, but not to be used.
        entry.push(&opcode::Nop::new().build().into())?;
        entry.wait()?;
        Ok(entry)
    }

    /// Makes [`Entry::wait`] report that `end`, which stays open until then, is readable.
    pub fn watch(&mut self, end: &OwnedFd) -> Answer<()> {
        let poll = opcode::PollAdd::new(types::Fd(end.as_raw_fd()), libc::POLLIN as u32);
        self.push(&poll.build().user_data(OF_END).into())
    }

    /// Gives the kernel the entry's memory for the first request.
    pub fn register(&mut self, memory: &mut Memory) -> Answer<()> {
        let vectors = memory.vectors();
        let command = RingCommand { queue: self.queue, ..RingCommand::default() };
        let mut submission = self.command(RING_REGISTER, &command, Some(&vectors));
        set_length(&mut submission, vectors.len() as u32);
        self.push(&submission)?;
        self.submit()?;
        // The kernel reports a failed registration immediately. The wait reports everything else.
        let said: Vec<_> = self.ring.completion().map(|completion| found(&completion)).collect();
        for found in said {
            match found {
                Err(failure) => return Err(failure),
                found => self.early.push_back(found),
            }
        }
        Ok(())
    }

    /// Makes a kernel that does not use rings yet work without them.
    pub fn refuse(&mut self) {
        // A registration that fails is the sign for the kernel.
        self.queue = u16::MAX;
        let _ = self.register(&mut Memory::default());
    }

    /// Makes the next [`Entry::submit`] or [`Entry::wait`] give the kernel the answer in the
    /// memory.
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

    /// Waits for the next request. Fails with ENOTCONN after the end of the mount.
    pub fn wait(&mut self) -> Answer<WaitOutcome> {
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
        // SAFETY: the entry's memory outlives the ring. The vectors are read by the call that
        // submits, before they are dropped.
        unsafe { self.ring.submission().push(submission) }.map_err(|_| Failure(libc::EBUSY))
    }
}

fn found(completion: &cqueue::Entry) -> Answer<WaitOutcome> {
    match (completion.user_data(), completion.result()) {
        (OF_END, _) => Ok(WaitOutcome::End),
        (_, failure @ ..0) => Err(Failure(-failure)),
        _ => Ok(WaitOutcome::Request),
    }
}

/// Sets the length of a submission, for which the library has no call.
fn set_length(submission: &mut squeue::Entry128, length: u32) {
    /// Offset of `len` in `struct io_uring_sqe`.
    const LENGTH_AT: usize = 24;
    let start = (&raw mut *submission).cast::<u8>();
    // SAFETY: within the 128 bytes of the submission, where any value of four bytes is valid.
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
