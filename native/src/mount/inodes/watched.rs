//! The inodes whose requests Python has to see: open files, commits and expansions.

use std::array::from_fn;

use crate::mount::counted::Counted;
use crate::threads::lock::locked;
use crate::threads::sync::Mutex;
use crate::threads::sync::atomic::{AtomicU64, Ordering, fence};

/// Inodes share places, so an unwatched inode may count as watched.
const PLACES: usize = 1024;

/// Counts the reasons to watch each inode.
pub struct Watched {
    reasons: Mutex<Counted<u64>>,
    /// Number of times that an inode of a place became watched.
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
    /// Call this before any work that requires a watched inode.
    pub fn add(&self, inode: u64) {
        let mut reasons = locked(&self.reasons);
        reasons.add(inode);
        // Increment last: a reader of the new count must find the inode watched.
        self.place(inode).fetch_add(1, Ordering::SeqCst);
        drop(reasons);
        // Together with the fence in `stays_unwatched`: a thread that reads, through the file
        // system below, any byte that is written after this point, sees the new count.
        fence(Ordering::SeqCst);
    }

    pub fn remove(&self, inode: u64) {
        locked(&self.reasons).remove(inode);
    }

    pub fn has(&self, inode: u64) -> bool {
        locked(&self.reasons).of(&inode) > 0
    }

    /// Returns None if the inode is watched.
    pub fn unwatched(&self, inode: u64) -> Option<Unwatched> {
        let begun = self.place(inode).load(Ordering::SeqCst);
        (!self.has(inode)).then_some(Unwatched(begun))
    }

    /// Returns whether an inode did not become watched. If so, data that was read before this call
    /// is from a file that Python had not started to change.
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
