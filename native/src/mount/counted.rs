//! Counts per key. A key with the count 0 takes no memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

pub struct Counted<K>(HashMap<K, usize>);

impl<K> Default for Counted<K> {
    fn default() -> Counted<K> {
        Counted(HashMap::new())
    }
}

impl<K: Eq + Hash> Counted<K> {
    pub fn of(&self, key: &K) -> usize {
        self.0.get(key).copied().unwrap_or(0)
    }

    pub fn add(&mut self, key: K) {
        *self.0.entry(key).or_insert(0) += 1;
    }

    /// Decrements the count of a key, which must exist.
    pub fn remove(&mut self, key: K) {
        if let Entry::Occupied(mut count) = self.0.entry(key) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
