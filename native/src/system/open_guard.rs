//! Refuses opens of stubs below a mount, by permission events of fanotify.
//!
//! Threads answer the events of all mounts of a file system, except exempt mounts. They answer an
//! event before they report it, and wait for no reader. If a thread takes too long, the group is
//! closed, and the kernel allows all waiting opens.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, fanotify_event_metadata, fanotify_response};

/// The events of one thread may wait for the disk while the others continue.
const THREADS: usize = 4;
/// If the disk takes longer to return an attribute, programs are blocked: no guard is better.
const EVENT_MS_MAX: u64 = 5000;
const POLL_MS: c_int = 250;
/// Maximum of refusals that wait for a report. Later ones are only counted.
const WAITING_MAX: usize = 256;
/// Maximum of events per read, so that other threads get the rest.
const EVENTS: usize = 16;
/// From `fanotify.h`, Linux 6.13. Only groups of this class may answer with a chosen error.
const DENY_WITH_EIO: u32 = libc::FAN_DENY | (libc::EIO as u32) << 24;

/// The attribute of stubs on volumes of root.
const STUB: &CStr = c"trusted.dedupd";

/// A refused open.
pub struct Refusal {
    pub pid: i32,
    pub uid: u32,
    pub program: Vec<u8>,
    pub path: Vec<u8>,
}

/// State shared by threads and owner.
struct Shared {
    /// The group, or -1 after it is closed.
    group: AtomicI32,
    /// Replaces the closed group, so that threads that still use the number find nothing to read.
    nothing: fs::File,
    /// Start of each thread's current events, in milliseconds from `started`; 0 while it waits.
    busy_since_ms: [AtomicU64; THREADS],
    started: Instant,
    answers_eio: AtomicBool,
    /// The lock of dedupd's programs, as `/proc/locks` shows it.
    register: Vec<u8>,
    told: Mutex<VecDeque<Refusal>>,
    has_news: Condvar,
    refused: AtomicU64,
}

/// The guard of one file system, until it is dropped.
pub struct OpenGuard {
    shared: Arc<Shared>,
}

impl OpenGuard {
    /// Guards the file system of `directory`, except opens through the mounts of `exempt`.
    /// `register` is device and inode of the file that dedupd's programs have locked.
    pub fn start(directory: RawFd, exempt: &[RawFd], register: Vec<u8>) -> Result<Self> {
        let group = new_group()?;
        let ignored =
            libc::FAN_MARK_MOUNT | libc::FAN_MARK_IGNORED_MASK | libc::FAN_MARK_IGNORED_SURV_MODIFY;
        // Exempt first: otherwise the mount process would wait for threads that do not run yet.
        for &mount in exempt {
            mark(&group, libc::FAN_MARK_ADD | ignored, mount)?;
        }
        let shared = Arc::new(Shared {
            group: AtomicI32::new(group.as_raw_fd()),
            nothing: fs::File::open("/dev/null")?,
            busy_since_ms: [const { AtomicU64::new(0) }; THREADS],
            started: Instant::now(),
            answers_eio: AtomicBool::new(true),
            register,
            told: Mutex::new(VecDeque::new()),
            has_news: Condvar::new(),
            refused: AtomicU64::new(0),
        });
        // From here on, `Shared::close` closes the group.
        let guard = Self { shared };
        let _ = group.into_raw_fd();
        for number in 0..THREADS {
            let shared = Arc::clone(&guard.shared);
            thread::Builder::new()
                .name("open-guard".to_owned())
                .spawn(move || shared.serve(number))?;
        }
        let shared = Arc::clone(&guard.shared);
        thread::Builder::new().name("guard-watch".to_owned()).spawn(move || shared.watch())?;
        let group = guard.shared.group.load(Ordering::Acquire);
        mark_fd(group, libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM, directory)?;
        Ok(guard)
    }

    /// Waits up to `wait` for refusals. Returns them, and their number since the start.
    pub fn take(&self, wait: Duration) -> (Vec<Refusal>, u64) {
        let mut told = self.shared.told();
        if told.is_empty() {
            let waited = self.shared.has_news.wait_timeout(told, wait);
            told = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (told.drain(..).collect(), self.shared.refused.load(Ordering::Relaxed))
    }

    /// Returns whether it is active. A thread that takes too long ends it.
    pub fn is_open(&self) -> bool {
        self.shared.group.load(Ordering::Acquire) >= 0
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.shared.close();
    }
}

fn new_group() -> Result<OwnedFd> {
    // Only the class of programs that provide content may answer with EIO.
    let class = libc::FAN_CLASS_PRE_CONTENT | libc::FAN_UNLIMITED_QUEUE;
    let flags = class | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    let files = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::fanotify_init(flags, files as u32) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is new, with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn mark(group: &OwnedFd, flags: u32, place: RawFd) -> Result<()> {
    mark_fd(group.as_raw_fd(), flags, place)
}

fn mark_fd(group: RawFd, flags: u32, place: RawFd) -> Result<()> {
    // SAFETY: without a path, the descriptor itself is the place.
    let result =
        unsafe { libc::fanotify_mark(group, flags, libc::FAN_OPEN_PERM, place, std::ptr::null()) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, VecDeque<Refusal>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        // Never 0, which means that a thread waits.
        self.started.elapsed().as_millis() as u64 + 1
    }

    /// Closes the group. The kernel allows waiting opens when no thread is in a call on the group.
    fn close(&self) {
        let group = self.group.swap(-1, Ordering::AcqRel);
        if group >= 0 {
            // SAFETY: takes no pointers. The number belongs to this object until the process ends.
            unsafe { libc::dup3(self.nothing.as_raw_fd(), group, libc::O_CLOEXEC) };
        }
        self.has_news.notify_all();
    }

    /// Closes the group if a thread takes too long, then ends the process, because a call that
    /// cannot be interrupted would keep a part of the group.
    fn watch(&self) {
        while self.group.load(Ordering::Acquire) >= 0 {
            thread::sleep(Duration::from_millis(POLL_MS as u64));
            let now_ms = self.now_ms();
            let is_late = |since: &AtomicU64| {
                let since_ms = since.load(Ordering::Relaxed);
                since_ms != 0 && now_ms.saturating_sub(since_ms) > EVENT_MS_MAX
            };
            if self.busy_since_ms.iter().any(is_late) {
                self.close();
                // SAFETY: takes no pointers.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        }
    }

    fn serve(&self, number: usize) {
        let mut events =
            [const { std::mem::MaybeUninit::<fanotify_event_metadata>::uninit() }; EVENTS];
        loop {
            let group = self.group.load(Ordering::Acquire);
            if group < 0 {
                return;
            }
            let mut poll = libc::pollfd { fd: group, events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which lives during the call.
            if unsafe { libc::poll(&raw mut poll, 1, POLL_MS) } <= 0 {
                continue;
            }
            // The kernel opens the file of an event in this call, which may also wait.
            self.busy_since_ms[number].store(self.now_ms(), Ordering::Relaxed);
            // SAFETY: the buffer is writable for its length.
            let read = unsafe {
                libc::read(group, events.as_mut_ptr().cast::<c_void>(), size_of_val(&events))
            };
            // Events of this kind consist only of metadata, so the kernel writes complete events.
            let count = usize::try_from(read).unwrap_or(0) / size_of::<fanotify_event_metadata>();
            for event in &events[..count] {
                // SAFETY: the kernel has filled `count` of them.
                let event = unsafe { event.assume_init() };
                if event.vers == libc::FANOTIFY_METADATA_VERSION && event.fd >= 0 {
                    // SAFETY: the descriptor of the event is new, with no other owner.
                    let file = unsafe { OwnedFd::from_raw_fd(event.fd) };
                    self.answer(group, &file, event.pid);
                }
            }
            self.busy_since_ms[number].store(0, Ordering::Relaxed);
        }
    }

    /// Allows the open if it cannot find out more.
    fn answer(&self, group: RawFd, file: &OwnedFd, pid: i32) {
        if !Self::is_stub(file) || self.is_ours(pid) {
            respond(group, file, libc::FAN_ALLOW);
            return;
        }
        // Before the answer, because the process exists while it waits.
        let refusal = refusal_of(file, pid);
        let is_sent =
            self.answers_eio.load(Ordering::Relaxed) && respond(group, file, DENY_WITH_EIO);
        if !is_sent {
            // Kernels before 6.13 know only the error EPERM.
            self.answers_eio.store(false, Ordering::Relaxed);
            respond(group, file, libc::FAN_DENY);
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        let mut told = self.told();
        if told.len() < WAITING_MAX {
            told.push_back(refusal);
            self.has_news.notify_all();
        }
    }

    fn is_stub(file: &OwnedFd) -> bool {
        // SAFETY: an empty buffer asks for the length; the name is NUL-terminated.
        let length =
            unsafe { libc::fgetxattr(file.as_raw_fd(), STUB.as_ptr(), std::ptr::null_mut(), 0) };
        length > 0
    }

    /// Returns whether a process has the lock of dedupd's programs.
    fn is_ours(&self, pid: i32) -> bool {
        let Ok(locks) = fs::read("/proc/locks") else {
            return true;
        };
        let pid = pid.to_string();
        locks.split(|&byte| byte == b'\n').any(|line| {
            let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
            words.nth(1) == Some(b"FLOCK")
                && words.nth(2) == Some(pid.as_bytes())
                && words.next() == Some(&self.register)
        })
    }
}

/// Returns whether the kernel accepted the answer.
fn respond(group: RawFd, file: &OwnedFd, response: u32) -> bool {
    let mut answer = [0; size_of::<fanotify_response>()];
    answer[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    answer[4..].copy_from_slice(&response.to_ne_bytes());
    // SAFETY: while threads run, the number refers to the group or its replacement.
    let group = unsafe { BorrowedFd::borrow_raw(group) };
    rustix::io::write(group, &answer).is_ok()
}

fn refusal_of(file: &OwnedFd, pid: i32) -> Refusal {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut program = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    while program.last() == Some(&b'\n') {
        program.pop();
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = uids.and_then(|uids| uids.split_whitespace().nth(1)?.parse().ok());
    Refusal {
        pid,
        uid: uid.unwrap_or(u32::MAX),
        program,
        path: path.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
    }
}
