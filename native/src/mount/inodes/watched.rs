//! The inodes whose requests Python has to see: files that it has open, commits, and fillings.

use std::array::from_fn;

use crate::mount::counted::Counted;
use crate::threads::lock::locked;
use crate::threads::sync::Mutex;
use crate::threads::sync::atomic::{AtomicU64, Ordering, fence};

/// Inodes share places: of one that is not watched it may be said that it was.
const PLACES: usize = 1024;

/// Each as often as there is a reason for it.
pub struct Watched {
    reasons: Mutex<Counted<u64>>,
    /// How often an inode of a place has come to be watched.
    begun: Box<[AtomicU64; PLACES]>,
}

/// An instant at which an inode was not watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Unwatched(u64);

impl Default for Watched {
    fn default() -> Watched {
        let begun = Box::new(from_fn(|_| AtomicU64::new(0)));
        Watched { reasons: Mutex::default(), begun }
    }
}

impl Watched {
    /// What is done because an inode is watched is done after this.
    pub fn add(&self, inode: u64) {
        let mut reasons = locked(&self.reasons);
        reasons.add(inode);
        // Not before that: who takes the new count finds the inode watched.
        self.place(inode).fetch_add(1, Ordering::SeqCst);
        drop(reasons);
        // With the fence in `stays_unwatched`: a thread that reads any byte that is written after
        // this, by the file system below, sees the new count.
        fence(Ordering::SeqCst);
    }

    pub fn remove(&self, inode: u64) {
        locked(&self.reasons).remove(inode);
    }

    pub fn has(&self, inode: u64) -> bool {
        locked(&self.reasons).of(&inode) > 0
    }

    /// None where the inode is watched.
    pub fn unwatched(&self, inode: u64) -> Option<Unwatched> {
        let begun = self.place(inode).load(Ordering::SeqCst);
        (!self.has(inode)).then_some(Unwatched(begun))
    }

    /// Whether an inode has not come to be watched since: what was read of it before this call is not
    /// of a file that Python had begun to change.
    pub fn stays_unwatched(&self, inode: u64, since: Unwatched) -> bool {
        fence(Ordering::SeqCst);
        self.place(inode).load(Ordering::SeqCst) == since.0
    }

    fn place(&self, inode: u64) -> &AtomicU64 {
        &self.begun[inode as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_watched_until_the_last_reason_has_gone() {
        let watched = Watched::default();
        watched.add(7);
        watched.add(7);
        watched.remove(7);
        assert!(watched.has(7));
        watched.remove(7);
        watched.remove(7);
        assert!(!watched.has(7));
    }

    #[test]
    fn an_inode_that_was_watched_meanwhile_is_told_from_one_that_was_not() {
        let watched = Watched::default();
        let (one, other) = (watched.unwatched(7).unwrap(), watched.unwatched(8).unwrap());
        watched.add(7);
        assert!(watched.unwatched(7).is_none());
        watched.remove(7);
        assert!(!watched.stays_unwatched(7, one));
        assert!(watched.stays_unwatched(8, other));
        assert!(watched.stays_unwatched(7, watched.unwatched(7).unwrap()));
    }
}
