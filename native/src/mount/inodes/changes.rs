//! Which inodes have changed of late: for answers that were made meanwhile.
//!
//! A thread that answers beside the loop's takes the status of an inode at one instant, and gives the
//! answer at a later one. The kernel would keep the attributes of before a change for an hour where it
//! knew nothing of the inode when it was told of the change, or asks about a directory whose names
//! change. So each change is noted once it is made, before it is answered; of an answer that was begun
//! before that the kernel takes the attributes for the moment only.

use std::array::from_fn;

use crate::threads::sync::atomic::{AtomicU64, Ordering};

/// Inodes share places: one that has not changed may count as changed.
const PLACES: usize = 1024;

pub struct Changes {
    /// How many there were.
    count: AtomicU64,
    /// The last one in each place, counted.
    last: Box<[AtomicU64; PLACES]>,
    /// The last one of a name that leads to another inode than before.
    moved: AtomicU64,
}

impl Default for Changes {
    fn default() -> Changes {
        let last = Box::new(from_fn(|_| AtomicU64::new(0)));
        Changes { count: AtomicU64::new(0), last, moved: AtomicU64::new(0) }
    }
}

impl Changes {
    /// An instant, to ask about what came after.
    pub fn now(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// An inode was changed.
    pub fn note(&self, node: u64) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.place(node).fetch_max(count, Ordering::SeqCst);
    }

    /// An inode was moved, and its time of change with it; which one is not known.
    pub fn note_move(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.moved.fetch_max(count, Ordering::SeqCst);
    }

    /// Whether an inode may have changed since an instant.
    pub fn has(&self, node: u64, since: u64) -> bool {
        self.place(node).load(Ordering::SeqCst) > since
    }

    /// Whether any inode was moved since an instant.
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
