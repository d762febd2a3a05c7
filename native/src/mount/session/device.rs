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

/// The kernel wants room for a header and for the longest write.
const REQUEST_BYTES_MAX: usize = MESSAGE_BYTES_MAX + PAGE_BYTES;

/// Requests that may wait for the disk at a time.
const THREADS_MAX: usize = 64;
/// Threads that go on waiting for requests when there are fewer of these.
const SPARE_MAX: usize = 4;

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
            let length = match read(device, &mut input) {
                // The program that asked was killed meanwhile.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                result => result?,
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
        match write(device, &output[..header.length as usize]) {
            // The program that asked was killed meanwhile.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
