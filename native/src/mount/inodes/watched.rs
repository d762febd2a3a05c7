//! The inodes whose requests Python has to see: files that it has open, commits, and fillings.

use std::sync::Mutex;

use crate::mount::counted::Counted;
use crate::threads::lock::locked;

/// Each as often as there is a reason for it.
#[derive(Default)]
pub struct Watched(Mutex<Counted<u64>>);

impl Watched {
    pub fn add(&self, inode: u64) {
        locked(&self.0).add(inode);
    }

    pub fn remove(&self, inode: u64) {
        locked(&self.0).remove(inode);
    }

    pub fn has(&self, inode: u64) -> bool {
        locked(&self.0).of(&inode) > 0
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
}
