//! Requests by io_uring (Linux 6.14): one call gives the answer and takes the next request.
//!
//! The kernel has a queue for each processor, on which the requests of programs that run there wait.
//! Each entry of a queue has a thread and a ring of its own: a request may wait for the disk, and
//! holds up no other. The kernel gives a request to the entry that was free last, so that a few
//! threads, whose memory is in the processor's caches, do all where a few can.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::thread::{CpuSet, sched_setaffinity};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::mount::protocol::abi::{
    InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeader,
};
use crate::mount::protocol::handshake::MESSAGE_BYTES_MAX;
use crate::mount::protocol::message::{Answer, Failure, Request};
use crate::mount::protocol::opcode::is_bulk;
use crate::mount::session::service::{Service, out_header};

/// Requests of one processor's programs that may wait for the disk at a time.
pub const ENTRIES: usize = 8;

/// Answers that are not as long as the longest message; the longest of them is a list of extended
/// attributes.
const SHORT_BYTES_MAX: usize = 68 << 10;

const SUBMISSIONS: u32 = 2;
const COMMAND_BYTES: usize = 80;

/// How many queues the kernel has: one for each processor that there may ever be.
pub fn queues() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}

/// Starts the threads of all queues. The kernel uses the rings once each queue has an entry.
pub fn start(service: &Arc<Service>, device: &Arc<OwnedFd>) -> Answer<()> {
    for queue in 0..queues() {
        for _ in 0..ENTRIES {
            let (service, device) = (Arc::clone(service), Arc::clone(device));
            let run = move || {
                if let Err(Failure(number)) = serve(&service, &device, queue) {
                    if number != libc::ENOTCONN {
                        eprintln!("a ring of the mount ends: error {number}");
                    }
                }
            };
            thread::Builder::new().name(format!("mount-ring-{queue}")).spawn(run)?;
        }
    }
    Ok(())
}

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// One entry of a queue, with its thread's ring. The kernel writes to `header` and `payload` from a
/// submission to its completion.
struct Entry<'a> {
    ring: Ring,
    device: &'a OwnedFd,
    queue: u16,
    header: Box<RingHeader>,
    payload: Vec<u8>,
}

fn serve(service: &Service, device: &OwnedFd, queue: usize) -> Answer<()> {
    let mut processors = CpuSet::new();
    processors.set(queue);
    // A processor that is not there: then any will do.
    let _ = sched_setaffinity(None, &processors);
    let mut scratch = vec![0; SHORT_BYTES_MAX];
    let mut entry = Entry {
        ring: ring()?,
        device,
        queue: queue as u16,
        header: Box::new(RingHeader::new_zeroed()),
        payload: vec![0; MESSAGE_BYTES_MAX],
    };
    entry.register()?;
    loop {
        let unique = entry.answer(service, &mut scratch)?;
        entry.commit(unique)?;
    }
}

fn ring() -> Answer<Ring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_coop_taskrun();
    match builder.clone().setup_defer_taskrun().build(SUBMISSIONS) {
        Ok(ring) => Ok(ring),
        Err(_) => Ok(builder.build(SUBMISSIONS)?),
    }
}

impl Entry<'_> {
    /// Gives the kernel the entry's memory, and waits for the first request.
    fn register(&mut self) -> Answer<()> {
        let vectors = [
            libc::iovec {
                iov_base: (&raw mut *self.header).cast(),
                iov_len: size_of::<RingHeader>(),
            },
            libc::iovec { iov_base: self.payload.as_mut_ptr().cast(), iov_len: self.payload.len() },
        ];
        let command = RingCommand { queue: self.queue, ..RingCommand::default() };
        self.submit(RING_REGISTER, &command, Some(&vectors))
    }

    /// Gives the kernel the answer, and waits for the next request.
    fn commit(&mut self, unique: u64) -> Answer<()> {
        let command = RingCommand { queue: self.queue, commit: unique, ..RingCommand::default() };
        self.submit(RING_COMMIT_AND_FETCH, &command, None)
    }

    fn submit(
        &mut self,
        operation: u32,
        command: &RingCommand,
        vectors: Option<&[libc::iovec; 2]>,
    ) -> Answer<()> {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        let mut submission = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), operation)
            .cmd(bytes)
            .addr(vectors.map(|vectors| vectors.as_ptr() as u64))
            .build();
        if let Some(vectors) = vectors {
            set_length(&mut submission, vectors.len() as u32);
        }
        // SAFETY: the entry's memory lives as long as the ring, which ends first; the vectors are
        // read before the call returns.
        unsafe { self.ring.submission().push(&submission) }.map_err(|_| Failure(libc::EBUSY))?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                result => {
                    result?;
                }
            }
            if let Some(completion) = self.ring.completion().next() {
                return match completion.result() {
                    ..0 => Err(Failure(-completion.result())),
                    _ => Ok(()),
                };
            }
        }
    }

    /// Answers the request that is in the entry's memory; returns its number.
    fn answer(&mut self, service: &Service, scratch: &mut [u8]) -> Answer<u64> {
        let RingHeader { header, fixed, entry } = &mut *self.header;
        let (given, _) = InHeader::read_from_prefix(&*header).map_err(|_| Failure(libc::EIO))?;
        let fixed = &fixed[..service.fixed_bytes(given.opcode)];
        let length = (entry.payload_bytes as usize).min(self.payload.len());
        let answer = if is_bulk(given.opcode) {
            let request = Request { header: given, fixed, rest: &[] };
            service.answer(&request, &mut self.payload)
        } else {
            let request = Request { header: given, fixed, rest: &self.payload[..length] };
            let answer = service.answer(&request, scratch);
            if let Some(Ok(length)) = answer {
                self.payload[..length].copy_from_slice(&scratch[..length]);
            }
            answer
        };
        let answer = answer.unwrap_or(Ok(0));
        let out = out_header(given.unique, &answer);
        header[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        entry.payload_bytes = answer.unwrap_or(0) as u32;
        Ok(given.unique)
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
