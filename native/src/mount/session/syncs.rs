//! Syncs of files. A sync waits for the disk, so a thread performs it and gives the kernel the
//! answer. This is a separate thread, or the ring thread that took the request.
//!
//! The number of syncs is limited, in total and per user. Further syncs wait with the caller.

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
/// Limit per user. Most programs sync one file at a time.
const THREADS_EACH_MAX: usize = 4;
/// Idle threads that are kept for the next sync. Starting a thread takes as long as a fast disk.
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
    /// Performs the sync, which waits for the disk.
    pub fn perform(self) {
        let synced = effects::sync(&*self.file, self.data_only);
        // Closed first: a program with the answer may unmount the file system below.
        drop(self.file);
        drop(self.share);
        // No caller exists that could receive an error.
        let _ = match synced {
            Ok(()) => self.answers.give(self.unique, &[]),
            Err(Failure(number)) => self.answers.refuse(self.unique, number),
        };
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<FileSync>,
    /// Idle threads, minus the threads that have a sync pending.
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

/// One of the syncs that may be in progress, in total and for a user, until this is dropped.
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
    /// Returns None if the user, or all users together, have too many syncs in progress.
    pub fn share(&self, uid: u32) -> Option<Share> {
        let may = locked(&self.0.0).begin(uid);
        may.then(|| Share { all: Arc::clone(&self.0), uid })
    }

    /// Makes another thread perform a sync. Returns false if no thread can be started.
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
            // If the program already has an answer, the kernel drops this one.
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
