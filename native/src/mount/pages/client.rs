//! The mount's side: it asks the worker, and starts it if necessary.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::mount::pages::message::{NONE, Question, ask, connection};
use crate::mount::protocol::message::{Answer, Failure};
use crate::threads::lock::locked;

/// Maximum of questions in progress; further ones wait. A question takes about 30 µs unless pages
/// have to be written back.
const LINES_MAX: usize = 16;
/// Time limit for an answer, because the file system below may be frozen.
const WAIT: Duration = Duration::from_secs(10);
/// Time from a failure to the next start of a worker.
const FAILURE_WAIT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    worker: Option<Worker>,
    /// Connections to the worker that no question uses.
    idle: Vec<OwnedFd>,
    under_way: usize,
    failed: Option<Instant>,
}

struct Worker {
    child: Child,
    /// The worker ends when this is closed.
    control: OwnedFd,
}

/// Finds newer pages for a mount.
pub struct Pages {
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    state: Mutex<State>,
    ended: Condvar,
}

impl Pages {
    /// `command` starts the worker, whose standard input is its end of the control connection.
    pub fn new(command: Vec<OsString>, environment: Vec<(OsString, OsString)>) -> Pages {
        Pages { command, environment, state: Mutex::default(), ended: Condvar::new() }
    }

    /// The first offset in the range that may lie in a newer page, or None if the file system below
    /// has the newest bytes. Waits for the worker, which waits for the mount. So the caller must
    /// not hold a lock that a write needs.
    pub fn first_newer(&self, question: &Question, path: &[u8]) -> Option<u64> {
        let end = Instant::now() + WAIT;
        let answer = self.line(end).and_then(|line| {
            let left = end.saturating_duration_since(Instant::now());
            let reply = ask(&line, question, path, left.max(Duration::from_millis(1)));
            self.give_back(line, reply.is_ok());
            reply
        });
        match answer {
            Ok(reply) if reply.first == NONE => None,
            Ok(reply) => Some(reply.first.clamp(question.start, question.end)),
            Err(_) => Some(question.start),
        }
    }

    /// A connection for one question.
    fn line(&self, end: Instant) -> Answer<OwnedFd> {
        let left = end.saturating_duration_since(Instant::now());
        let state = locked(&self.state);
        let is_full = |state: &mut State| state.under_way >= LINES_MAX;
        let waited = self.ended.wait_timeout_while(state, left, is_full);
        let (mut state, result) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        if result.timed_out() {
            return Err(Failure(libc::ETIMEDOUT));
        }
        let line = match state.idle.pop() {
            Some(line) => line,
            None => self.new_line(&mut state)?,
        };
        state.under_way += 1;
        Ok(line)
    }

    fn new_line(&self, state: &mut State) -> Answer<OwnedFd> {
        if state.worker.is_none() {
            if state.failed.is_some_and(|failed| failed.elapsed() < FAILURE_WAIT) {
                return Err(Failure(libc::EAGAIN));
            }
            match self.start() {
                Ok(worker) => state.worker = Some(worker),
                Err(failure) => {
                    state.failed = Some(Instant::now());
                    return Err(failure);
                }
            }
        }
        let Some(worker) = &state.worker else { return Err(Failure(libc::EAGAIN)) };
        let made = connection().and_then(|(ours, theirs)| {
            give(&worker.control, &theirs)?;
            Ok(ours)
        });
        if made.is_err() {
            end_worker(state);
        }
        made
    }

    fn start(&self) -> Answer<Worker> {
        let (control, theirs) = connection()?;
        let (program, arguments) = self.command.split_first().ok_or(Failure(libc::ENOENT))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir("/").env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Worker { child: command.spawn()?, control })
    }

    /// `is_good`: the question was answered. Otherwise the worker has ended, or is blocked.
    fn give_back(&self, line: OwnedFd, is_good: bool) {
        let mut state = locked(&self.state);
        state.under_way -= 1;
        if is_good && state.worker.is_some() {
            state.idle.push(line);
        } else {
            drop(line);
            end_worker(&mut state);
        }
        drop(state);
        self.ended.notify_one();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        end_worker(&mut locked(&self.state));
    }
}

/// Ends the worker, so that the next question starts another.
fn end_worker(state: &mut State) {
    state.idle.clear();
    state.failed = Some(Instant::now());
    if let Some(Worker { mut child, control }) = state.worker.take() {
        drop(control);
        // It ends itself after the requests that it waits for.
        let _ = std::thread::Builder::new().name("worker-end".into()).spawn(move || child.wait());
    }
}

/// Gives the worker its end of a connection.
fn give(control: &OwnedFd, line: &OwnedFd) -> Answer<()> {
    use std::os::fd::AsFd;
    let descriptors = [line.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let bytes = [std::io::IoSlice::new(b"+")];
    sendmsg(control, &bytes, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
