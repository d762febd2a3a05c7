//! Serves a directory by the mount's native loop alone, to measure it beside other file systems.
//!
//! `cargo run --release --no-default-features --example mount_loop -- SOURCE MOUNTPOINT [device|ring]`
//!
//! Prints how many requests of each kind came since the last time on SIGUSR1, and unmounts on SIGTERM.

use std::io::Error;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::{env, mem, ptr};

use native::mount::inodes::generations::{Generations, SECRET_BYTES};
use native::mount::inodes::table::Inodes;
use native::mount::protocol::opcode;
use native::mount::requests::dispatch::Counts;
use native::mount::requests::tree::Tree;
use native::mount::session::serve::{Way, begin};
use native::mount::session::service::Service;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, source, point, rest @ ..] = &arguments[..] else {
        panic!("usage: mount_loop SOURCE MOUNTPOINT [device|ring]");
    };
    let way = if rest.iter().any(|one| one == "device") { Way::Device } else { Way::Ring };
    // Callers say which umask counts.
    rustix::process::umask(Mode::empty());
    let signals = block_signals();
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("limit");

    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, source.as_str(), flags, Mode::empty()).expect("source");
    let device = openat(CWD, "/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let device = Arc::new(device.expect("/dev/fuse"));
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).expect("options");
    mount("mount_loop", point.as_str(), "fuse.loop", MountFlags::empty(), &*options)
        .expect("mount");

    let generations = Generations::new([0; SECRET_BYTES]);
    let inodes = Inodes::new(root, 4096, 1 << 20, generations).expect("root");
    let service = Arc::new(Service::new(Tree::new(inodes, None)));
    let agreed = begin(&service, &device, way).expect("handshake");
    eprintln!("mounted, flags {agreed:#x}");

    let mut before = [0; opcode::COUNT];
    while next_signal(&signals) == libc::SIGUSR1 {
        before = print_counts(&service.counts, &before);
        println!("known {}", service.tree.inodes.count());
    }
    // It may be unmounted already.
    let _ = unmount(point.as_str(), UnmountFlags::DETACH);
}

fn print_counts(counts: &Counts, before: &[u64; opcode::COUNT]) -> [u64; opcode::COUNT] {
    let now = counts.all();
    let changed = (0..opcode::COUNT).filter(|at| now[*at] != before[*at]);
    let shown = changed.map(|at| format!("{} {}", opcode::name(at as u32), now[at] - before[at]));
    println!("{}", shown.collect::<Vec<_>>().join(", "));
    now
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: plain data that the calls fill.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for one in [libc::SIGUSR1, libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&raw mut set, one);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        set
    }
}

fn next_signal(set: &libc::sigset_t) -> i32 {
    let mut signal = 0;
    // SAFETY: both are live for the call.
    let error = unsafe { libc::sigwait(set, &raw mut signal) };
    assert_eq!(error, 0, "{}", Error::from_raw_os_error(error));
    signal
}
