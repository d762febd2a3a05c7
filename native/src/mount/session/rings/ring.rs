//! Requests of a directory that native threads serve alone, by io_uring (`entry.rs`).
//!
//! The kernel has a queue for each processor, on which the requests of programs that run there wait.
//! Each entry of a queue has a thread and a ring of its own: a request may wait for the disk, and
//! holds up no other. The kernel gives a request to the entry that was free last, so that a few
//! threads, whose memory is in the processor's caches, do all where a few can.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::mount::protocol::message::{Answer, Failure};
use crate::mount::session::rings::entry::{Entry, Memory, SHORT_BYTES_MAX, queues};
use crate::mount::session::service::Service;
use crate::threads::processors::bind_to;

/// Requests of one processor's programs that may wait for the disk at a time.
pub const ENTRIES: usize = 8;

/// Starts the threads of all queues. The kernel uses the rings once each queue has an entry.
pub fn start(service: &Arc<Service>, device: &Arc<OwnedFd>) -> Answer<()> {
    for queue in 0..queues() {
        for _ in 0..ENTRIES {
            let (service, device) = (Arc::clone(service), Arc::clone(device));
            let run = move || {
                if let Err(Failure(number)) = serve(&service, device, queue) {
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

fn serve(service: &Service, device: Arc<OwnedFd>, queue: usize) -> Answer<()> {
    bind_to(queue);
    let (mut memory, mut scratch) = (Memory::default(), vec![0; SHORT_BYTES_MAX]);
    let mut entry = Entry::new(device, queue)?;
    entry.register(&mut memory)?;
    loop {
        entry.wait()?;
        let agreed = service.agreed.load(Ordering::Relaxed);
        let (unique, answer) = memory.serve(agreed, &mut scratch, |request, body| {
            (request.header.unique, service.answer(request, body).unwrap_or(Ok(0)))
        })?;
        memory.answer(unique, &answer, &scratch);
        entry.commit(unique)?;
    }
}
