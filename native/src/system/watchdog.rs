//! Freeing a thread that waits in `read` for what will not come.
//!
//! Who polls a descriptor and then reads it may find it empty: `/dev/fuse` takes a request back when
//! the program that made it is killed. A descriptor that blocks then keeps the reader, and with it
//! whatever lock it holds (Python's, say), until somebody makes another request.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(250);
/// Of what the kernel says of a call, so much has its number and its first argument.
const CALL_BYTES: usize = 64;

extern "C" fn ignore(_: libc::c_int) {}

/// From now on, interrupts (EINTR) the thread `tid` of this process wherever it is found waiting in
/// `read` of `fd`. Uses `SIGURG`, which nobody sends to such a process.
pub fn interrupt_reads(fd: RawFd, tid: i32) -> io::Result<()> {
    // SAFETY: the handler does nothing; the structure is zeroed but for it, so without SA_RESTART.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut())
    };
    if installed < 0 {
        return Err(io::Error::last_os_error());
    }
    // Opened once: descriptors may run out later, and that is no time to stop.
    let calls = File::open(format!("/proc/self/task/{tid}/syscall"))?;
    let waits = format!("{} {fd:#x} ", libc::SYS_read);
    thread::Builder::new().name("read-watchdog".into()).spawn(move || {
        let mut call = [0; CALL_BYTES];
        // It cannot be read any more once the thread is gone.
        while let Ok(length) = calls.read_at(&mut call, 0) {
            if call[..length].starts_with(waits.as_bytes()) {
                // SAFETY: takes no pointers; a thread that has gone meanwhile is ESRCH.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGURG) };
            }
            thread::sleep(INTERVAL);
        }
    })?;
    Ok(())
}
