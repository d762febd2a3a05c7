//! The threads that take the requests of a volume's mount by io_uring (`entry.rs`).
//!
//! What only looks they answer as stand-ins do (`Tree::answer_beside`). For the rest they take the
//! turn (`turn.rs`), and do what the loop's thread does with requests that it takes itself
//! (`Shared::take`). What is Python's goes to the loop's thread, and what has much to decode to a thread
//! of its own; the entry's thread waits for the answer (`seat.rs`) and holds up no other. Short reads and
//! syncs it performs itself: another thread would have to be woken, and to wake it again.
//!
//! Each queue begins with two threads. One that takes a request while no other of its queue is free
//! starts as many more as there are, so that requests that wait do not keep others from being taken.

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
use crate::mount::session::rings::entry::{Entry, Found, SHORT_BYTES_MAX, queues};
use crate::mount::session::rings::seat::{Desk, Seat};
use crate::mount::session::shared::{Shared, Taken};
use crate::mount::session::turn::Turn;
use crate::threads::lock::locked;
use crate::threads::processors::{bind_to, is_there, note_all};

/// Threads beyond two for each processor: so many requests may wait for Python, for the disk or for
/// the turn at a time, and more stay with the kernel. Python has 192 tasks, and reads and syncs
/// have 64 threads. One that has nothing to do takes some 50 KB.
const MORE_MAX: usize = 256;

/// How many of them are started at a time.
const GROWTH_MAX: usize = 16;

/// Where a thread beyond these cannot be had, how long until the next one is tried.
const FAILURE_WAIT: Duration = Duration::from_millis(100);

const ROOM_WAIT: Duration = Duration::from_millis(1);
/// How often, and how many times, the waker looks whether all requests of a queue are answered.
const WAKE_TICK: Duration = Duration::from_millis(2);
const WAKE_LOOKS: u32 = 5;
/// How often the end asks whether threads still wait for somebody.
const END_TICK: Duration = Duration::from_millis(2);

/// The threads of a queue: all of them, and those that wait for a request.
#[derive(Default)]
struct Queue {
    threads: AtomicUsize,
    free: AtomicUsize,
}

impl Queue {
    /// Whether no request is under way. Then none waits with the kernel either: the next one of those
    /// that had to was given out with each answer.
    fn is_quiet(&self) -> bool {
        self.free.load(Ordering::SeqCst) >= self.threads.load(Ordering::SeqCst)
    }
}

struct Crew {
    shared: Arc<Shared>,
    turn: Arc<Turn>,
    agreed: u64,
    queues: Arc<[Queue]>,
    /// Threads beyond the first ones.
    more: AtomicUsize,
    /// When such a thread could not be had.
    failed: Mutex<Option<Instant>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The queues with a thread that is new.
    grown: Sender<usize>,
    /// Readable once the threads are to end.
    end: OwnedFd,
    has_ended: AtomicBool,
}

/// The threads of a mount's rings. They end when this is dropped, or the mount ends.
pub struct Rings(Arc<Crew>);

impl Rings {
    /// Starts them once the first request is answered, by the loop's thread. `agreed`: the flags of
    /// the session. `mountpoint`: where it shows. Fails where the kernel goes on without them.
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
        // From here on the kernel sends no request by the device, whatever fails. One beside each,
        // for when that has taken a request.
        for queue in (0..rings.0.queues.len()).filter(|&queue| is_there(queue)) {
            let _ = rings.0.start(queue, false, None);
        }
        let (mountpoint, queues) = (mountpoint.to_owned(), Arc::clone(&rings.0.queues));
        let run = move || wake(&mountpoint, &queues, &to_wake);
        // Not waited for: it may itself wait for the mount.
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

/// Has the kernel look again at what waits in a queue that has new threads: it gives them requests
/// that come, but not those that wait already. They are given out with the next answer, so there is one
/// request for each new thread.
///
/// The requests are another process's: one that waits for its own mount may not be killed. None is
/// waited for: where requests of others take the new threads, they themselves wait for newer ones.
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

/// A process that sends so many requests, one after another.
fn ask(mountpoint: &Path, count: usize) -> io::Result<Child> {
    let mut asks = Command::new("stat");
    asks.arg("--file-system").arg("--").args(repeat_n(mountpoint, count));
    asks.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    asks.spawn()
}

impl Crew {
    /// Starts a thread of a queue; `is_more`: beyond the first ones; `report`: tells whether it has
    /// begun.
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
                // Programs of its processor would wait for ever.
                Some(Err(_)) => crew.grow(queue),
            }
        };
        let thread = Builder::new().name(format!("mount-ring-{queue}")).spawn(run)?;
        let mut threads = locked(&self.threads);
        // Of one that nobody has waited for the stack stays.
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

    /// Starts more threads of a queue, none of which is free.
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

    /// Has the kernel use an entry, if it can.
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
        // Nobody listens where there is no waker.
        let _ = match report {
            Some(report) => report.send(begun.as_ref().map(drop).map_err(|failure| *failure)).ok(),
            None => self.grown.send(queue).ok(),
        };
        begun.ok()
    }

    fn registered(&self, queue: usize, seat: &Arc<Seat>) -> Answer<Entry> {
        let mut entry = Entry::new(Arc::clone(&self.shared.device), queue)?;
        // The kernel may write there until the mount has gone.
        std::mem::forget(Arc::clone(seat));
        entry.watch(&self.end)?;
        entry.register(&mut locked(&seat.desk).memory)?;
        Ok(entry)
    }

    /// Serves requests until the mount ends, or the line.
    fn run(self: &Arc<Crew>, queue: usize, seat: &Arc<Seat>, mut entry: Entry) -> Answer<()> {
        let free = &self.queues[queue].free;
        let mut scratch = vec![0; SHORT_BYTES_MAX];
        while entry.wait()? == Found::Request {
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

    /// Serves the request that is in the entry's memory. False where it will have no answer.
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
                return Taken::Answered(answer);
            }
            let held = self.turn.take();
            let since = self.shared.tree.inodes.forgotten.now();
            let take = || self.shared.take(request, self.agreed, false, body, || whole(request));
            // The program that waits gets an answer in any case.
            let taken = catch_unwind(AssertUnwindSafe(take))
                .unwrap_or(Taken::Answered(Err(Failure(libc::EIO))));
            drop(held);
            if let Taken::Answered(Ok(length)) = taken {
                told = told_attributes(request, &body[..length]).map(|node| (node, since));
            }
            if matches!(taken, Taken::HandedOver) {
                handed_over = Some(whole(request));
            }
            taken
        })?;
        match taken {
            Taken::Answered(answer) => {
                memory.answer(unique, &answer, scratch);
                drop(desk);
                self.commit(entry, seat, unique, write)?;
                if let Some((node, since)) = told {
                    entry.submit()?;
                    self.shared.forget_again(node, since);
                }
                return Ok(true);
            }
            Taken::Silent => {
                memory.answer(unique, &Ok(0), scratch);
                entry.commit(unique)?;
                return Ok(true);
            }
            Taken::Read(read) => {
                drop(desk);
                self.wait_for(unique, seat, || self.shared.reads.perform(read));
            }
            Taken::Sync(sync) => {
                drop(desk);
                self.wait_for(unique, seat, || sync.perform());
            }
            Taken::HandedOver => {
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

    /// Gives the kernel the answer with the next request, or at once if that refuses a `write`.
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

    /// Performs what waits for the disk, and answers a request of the entry.
    fn wait_for(&self, unique: u64, seat: &Arc<Seat>, perform: impl FnOnce()) {
        self.shared.answers.seats.seat(unique, seat);
        if catch_unwind(AssertUnwindSafe(perform)).is_err() {
            // Where it has an answer already, nobody waits for this one.
            let _ = self.shared.answers.refuse(unique, libc::EIO);
        }
    }

    /// Answers a request that only looks; None of all others.
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

/// The inode whose attributes an answer carries, for the kernel to keep.
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
