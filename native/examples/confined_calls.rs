//! Processor time of system calls, before and after a process drops those that a mount does not
//! need.
//!
//! cargo run --release --no-default-features --example confined_calls

use std::fs::File;
use std::os::fd::AsRawFd;

use native::system::confinement::deny_calls;

const CALLS: u32 = 1_000_000;
const ROUNDS: u32 = 7;

/// Seconds of processor time that this thread has taken.
fn cpu_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the value is writable, and lives during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Nanoseconds per call, in the fastest round.
fn fastest_ns(call: impl Fn()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let began = cpu_s();
        (0..CALLS).for_each(|_| call());
        (cpu_s() - began) * 1e9 / f64::from(CALLS)
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn main() -> std::io::Result<()> {
    let file = File::open("/proc/self/exe")?;
    let fd = file.as_raw_fd();
    let measured = || {
        let mut page = [0_u8; 4096];
        let at = page.as_mut_ptr();
        // SAFETY: the calls write to the page, which lives during the calls, or take no pointers.
        unsafe {
            let shortest = fastest_ns(|| {
                libc::syscall(libc::SYS_getppid);
            });
            let page = fastest_ns(|| {
                libc::pread(fd, at.cast(), 4096, 0);
            });
            [("getppid", shortest), ("pread of 4 KiB", page)]
        }
    };
    let before = measured();
    deny_calls()?;
    for ((name, before), (_, after)) in before.iter().zip(measured()) {
        println!("{name}: {before:.1} ns before, {after:.1} ns after, {:.3}", after / before);
    }
    Ok(())
}
