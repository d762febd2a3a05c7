//! Requests by `/dev/fuse`: read one, write the answer.
//!
//! Each thread has a descriptor of its own (`FUSE_DEV_IOC_CLONE`), so that their answers do not wait
//! for each other. A thread that finds no other waiting starts one more: any may wait for the disk.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use zerocopy::IntoBytes;

use crate::mount::protocol::abi::DEVICE_CLONE;
use crate::mount::protocol::handshake::{MESSAGE_BYTES_MAX, PAGE_BYTES};
use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::session::service::{ANSWER_BYTES_MAX, OUT_HEADER_BYTES, Service, out_header};

/// Errors of `/dev/fuse` once the mount has gone.
const UNMOUNTED: [Errno; 2] = [Errno::NODEV, Errno::CONNABORTED];

/// A request, header included, is at most so long: the kernel wants room for the longest write.
pub const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX + PAGE_BYTES;

/// Requests that may wait for the disk at a time.
const THREADS_MAX: usize = 64;
/// Threads that go on waiting for requests when there are fewer of these.
const SPARE_MAX: usize = 4;

/// What a look for the next request finds.
pub enum Received {
    /// A message of so many bytes.
    Message(usize),
    /// None is there, for a descriptor that does not wait.
    Nothing,
    /// The mount has gone.
    Ended,
}

/// Reads a message of the kernel.
pub fn receive(device: impl AsFd, buffer: &mut [u8]) -> Answer<Received> {
    loop {
        return match read(&device, &mut *buffer) {
            Ok(length) => Ok(Received::Message(length)),
            // The program that asked was killed meanwhile.
            Err(Errno::INTR | Errno::NOENT) => continue,
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            Err(error) if UNMOUNTED.contains(&error) => Ok(Received::Ended),
            Err(error) => Err(error.into()),
        };
    }
}

/// Gives the kernel an answer, by the descriptor that the request came by.
pub fn give(device: impl AsFd, answer: &[u8]) -> Answer<()> {
    given(write(device, answer))
}

/// What becomes of an answer: nobody waits for it where the program was killed or the mount has gone.
pub fn given(written: Result<usize, Errno>) -> Answer<()> {
    match written {
        Err(Errno::NOENT) => Ok(()),
        Err(error) if UNMOUNTED.contains(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// A second descriptor of the session of `device`.
pub fn another(device: impl AsFd) -> Answer<OwnedFd> {
    let fd = openat(CWD, "/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let source = device.as_fd().as_raw_fd() as u32;
    // SAFETY: reads the number behind the pointer.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(DEVICE_CLONE), &raw const source) }
        < 0
    {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(fd)
}

/// The threads that read from `/dev/fuse`.
pub struct Readers {
    service: Arc<Service>,
    device: OwnedFd,
    /// Threads that wait for a request, and all of them.
    waiting: AtomicUsize,
    all: AtomicUsize,
}

impl Readers {
    pub fn new(service: Arc<Service>, device: OwnedFd) -> Arc<Readers> {
        let none = AtomicUsize::new(0);
        Arc::new(Readers { service, device, waiting: none, all: AtomicUsize::new(0) })
    }

    /// Starts a thread, unless there are enough.
    pub fn start(self: &Arc<Readers>) -> Answer<()> {
        if self.all.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.spawn().inspect_err(|_| {
            self.all.fetch_sub(1, Ordering::Relaxed);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        })
    }

    fn spawn(self: &Arc<Readers>) -> Answer<()> {
        // Where descriptors have run out, the threads that are there go on alone.
        let device = another(&self.device)?;
        let readers = Arc::clone(self);
        let run = move || {
            // It ends where the mount has gone.
            let _ = readers.run(&device);
            readers.all.fetch_sub(1, Ordering::Relaxed);
        };
        thread::Builder::new().name("mount-reader".into()).spawn(run)?;
        Ok(())
    }

    /// Serves requests until the mount ends, or until too many others wait for one.
    fn run(self: &Arc<Readers>, device: &OwnedFd) -> Answer<()> {
        let mut input = vec![0; REQUEST_BYTES_MAX];
        let mut output = vec![0; OUT_HEADER_BYTES + ANSWER_BYTES_MAX];
        loop {
            let length = match receive(device, &mut input)? {
                Received::Message(length) => length,
                Received::Nothing => continue,
                Received::Ended => return Ok(()),
            };
            if self.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
                let _ = self.start();
            }
            self.serve(device, &input[..length], &mut output)?;
            if self.waiting.fetch_add(1, Ordering::Relaxed) >= SPARE_MAX {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    fn serve(&self, device: &OwnedFd, message: &[u8], output: &mut [u8]) -> Answer<()> {
        let Some(request) = self.service.divided(message) else { return Err(Failure(libc::EIO)) };
        let (head, body) = output.split_at_mut(OUT_HEADER_BYTES);
        let answer = self.service.answer(&request, body);
        let Some(answer) = answer else { return Ok(()) };
        let header = out_header(request.header.unique, &answer);
        head.copy_from_slice(header.as_bytes());
        give(device, &output[..header.length as usize])
    }
}
