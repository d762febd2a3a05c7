//! Syncs of files: they wait for the disk, so each has a thread, which gives the kernel the answer.
//!
//! Their number is bounded, and that of each user; what is beyond it waits its turn with the caller.

use std::collections::VecDeque;
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
    pub answers: Arc<Answers>,
    pub file: Arc<DataFile>,
    pub data_only: bool,
    pub unique: u64,
    pub uid: u32,
}

impl FileSync {
    fn perform(self) {
        let synced = effects::sync(&*self.file, self.data_only);
        // Closed first: whoever has the answer may unmount what is below.
        drop(self.file);
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

/// The syncs of a mount.
#[derive(Default)]
pub struct Syncs(Arc<(Mutex<State>, Condvar)>);

impl Syncs {
    /// Begins a sync. False where the user, or all together, have too many under way.
    pub fn begin(&self, sync: FileSync) -> bool {
        let (state, ready) = &*self.0;
        let uid = sync.uid;
        let mut state = locked(state);
        if !state.begin(uid) {
            return false;
        }
        if state.idle > 0 {
            state.idle -= 1;
            state.waiting.push_back(sync);
            ready.notify_one();
            return true;
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("syncs".into());
        let started = thread.spawn(move || work(&shared, sync)).is_ok();
        if !started {
            state.end(uid);
        }
        started
    }
}

fn work((state, ready): &(Mutex<State>, Condvar), first: FileSync) {
    spread();
    let mut next = Some(first);
    while let Some(sync) = next.take() {
        let uid = sync.uid;
        sync.perform();
        let mut now = locked(state);
        now.end(uid);
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
