//! Reads that have to decompress chunks or wait for the disk, and searches that would report a
//! hole. Threads perform them, and answer the kernel or return the request to the line. A ring
//! thread performs short reads itself.
//!
//! A user gets another thread while more are free than the user has. Waiting users take turns.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::mount::counted::Counted;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::pages::search::Search;
use crate::mount::protocol::abi::LseekOut;
use crate::mount::protocol::message::Failure;
use crate::mount::requests::reading::{PlainRead, StubRead};
use crate::mount::session::answers::Answers;
use crate::mount::session::returns::{ReturnedRequest, Returns};
use crate::store::stub_bytes::{AT_ONCE_BYTES, Part};
use crate::threads::lock::locked;
use crate::threads::processors::spread;

const THREADS_MAX: usize = 32;
/// Idle threads that are kept for the next read.
const IDLE_MAX: usize = 4;
const IDLE: Duration = Duration::from_secs(5);

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The work for a read.
pub enum Work {
    OfStore(StubRead),
    OfPlain(PlainRead),
    /// A search for data or a hole.
    OfHoles(Search),
    /// Loads a range of a file into the page cache.
    OnDisk(Arc<DataFile>, Range<u64>),
}

/// A read in progress.
pub struct FileRead {
    pub answers: Arc<Answers>,
    pub work: Work,
    pub unique: u64,
    pub uid: u32,
    /// The request, in case it is returned.
    pub message: Vec<u8>,
}

impl FileRead {
    /// Returns whether this thread finishes sooner than another would start, without the disk.
    fn is_short(&self) -> bool {
        match &self.work {
            Work::OnDisk(_, range) => range.end - range.start <= AT_ONCE_BYTES,
            Work::OfPlain(plain) => plain.length() <= AT_ONCE_BYTES,
            Work::OfHoles(_) => true,
            Work::OfStore(stub) => stub.length() <= AT_ONCE_BYTES && !stub.has_ahead(),
        }
    }

    fn perform(self, returns: &Returns) {
        match self.work {
            Work::OnDisk(file, range) => {
                load(&file, range);
                drop(file);
                returns.put(ReturnedRequest::Again(self.message));
            }
            Work::OfPlain(plain) => match plain.bytes() {
                None => returns.put(ReturnedRequest::Again(self.message)),
                Some(bytes) => give(&self.answers, self.unique, &[Part::Own(Arc::new(bytes))]),
            },
            Work::OfHoles(search) => {
                let answer = search.answer();
                drop(search);
                match answer {
                    None => returns.put(ReturnedRequest::HandedOver(self.message, Vec::new())),
                    Some(Ok(offset)) => {
                        let bytes = LseekOut { offset }.as_bytes().to_vec();
                        give(&self.answers, self.unique, &[Part::Own(Arc::new(bytes))]);
                    }
                    // No caller exists that could receive an error.
                    Some(Err(Failure(number))) => {
                        let _ = self.answers.refuse(self.unique, number);
                    }
                }
            }
            Work::OfStore(stub) => match stub.parts() {
                Err(reasons) => returns.put(ReturnedRequest::HandedOver(self.message, reasons)),
                Ok(parts) => {
                    give(&self.answers, self.unique, &parts);
                    // The connection to the kernel first: the mount ends when it is closed.
                    drop((parts, self.answers));
                    stub.load_ahead();
                }
            },
        }
    }
}

/// Loads a range of a file into the page cache. The repeated read reports errors.
fn load(file: &DataFile, range: Range<u64>) {
    let mut buffer = vec![0; 128 << 10];
    let mut at = range.start;
    while at < range.end {
        let room = buffer.len().min((range.end - at) as usize);
        match rustix::io::pread(file, &mut buffer[..room], at) {
            Ok(0) => return,
            Ok(length) => at += length as u64,
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Gives the kernel the answer to a request.
fn give(answers: &Answers, unique: u64, parts: &[Part]) {
    let mut slices: Vec<&[u8]> = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part::Own(bytes) => slices.push(bytes),
            Part::Chunk(chunk, range) => slices.push(&chunk[range.clone()]),
            Part::Zeros(length) => {
                let mut left = *length;
                while left > 0 {
                    let zeros = &ZEROS[..left.min(ZEROS.len())];
                    slices.push(zeros);
                    left -= zeros.len();
                }
            }
        }
    }
    // No caller exists that could receive an error.
    let _ = answers.give(unique, &slices);
}

#[derive(Default)]
struct State {
    /// Reads of users that have a share of the threads.
    ready: VecDeque<FileRead>,
    /// Reads of other users, by user.
    waiting: HashMap<u32, VecDeque<FileRead>>,
    /// The users whose reads wait, in order.
    turns: VecDeque<u32>,
    of_users: Counted<u32>,
    under_way: usize,
    threads: usize,
    /// Idle threads.
    idle: usize,
}

impl State {
    fn may_have(&self, uid: u32) -> bool {
        self.of_users.of(&uid) < THREADS_MAX - self.under_way
    }

    fn take(&mut self, uid: u32) {
        self.under_way += 1;
        self.of_users.add(uid);
    }

    fn give_back(&mut self, uid: u32) {
        self.under_way -= 1;
        self.of_users.remove(uid);
        self.let_in();
    }

    fn wait(&mut self, read: FileRead) {
        let uid = read.uid;
        let reads = self.waiting.entry(uid).or_default();
        if reads.is_empty() {
            self.turns.push_back(uid);
        }
        reads.push_back(read);
    }

    /// Makes waiting reads ready, as far as their users may have threads.
    fn let_in(&mut self) {
        while let Some(at) = self.turns.iter().position(|&uid| self.may_have(uid)) {
            let Some(uid) = self.turns.remove(at) else { return };
            let Some(reads) = self.waiting.get_mut(&uid) else { continue };
            let next = reads.pop_front();
            if reads.is_empty() {
                self.waiting.remove(&uid);
            } else {
                self.turns.push_back(uid);
            }
            if let Some(next) = next {
                self.take(uid);
                self.ready.push_back(next);
            }
        }
    }
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    returns: Arc<Returns>,
}

/// The reads of a mount.
pub struct FileReads(Arc<Shared>);

impl FileReads {
    pub fn new(returns: Arc<Returns>) -> FileReads {
        let (state, changed) = (Mutex::default(), Condvar::new());
        FileReads(Arc::new(Shared { state, changed, returns }))
    }

    /// Makes another thread perform a read when it is the user's turn.
    pub fn begin(&self, read: FileRead) {
        let mut state = locked(&self.0.state);
        let before = state.ready.len();
        state.wait(read);
        state.let_in();
        self.have_performed(&mut state, before);
    }

    /// Performs a short read in this thread if its user may have one more, or calls `begin`.
    pub fn perform(&self, read: FileRead) {
        let uid = read.uid;
        let share = read.is_short().then(|| self.share(uid)).flatten();
        match share {
            Some(_share) => read.perform(&self.0.returns),
            None => self.begin(read),
        }
    }

    fn share(&self, uid: u32) -> Option<Share<'_>> {
        let mut state = locked(&self.0.state);
        let may = state.may_have(uid);
        may.then(|| {
            state.take(uid);
            Share { reads: self, uid }
        })
    }

    /// Finds threads for the reads that became ready after the first `before` ones.
    fn have_performed(&self, state: &mut State, before: usize) {
        for ready in before..state.ready.len() {
            if ready < state.idle {
                self.0.changed.notify_one();
            } else {
                self.start_thread(state);
            }
        }
    }

    fn start_thread(&self, state: &mut State) {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("reads".into());
        if thread.spawn(move || run(&shared)).is_ok() {
            state.threads += 1;
        } else if state.threads == 0 {
            // If threads exist, one of them takes the read next.
            for read in std::mem::take(&mut state.ready) {
                state.give_back(read.uid);
                self.0.returns.put(ReturnedRequest::HandedOver(read.message, Vec::new()));
            }
        }
    }
}

/// One of the reads that may be in progress, in a thread that is not of [`FileReads`].
struct Share<'a> {
    reads: &'a FileReads,
    uid: u32,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.reads.0.state);
        let before = state.ready.len();
        state.give_back(self.uid);
        self.reads.have_performed(&mut state, before);
    }
}

fn run(shared: &Shared) {
    spread();
    let mut state = locked(&shared.state);
    loop {
        while let Some(next) = state.ready.pop_front() {
            drop(state);
            let (uid, unique, answers) = (next.uid, next.unique, Arc::downgrade(&next.answers));
            let perform = || next.perform(&shared.returns);
            if catch_unwind(AssertUnwindSafe(perform)).is_err() {
                // If the program already has an answer, the kernel drops this one.
                let _ = answers.upgrade().map(|answers| answers.refuse(unique, libc::EIO));
            }
            state = locked(&shared.state);
            state.give_back(uid);
        }
        if state.idle >= IDLE_MAX {
            break;
        }
        state.idle += 1;
        let is_idle = |state: &mut State| state.ready.is_empty();
        let waited = shared.changed.wait_timeout_while(state, IDLE, is_idle);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        if state.ready.is_empty() {
            break;
        }
    }
    state.threads -= 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(unique: u64, uid: u32) -> FileRead {
        let device = std::fs::File::open("/dev/null").unwrap().into();
        let answers = Arc::new(Answers::new(Arc::new(device)));
        let file =
            DataFile { fd: std::fs::File::open("/dev/null").unwrap().into(), is_writable: false };
        let work = Work::OnDisk(Arc::new(file), 0..1);
        FileRead { answers, work, unique, uid, message: Vec::new() }
    }

    fn ready(state: &mut State) -> Vec<(u64, u32)> {
        state.ready.drain(..).map(|read| (read.unique, read.uid)).collect()
    }

    #[test]
    fn a_user_leaves_as_many_threads_as_the_user_has_and_others_take_turns() {
        let mut state = State::default();
        for unique in 0..100 {
            state.wait(read(unique, 1));
        }
        state.let_in();
        assert_eq!(ready(&mut state).len(), THREADS_MAX / 2);
        for unique in 100..103 {
            state.wait(read(unique, 2));
        }
        state.let_in();
        assert_eq!(ready(&mut state), [(100, 2), (101, 2), (102, 2)]);
        state.give_back(2);
        assert_eq!(ready(&mut state), []);
        state.give_back(1);
        assert_eq!(ready(&mut state), []);
        state.give_back(1);
        assert_eq!(ready(&mut state), [(16, 1)]);
    }

    #[test]
    fn each_request_is_performed_once() {
        let returns = Arc::new(Returns::new().unwrap());
        let reads = FileReads::new(Arc::clone(&returns));
        for unique in 0..200_u64 {
            let message = unique.to_ne_bytes().to_vec();
            reads.begin(FileRead { message, ..read(unique, unique as u32 % 3) });
        }
        let mut seen = Vec::new();
        while seen.len() < 200 {
            match returns.take() {
                Some(ReturnedRequest::Again(message)) => seen.push(message),
                Some(_) => panic!("it was not performed"),
                None => std::thread::yield_now(),
            }
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 200);
    }
}
