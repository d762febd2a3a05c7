//! The inodes that changed recently, for answers that were prepared during the change.
//!
//! A thread other than the event-loop thread reads the attributes of an inode at one instant, and
//! answers later. In between, the kernel may be notified of a change, but may not know the inode
//! yet. It would then keep the old attributes for an hour; the same applies to a directory whose
//! names change. So each change is noted before its answer. If an answer was started before, the
//! kernel keeps its attributes only for a moment.

use std::array::from_fn;

use crate::threads::sync::atomic::{AtomicU64, Ordering};

/// Inodes share places, so an unchanged inode may count as changed.
const PLACES: usize = 1024;

pub struct Changes {
    /// Number of changes.
    count: AtomicU64,
    /// Number of the last change, per place.
    last: Box<[AtomicU64; PLACES]>,
    /// Number of the last move: since then, a name leads to another inode than before.
    moved: AtomicU64,
}

impl Default for Changes {
    fn default() -> Changes {
        let last = Box::new(from_fn(|_| AtomicU64::new(0)));
        Changes { count: AtomicU64::new(0), last, moved: AtomicU64::new(0) }
    }
}

impl Changes {
    /// An instant, to ask for later changes.
    pub fn now(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Notes a change of an inode.
    pub fn note(&self, node: u64) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.place(node).fetch_max(count, Ordering::SeqCst);
    }

    /// Notes that an unknown inode was moved, which changes its time of change.
    pub fn note_move(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.moved.fetch_max(count, Ordering::SeqCst);
    }

    /// Returns whether an inode may have changed since an instant.
    pub fn has(&self, node: u64, since: u64) -> bool {
        self.place(node).load(Ordering::SeqCst) > since
    }

    /// Returns whether any inode was moved since an instant.
    pub fn has_moves(&self, since: u64) -> bool {
        self.moved.load(Ordering::SeqCst) > since
    }

    fn place(&self, node: u64) -> &AtomicU64 {
        &self.last[node as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_since_an_instant_is_told_from_the_rest() {
        let changes = Changes::default();
        changes.note(7);
        let since = changes.now();
        assert!(!changes.has(7, since));
        changes.note(8);
        assert!(changes.has(8, since));
        assert!(!changes.has(7, since));
        assert!(changes.has(8 + PLACES as u64, since), "it has the same place");
        assert!(!changes.has(8, changes.now()));
    }

    #[test]
    fn moves_are_told_apart_from_changes() {
        let changes = Changes::default();
        let since = changes.now();
        changes.note(7);
        assert!(!changes.has_moves(since));
        changes.note_move();
        assert!(changes.has_moves(since));
        assert!(!changes.has(9, since));
    }
}
