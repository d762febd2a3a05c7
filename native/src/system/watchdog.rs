//! Wakes a thread that is blocked in `read` of /dev/fuse after the request was withdrawn.
//!
//! A reader that polls a descriptor before it reads may still find it empty: `/dev/fuse` withdraws
//! a request when the calling program is killed. A blocking read then lasts until the next request,
//! and so does every lock of the reader, the GIL for example.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(250);
/// Bytes to read of /proc/self/task/*/syscall: enough for the call number and its first argument.
const CALL_BYTES: usize = 64;

extern "C" fn ignore(_: libc::c_int) {}

/// From now on, interrupts (EINTR) the thread `tid` of this process whenever it is blocked in
/// `read` of `fd`. Uses `SIGURG`, which this process otherwise ignores.
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
    // Opened once, because descriptors may run out later.
    let calls = File::open(format!("/proc/self/task/{tid}/syscall"))?;
    let waits = format!("{} {fd:#x} ", libc::SYS_read);
    thread::Builder::new().name("read-watchdog".into()).spawn(move || {
        let mut call = [0; CALL_BYTES];
        // The file cannot be read after the thread has ended.
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
