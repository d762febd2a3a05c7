//! Syncs of files: they wait for the disk, so each has a thread, which gives the kernel the answer: one
//! of its own, or that of the ring by which the request has come.
//!
//! Their number is bounded, and that of each user; what is beyond it waits its turn with the caller.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::mount::counted::Counted;
use crate::mount::inodes::data_file::DataFile;
use crate::mount::protocol::message::Failure;
use crate::mount::requests::effects;
use crate::mount::session::answers::Answers;
use crate::threads::lock::locked;
use crate::threads::processors::spread;

const THREADS_MAX: usize = 32;
/// Of one user. A program syncs one file after the other, mostly.
const THREADS_EACH_MAX: usize = 4;
/// Threads that wait for the next sync: starting one takes as long as a fast disk does.
const IDLE_MAX: usize = 4;
const IDLE: Duration = Duration::from_secs(5);

/// A request to sync a file.
pub struct FileSync {
    pub share: Share,
    pub answers: Arc<Answers>,
    pub file: Arc<DataFile>,
    pub data_only: bool,
    pub unique: u64,
}

impl FileSync {
    /// Waits for the disk.
    pub fn perform(self) {
        let synced = effects::sync(&*self.file, self.data_only);
        // Closed first: whoever has the answer may unmount what is below.
        drop(self.file);
        drop(self.share);
        // Nobody is there who could be told of an error.
        let _ = match synced {
            Ok(()) => self.answers.give(self.unique, &[]),
            Err(Failure(number)) => self.answers.refuse(self.unique, number),
        };
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<FileSync>,
    /// Threads that wait, less those that something waits for.
    idle: usize,
    under_way: usize,
    of_users: Counted<u32>,
}

impl State {
    fn begin(&mut self, uid: u32) -> bool {
        let may = self.under_way < THREADS_MAX && self.of_users.of(&uid) < THREADS_EACH_MAX;
        if may {
            self.under_way += 1;
            self.of_users.add(uid);
        }
        may
    }

    fn end(&mut self, uid: u32) {
        self.under_way -= 1;
        self.of_users.remove(uid);
    }
}

type Waiting = Arc<(Mutex<State>, Condvar)>;

/// One of the syncs that may be under way at a time, and of its user's; given back when this is dropped.
pub struct Share {
    all: Waiting,
    uid: u32,
}

impl Drop for Share {
    fn drop(&mut self) {
        locked(&self.all.0).end(self.uid);
    }
}

/// The syncs of a mount.
#[derive(Default)]
pub struct Syncs(Waiting);

impl Syncs {
    /// None where the user, or all together, have too many under way.
    pub fn share(&self, uid: u32) -> Option<Share> {
        let may = locked(&self.0.0).begin(uid);
        may.then(|| Share { all: Arc::clone(&self.0), uid })
    }

    /// Has another thread perform a sync. False where there is none to be had.
    pub fn begin(&self, sync: FileSync) -> bool {
        let (state, ready) = &*self.0;
        let mut state = locked(state);
        if state.idle > 0 {
            state.idle -= 1;
            state.waiting.push_back(sync);
            ready.notify_one();
            return true;
        }
        drop(state);
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("syncs".into());
        thread.spawn(move || work(&shared, sync)).is_ok()
    }
}

fn work((state, ready): &(Mutex<State>, Condvar), first: FileSync) {
    spread();
    let mut next = Some(first);
    while let Some(sync) = next.take() {
        let (unique, answers) = (sync.unique, Arc::downgrade(&sync.answers));
        if catch_unwind(AssertUnwindSafe(|| sync.perform())).is_err() {
            // If the program has its answer already, the kernel drops this one.
            let _ = answers.upgrade().map(|answers| answers.refuse(unique, libc::EIO));
        }
        let mut now = locked(state);
        if now.idle >= IDLE_MAX {
            return;
        }
        now.idle += 1;
        let waited = ready.wait_timeout_while(now, IDLE, |now| now.waiting.is_empty());
        let (mut now, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        next = now.waiting.pop_front();
        if next.is_none() {
            now.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_few_at_a_time_and_leaves_some_to_others() {
        let mut state = State::default();
        let mut begun = |uid| (0..100).filter(|_| state.begin(uid)).count();
        assert_eq!([begun(1), begun(2)], [THREADS_EACH_MAX; 2]);
        assert_eq!((3..40).map(begun).sum::<usize>(), THREADS_MAX - 2 * THREADS_EACH_MAX);
        state.end(1);
        assert!(!state.begin(2));
        assert!(state.begin(1));
    }
}
