//! Overflow readers: threads that take requests while the event-loop thread is overloaded, or
//! blocked by Python or by the file system below.
//!
//! They answer what any thread may answer (`Tree::answer_beside`), and give the rest to the
//! event-loop thread (`returns.rs`). All read from one descriptor, because an answer must use the
//! descriptor of its request, and Python and libfuse answer from the event-loop thread.
//!
//! The thread `look-out` calls them (`pace.rs` has the rules). Until they are called, they wait for
//! no event of the kernel, and one thread with warm caches serves a single program. While they are
//! called, requests do not wake the event-loop thread, which takes them only when it is awake
//! anyway. An idle mount wakes no overflow reader.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::{Errno, write};
use zerocopy::IntoBytes;

use crate::mount::protocol::message::{
    ANSWER_BYTES_MAX, Answer, Failure, OUT_HEADER_BYTES, Outcome, Request, divided, out_header,
};
use crate::mount::session::device::{Received, give, receive};
use crate::mount::session::pace::{Judgement, LoadSample};
use crate::mount::session::shared::Shared;
use crate::threads::lock::locked;

/// Interval of the checks of `look-out` while requests arrive.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Consecutive checks without a request before `look-out` waits for the next request.
const QUIET_MAX: u32 = 50;
/// How long an overflow reader waits for a request before it checks whether it is still called.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// Configuration of the overflow readers.
#[derive(Clone, Copy, Debug)]
pub struct OverflowLimits {
    pub threads: usize,
    /// True if they take requests all the time.
    pub always: bool,
}

#[derive(Default)]
struct State {
    /// Number of calls.
    calls: u64,
    is_called: bool,
    has_ended: bool,
    /// Number of threads that take requests now.
    on_duty: usize,
}

struct Team {
    shared: Arc<Shared>,
    agreed: u64,
    /// True if they take requests all the time.
    always: bool,
    state: Mutex<State>,
    changed: Condvar,
    /// Readable when the threads have to end.
    end: OwnedFd,
}

/// The overflow readers of a mount. They end when this is dropped, or when the mount ends.
pub struct OverflowReaders {
    team: Arc<Team>,
    threads: Vec<JoinHandle<()>>,
}

impl OverflowReaders {
    /// Starts the threads when the first request is answered. `agreed`: the flags of the session.
    pub fn start(
        shared: &Arc<Shared>,
        agreed: u64,
        limits: OverflowLimits,
    ) -> Answer<OverflowReaders> {
        let team = Arc::new(Team {
            shared: Arc::clone(shared),
            agreed,
            always: limits.always,
            state: Mutex::default(),
            changed: Condvar::new(),
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let mut threads = OverflowReaders { team, threads: Vec::new() };
        for _ in 0..limits.threads {
            threads.spawn("overflow-reader", |team| team.read());
        }
        // None of them is necessary: the event-loop thread can serve all requests.
        if limits.always {
            threads.team.call(!threads.threads.is_empty());
        } else if !threads.threads.is_empty() {
            threads.spawn("look-out", |team| {
                let _ = team.look_out();
                team.call(false);
            });
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&Team) + Send + 'static) {
        let team = Arc::clone(&self.team);
        if let Ok(thread) = Builder::new().name(name.into()).spawn(move || run(&team)) {
            self.threads.push(thread);
        }
    }
}

impl Drop for OverflowReaders {
    fn drop(&mut self) {
        self.team.finish();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Team {
    fn call(&self, is_called: bool) {
        let mut state = locked(&self.state);
        if state.is_called == is_called {
            return;
        }
        state.is_called = is_called;
        state.calls += u64::from(is_called);
        self.shared.is_called.store(is_called, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn finish(&self) {
        locked(&self.state).has_ended = true;
        self.shared.is_called.store(false, Ordering::Relaxed);
        let _ = write(&self.end, &1_u64.to_ne_bytes());
        self.changed.notify_all();
    }

    /// Takes requests after each call, until the end.
    fn read(&self) {
        let mut input = self.shared.returns.buffer();
        let mut output = vec![0; OUT_HEADER_BYTES + ANSWER_BYTES_MAX];
        let mut served = 0;
        loop {
            let state = locked(&self.state);
            let is_idle =
                |state: &mut State| !state.has_ended && (!state.is_called || state.calls == served);
            let state = self.changed.wait_while(state, is_idle);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return;
            }
            served = state.calls;
            let _duty = Duty::begin(self, &mut state);
            drop(state);
            // This fails at the end of the mount, which the event-loop thread notices itself.
            let _ = self.serve(&mut input, &mut output);
        }
    }

    fn serve(&self, input: &mut Vec<u8>, output: &mut [u8]) -> Answer<()> {
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN;
        // One request wakes one thread.
        let alone = flags | epoll::EventFlags::EXCLUSIVE;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&waits, &self.shared.device, data, alone)?;
        epoll::add(&waits, &self.end, data, flags)?;
        let mut is_at_once = false;
        while self.shared.is_called.load(Ordering::Relaxed) {
            self.shared.returns.wait_for_room(ROOM_WAIT);
            match receive(&self.shared.device, input)? {
                Received::Message(length) => {
                    self.take(input, length, output, is_at_once);
                    is_at_once = true;
                }
                Received::Nothing => {
                    is_at_once = false;
                    self.wait(&waits, (!self.always).then_some(&WAIT))?;
                }
                Received::Ended => return Ok(()),
            }
        }
        Ok(())
    }

    fn wait(&self, waits: &OwnedFd, limit: Option<&Timespec>) -> Answer<()> {
        let mut events = Vec::with_capacity(2);
        match epoll::wait(waits, rustix::buffer::spare_capacity(&mut events), limit) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers the message at the start of `input`, or gives it to the event-loop thread.
    fn take(&self, input: &mut Vec<u8>, length: usize, output: &mut [u8], is_at_once: bool) {
        let shared = &*self.shared;
        let others = shared.in_hand.fetch_add(1, Ordering::Relaxed);
        shared.pace.take_beside(&input[..length], is_at_once || others > 0);
        let request = divided(&input[..length], self.agreed);
        let is_answered = request.is_ok_and(|request| self.answer(&request, output));
        if !is_answered {
            shared.returns.put_untaken(input, length);
        }
        shared.in_hand.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns false if the request is for the event-loop thread.
    fn answer(&self, request: &Request, output: &mut [u8]) -> bool {
        let began = Instant::now();
        let body = &mut output[OUT_HEADER_BYTES..];
        let answer = || self.shared.tree.answer_beside(request, body);
        // The waiting program must get an answer in any case.
        let answer = catch_unwind(AssertUnwindSafe(answer)).unwrap_or(Err(Failure(libc::EIO)));
        let answer = match answer {
            Ok(Outcome::HandedOver) => return false,
            Ok(Outcome::Silent) => None,
            Ok(Outcome::Answered(length)) => Some(Ok(length)),
            Err(failure) => Some(Err(failure)),
        };
        self.shared.counts.add(request.header.opcode);
        if let Some(answer) = answer {
            let header = out_header(request.header.unique, &answer);
            output[..OUT_HEADER_BYTES].copy_from_slice(header.as_bytes());
            // If the kernel does not take the answer, it has ended the request.
            let _ = give(&self.shared.device, &output[..header.length as usize]);
        }
        self.shared.note_busy(began);
        true
    }

    /// Calls the overflow readers when they are needed.
    fn look_out(&self) -> Answer<()> {
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&waits, &self.end, data, epoll::EventFlags::IN)?;
        epoll::add(&waits, &self.shared.device, data, once)?;
        loop {
            self.wait(&waits, None)?;
            let (mut judgement, mut quiet) = (Judgement::default(), 0);
            judgement.look(self.shared.seen());
            while quiet < QUIET_MAX {
                let mut waited = [PollFd::new(&self.end, PollFlags::IN)];
                if !matches!(poll(&mut waited, Some(&TICK)), Ok(0) | Err(Errno::INTR)) {
                    return Ok(());
                }
                let mut waited = [PollFd::new(&*self.shared.device, PollFlags::IN)];
                poll(&mut waited, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
                let found = waited[0].revents();
                if found.contains(PollFlags::ERR) {
                    return Ok(()); // the mount has ended
                }
                let is_waiting = found.contains(PollFlags::IN);
                let has_changed = judgement.look(LoadSample { is_waiting, ..self.shared.seen() });
                self.call(judgement.is_called());
                quiet = if has_changed || judgement.is_called() { 0 } else { quiet + 1 };
            }
            epoll::modify(&waits, &self.shared.device, data, once)?;
        }
    }
}

/// While this exists, requests wake an overflow reader instead of the event-loop thread.
struct Duty<'a>(&'a Team);

impl Duty<'_> {
    fn begin<'a>(team: &'a Team, state: &mut State) -> Duty<'a> {
        state.on_duty += 1;
        if state.on_duty == 1 {
            team.wake_loop(epoll::EventFlags::empty());
        }
        Duty(team)
    }
}

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.on_duty -= 1;
        if state.on_duty == 0 {
            self.0.wake_loop(epoll::EventFlags::IN);
        }
    }
}

impl Team {
    /// Sets which events of the device wake the event-loop thread, besides the end of the mount.
    fn wake_loop(&self, flags: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(0);
        // This cannot fail: both descriptors are open, and `wake` contains the device.
        let _ = epoll::modify(&self.shared.wake, &self.shared.device, data, flags);
    }
}
