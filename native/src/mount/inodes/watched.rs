//! The inodes whose requests Python has to see: files that it has open, commits, and fillings.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use crate::threads::lock::locked;

/// Each as often as there is a reason for it.
#[derive(Default)]
pub struct Watched(Mutex<HashMap<u64, usize>>);

impl Watched {
    pub fn add(&self, inode: u64) {
        *locked(&self.0).entry(inode).or_insert(0) += 1;
    }

    pub fn remove(&self, inode: u64) {
        if let Entry::Occupied(mut reasons) = locked(&self.0).entry(inode) {
            *reasons.get_mut() -= 1;
            if *reasons.get() == 0 {
                reasons.remove();
            }
        }
    }

    pub fn has(&self, inode: u64) -> bool {
        locked(&self.0).contains_key(&inode)
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
