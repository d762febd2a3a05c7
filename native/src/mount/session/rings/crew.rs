//! The threads that take the requests of a volume's mount through io_uring (`entry.rs`).
//!
//! They answer requests that only read as overflow readers do (`Tree::answer_beside`). For the rest
//! they take the turn (`turn.rs`), and do the work of the event-loop thread (`Shared::take`).
//! Requests for Python go to the event-loop thread, and long reads to a separate thread. The
//! entry's thread waits for the answer (`seat.rs`) and blocks no other request. It performs short
//! reads and syncs itself, because waking another thread, which has to wake it again, takes time.
//!
//! Each queue starts with two threads. If a thread takes a request while no other thread of its
//! queue is free, it doubles the number of threads. So requests that wait do not block others.

use std::io;
use std::iter::repeat_n;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::write;
use zerocopy::FromBytes;

use crate::mount::protocol::abi::EntryOut;
use crate::mount::protocol::message::{Answer, Failure, Outcome, Request, whole};
use crate::mount::protocol::opcode as op;
use crate::mount::session::refused_writes::Write;
use crate::mount::session::rings::entry::{Entry, SHORT_BYTES_MAX, WaitOutcome, queues};
use crate::mount::session::rings::seat::{Desk, Seat};
use crate::mount::session::shared::{ClaimedRequest, Shared};
use crate::mount::session::turn::Turn;
use crate::threads::lock::locked;
use crate::threads::processors::{bind_to, is_there, note_all};

/// Limit for threads beyond two per processor. As many requests may wait for Python, for the disk
/// or for the turn, and the kernel keeps further ones. Python has 192 tasks, and reads and syncs
/// have 64 threads. An idle thread takes about 50 KB.
const MORE_MAX: usize = 256;

/// Limit for the threads that are started at a time.
const GROWTH_MAX: usize = 16;

/// Time from a failed start of an additional thread to the next attempt.
const FAILURE_WAIT: Duration = Duration::from_millis(100);

const ROOM_WAIT: Duration = Duration::from_millis(1);
/// Interval and number of checks of the waker whether all requests of a queue are answered.
const WAKE_TICK: Duration = Duration::from_millis(2);
const WAKE_LOOKS: u32 = 5;
/// Interval at which the end releases threads that still wait for an answer.
const END_TICK: Duration = Duration::from_millis(2);

/// Numbers of the threads of a queue: all threads, and those that wait for a request.
#[derive(Default)]
struct Queue {
    threads: AtomicUsize,
    free: AtomicUsize,
}

impl Queue {
    /// Returns whether no request is in progress. Then the kernel has no queued request either,
    /// because it gives out the next queued request with each answer.
    fn is_quiet(&self) -> bool {
        self.free.load(Ordering::SeqCst) >= self.threads.load(Ordering::SeqCst)
    }
}

struct Crew {
    shared: Arc<Shared>,
    turn: Arc<Turn>,
    agreed: u64,
    queues: Arc<[Queue]>,
    /// Number of threads beyond the first ones.
    more: AtomicUsize,
    /// Time of the last failed start of such a thread.
    failed: Mutex<Option<Instant>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Queues that have a new thread.
    grown: Sender<usize>,
    /// Readable when the threads have to end.
    end: OwnedFd,
    has_ended: AtomicBool,
}

/// The ring threads of a mount. They end when this is dropped, or when the mount ends.
pub struct Rings(Arc<Crew>);

impl Rings {
    /// Starts the threads when the event-loop thread has answered the first request. `agreed`: the
    /// flags of the session. Fails if the kernel continues without rings.
    pub fn start(
        shared: &Arc<Shared>,
        turn: &Arc<Turn>,
        agreed: u64,
        mountpoint: &Path,
    ) -> Answer<Rings> {
        let (grown, to_wake) = channel();
        let crew = Arc::new(Crew {
            shared: Arc::clone(shared),
            turn: Arc::clone(turn),
            agreed,
            queues: (0..queues()?).map(|_| Queue::default()).collect(),
            more: AtomicUsize::new(0),
            failed: Mutex::default(),
            threads: Mutex::default(),
            grown,
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
            has_ended: AtomicBool::new(false),
        });
        let rings = Rings(crew);
        note_all();
        let (report, reports) = channel();
        for queue in 0..rings.0.queues.len() {
            rings.0.start(queue, false, Some(report.clone()))?;
        }
        drop(report);
        for result in reports {
            result?;
        }
        // From here on the kernel sends no request through the device, even after a failure. The
        // second thread of a queue serves while the first one is occupied.
        for queue in (0..rings.0.queues.len()).filter(|&queue| is_there(queue)) {
            let _ = rings.0.start(queue, false, None);
        }
        let (mountpoint, queues) = (mountpoint.to_owned(), Arc::clone(&rings.0.queues));
        let run = move || wake(&mountpoint, &queues, &to_wake);
        // Not joined, because it may itself wait for the mount.
        let _ = Builder::new().name("ring-waker".into()).spawn(run);
        Ok(rings)
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        let crew = &self.0;
        crew.has_ended.store(true, Ordering::SeqCst);
        let _ = write(&crew.end, &1_u64.to_ne_bytes());
        crew.turn.give();
        loop {
            crew.shared.leave_all();
            let threads = std::mem::take(&mut *locked(&crew.threads));
            if threads.is_empty() {
                break;
            }
            let (ended, others): (Vec<_>, Vec<_>) =
                threads.into_iter().partition(JoinHandle::is_finished);
            for thread in ended {
                let _ = thread.join();
            }
            if !others.is_empty() {
                sleep(END_TICK);
            }
            locked(&crew.threads).extend(others);
        }
        crew.turn.take_back();
    }
}

/// Makes the kernel give queued requests to new threads. The kernel gives them new requests only,
/// and queued requests only with the next answer. So this sends one request for each new thread.
///
/// Another process sends the requests, because a process that waits for its own mount may not be
/// killable. This waits for no request: if others occupy the new threads, they wait for newer
/// threads.
fn wake(mountpoint: &Path, queues: &[Queue], grown: &Receiver<usize>) {
    let mut asking: Vec<Child> = Vec::new();
    loop {
        let found = if asking.is_empty() {
            grown.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            grown.recv_timeout(WAKE_TICK)
        };
        asking.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        match found {
            Ok(queue) => {
                let is_quiet = (0..WAKE_LOOKS).any(|_| {
                    sleep(WAKE_TICK);
                    queues[queue].is_quiet()
                });
                let mut new = vec![0; queues.len()];
                [queue].into_iter().chain(grown.try_iter()).for_each(|queue| new[queue] += 1);
                if is_quiet {
                    new[queue] = 0;
                }
                for (queue, &count) in new.iter().enumerate().filter(|&(_, &count)| count > 0) {
                    bind_to(queue);
                    asking.extend(ask(mountpoint, count));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for mut child in asking {
        let _ = child.wait();
    }
}

/// Starts a process that sends `count` requests, one after another.
fn ask(mountpoint: &Path, count: usize) -> io::Result<Child> {
    let mut asks = Command::new("stat");
    asks.arg("--file-system").arg("--").args(repeat_n(mountpoint, count));
    asks.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    asks.spawn()
}

impl Crew {
    /// Starts a thread of a queue, `is_more` if beyond the first ones. `report` gets the result.
    fn start(
        self: &Arc<Crew>,
        queue: usize,
        is_more: bool,
        report: Option<Sender<Answer<()>>>,
    ) -> Answer<()> {
        let crew = Arc::clone(self);
        let run = move || {
            let seat = Arc::new(Seat::default());
            let entry = crew.begin(queue, &seat, report);
            let end = entry.map(|entry| crew.run(queue, &seat, entry));
            if is_more {
                crew.more.fetch_sub(1, Ordering::Relaxed);
            }
            match end {
                None if is_more => *locked(&crew.failed) = Some(Instant::now()),
                None | Some(Ok(())) => {}
                Some(Err(Failure(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV))) => {}
                // Otherwise programs on this processor would wait forever.
                Some(Err(_)) => crew.grow(queue),
            }
        };
        let thread = Builder::new().name(format!("mount-ring-{queue}")).spawn(run)?;
        let mut threads = locked(&self.threads);
        // A thread that is not joined keeps its stack.
        let (ended, mut others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *threads).into_iter().partition(JoinHandle::is_finished);
        others.push(thread);
        *threads = others;
        drop(threads);
        for thread in ended {
            let _ = thread.join();
        }
        Ok(())
    }

    /// Starts more threads of a queue that has no free thread.
    fn grow(self: &Arc<Crew>, queue: usize) {
        if self.has_ended.load(Ordering::SeqCst) {
            return;
        }
        if locked(&self.failed).is_some_and(|failed| failed.elapsed() < FAILURE_WAIT) {
            return;
        }
        let threads = self.queues[queue].threads.load(Ordering::SeqCst);
        for _ in 0..threads.clamp(1, GROWTH_MAX) {
            let is_one_more = self.more.fetch_add(1, Ordering::Relaxed) < MORE_MAX;
            if !is_one_more || self.start(queue, true, None).is_err() {
                self.more.fetch_sub(1, Ordering::Relaxed);
                break;
            }
        }
    }

    /// Registers an entry with the kernel, if possible.
    fn begin(
        &self,
        queue: usize,
        seat: &Arc<Seat>,
        report: Option<Sender<Answer<()>>>,
    ) -> Option<Entry> {
        bind_to(queue);
        let begun = self.registered(queue, seat);
        if begun.is_ok() {
            self.queues[queue].threads.fetch_add(1, Ordering::SeqCst);
            self.queues[queue].free.fetch_add(1, Ordering::SeqCst);
        }
        // Without a waker, the receiver is closed.
        let _ = match report {
            Some(report) => report.send(begun.as_ref().map(drop).map_err(|failure| *failure)).ok(),
            None => self.grown.send(queue).ok(),
        };
        begun.ok()
    }

    fn registered(&self, queue: usize, seat: &Arc<Seat>) -> Answer<Entry> {
        let mut entry = Entry::new(Arc::clone(&self.shared.device), queue)?;
        // The kernel may write to this memory until the mount ends.
        std::mem::forget(Arc::clone(seat));
        entry.watch(&self.end)?;
        entry.register(&mut locked(&seat.desk).memory)?;
        Ok(entry)
    }

    /// Serves requests until the mount or the line ends.
    fn run(self: &Arc<Crew>, queue: usize, seat: &Arc<Seat>, mut entry: Entry) -> Answer<()> {
        let free = &self.queues[queue].free;
        let mut scratch = vec![0; SHORT_BYTES_MAX];
        while entry.wait()? == WaitOutcome::Request {
            if free.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.grow(queue);
            }
            if !self.serve(&mut entry, seat, &mut scratch)? {
                break;
            }
            free.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Serves the request in the entry's memory. Returns false if it will have no answer.
    fn serve(&self, entry: &mut Entry, seat: &Arc<Seat>, scratch: &mut [u8]) -> Answer<bool> {
        let mut desk = locked(&seat.desk);
        let Desk { memory, .. } = &mut *desk;
        let mut unique = 0;
        let mut told = None;
        let mut handed_over = None;
        let mut write = None;
        let taken = memory.serve(self.agreed, scratch, |request, body| {
            unique = request.header.unique;
            let opcode = request.header.opcode;
            self.shared.counts.add(opcode);
            write = Write::of(request);
            if let Some(answer) = self.look(request, body) {
                return ClaimedRequest::Answered(answer);
            }
            let held = self.turn.take();
            let since = self.shared.tree.inodes.forgotten.now();
            let take = || self.shared.take(request, self.agreed, false, body, || whole(request));
            // The waiting program must get an answer in any case.
            let taken = catch_unwind(AssertUnwindSafe(take))
                .unwrap_or(ClaimedRequest::Answered(Err(Failure(libc::EIO))));
            drop(held);
            if let ClaimedRequest::Answered(Ok(length)) = taken {
                told = told_attributes(request, &body[..length]).map(|node| (node, since));
            }
            if matches!(taken, ClaimedRequest::HandedOver) {
                handed_over = Some(whole(request));
            }
            taken
        })?;
        match taken {
            ClaimedRequest::Answered(answer) => {
                memory.answer(unique, &answer, scratch);
                drop(desk);
                self.commit(entry, seat, unique, write)?;
                if let Some((node, since)) = told {
                    entry.submit()?;
                    self.shared.forget_again(node, since);
                }
                return Ok(true);
            }
            ClaimedRequest::Silent => {
                memory.answer(unique, &Ok(0), scratch);
                entry.commit(unique)?;
                return Ok(true);
            }
            ClaimedRequest::Read(read) => {
                drop(desk);
                self.wait_for(unique, seat, || self.shared.reads.perform(read));
            }
            ClaimedRequest::Sync(sync) => {
                drop(desk);
                self.wait_for(unique, seat, || sync.perform());
            }
            ClaimedRequest::HandedOver => {
                drop(desk);
                while !self.shared.returns.wait_for_room(ROOM_WAIT) {
                    if self.has_ended.load(Ordering::SeqCst) {
                        return Ok(false);
                    }
                }
                self.shared.answers.seats.seat(unique, seat);
                self.shared.answers.seats.note_with_loop(unique);
                self.shared.returns.put_decided(handed_over.unwrap_or_default());
            }
        }
        if !seat.wait() {
            return Ok(false);
        }
        self.commit(entry, seat, unique, write)?;
        Ok(true)
    }

    /// Gives the kernel the answer with the next request, or at once if a `write` is refused.
    fn commit(
        &self,
        entry: &mut Entry,
        seat: &Seat,
        unique: u64,
        write: Option<Write>,
    ) -> Answer<()> {
        let refused = write.and_then(|write| write.refused(locked(&seat.desk).memory.answered()));
        entry.commit(unique)?;
        if let Some(refused) = refused {
            entry.submit()?;
            self.shared.refused_writes.note(refused);
        }
        Ok(())
    }

    /// Performs work that waits for the disk, and that answers a request of the entry.
    fn wait_for(&self, unique: u64, seat: &Arc<Seat>, perform: impl FnOnce()) {
        self.shared.answers.seats.seat(unique, seat);
        if catch_unwind(AssertUnwindSafe(perform)).is_err() {
            // If the request is already answered, this answer is dropped.
            let _ = self.shared.answers.refuse(unique, libc::EIO);
        }
    }

    /// Answers a request that only reads. Returns None for all others.
    fn look(&self, request: &Request, body: &mut [u8]) -> Option<Answer<usize>> {
        let began = Instant::now();
        let look = || self.shared.tree.answer_beside(request, body);
        let answer = match catch_unwind(AssertUnwindSafe(look)) {
            Ok(Ok(Outcome::HandedOver)) => return None,
            Ok(Ok(Outcome::Answered(length))) => Ok(length),
            Ok(Ok(Outcome::Silent)) => Ok(0),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure(libc::EIO)),
        };
        self.shared.note_busy(began);
        Some(answer)
    }
}

/// The inode whose attributes an answer gives the kernel to keep.
fn told_attributes(request: &Request, body: &[u8]) -> Option<u64> {
    match request.header.opcode {
        op::SETATTR => Some(request.header.node),
        opcode if op::route(opcode).tells_attributes => {
            EntryOut::read_from_prefix(body).ok().map(|(entry, _)| entry.node)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::mount::protocol::abi::InHeader;

    #[test]
    fn attributes_are_told_of_what_was_changed_or_made() {
        let entry = EntryOut { node: 9, ..EntryOut::default() };
        let told = |opcode| {
            let header = InHeader { opcode, node: 7, ..InHeader::new_zeroed() };
            told_attributes(&Request { header, fixed: &[], rest: &[] }, entry.as_bytes())
        };
        assert_eq!(told(op::SETATTR), Some(7));
        assert!([op::CREATE, op::MKDIR, op::LINK].iter().all(|&opcode| told(opcode) == Some(9)));
        assert!([op::WRITE, op::UNLINK, op::RENAME].iter().all(|&opcode| told(opcode).is_none()));
    }
}
