//! What is kept in memory up to a number of bytes.
//!
//! The order is that of a clock: what comes to its end goes, unless it was used since it was put
//! there, or since it was at the end before. So a look-up writes one field, and a file that is read
//! from end to end pushes out what is used once, and not what is used all the time.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

struct CacheEntry<V> {
    value: V,
    bytes: usize,
    is_used: bool,
}

pub struct Bounded<K, V> {
    kept: HashMap<K, CacheEntry<V>>,
    /// All keys; the next one to go first.
    order: VecDeque<K>,
    bytes: usize,
    bytes_max: usize,
}

impl<K: Copy + Eq + Hash, V: Clone> Bounded<K, V> {
    pub fn new(bytes_max: usize) -> Bounded<K, V> {
        Bounded { kept: HashMap::new(), order: VecDeque::new(), bytes: 0, bytes_max }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn get(&mut self, key: &K) -> Option<V> {
        let found = self.kept.get_mut(key)?;
        found.is_used = true;
        Some(found.value.clone())
    }

    /// As [`Bounded::get`], and it does not count as a use.
    pub fn has(&self, key: &K) -> bool {
        self.kept.contains_key(key)
    }

    /// Keeps one more, if it is not there. Returns those that had to go: dropped by the caller, who
    /// may have a lock to give back first. One that is longer than there is room for stays alone.
    pub fn keep(&mut self, key: K, value: V, bytes: usize) -> Vec<V> {
        let mut gone = Vec::new();
        if self.kept.contains_key(&key) {
            return gone;
        }
        while self.bytes + bytes > self.bytes_max {
            let Some(oldest) = self.order.pop_front() else { break };
            let Entry::Occupied(mut place) = self.kept.entry(oldest) else { continue };
            if std::mem::take(&mut place.get_mut().is_used) {
                self.order.push_back(oldest);
                continue;
            }
            let kept = place.remove();
            self.bytes -= kept.bytes;
            gone.push(kept.value);
        }
        self.kept.insert(key, CacheEntry { value, bytes, is_used: false });
        self.order.push_back(key);
        self.bytes += bytes;
        gone
    }

    /// Like [`Bounded::keep`], but replaces a value with this key.
    pub fn replace(&mut self, key: K, value: V, bytes: usize) -> Vec<V> {
        let Some(kept) = self.kept.get_mut(&key) else { return self.keep(key, value, bytes) };
        self.bytes = self.bytes - kept.bytes + bytes;
        kept.bytes = bytes;
        vec![std::mem::replace(&mut kept.value, value)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_replaced_with_its_bytes() {
        let mut kept = Bounded::new(10);
        assert!(kept.replace(1, 'a', 3).is_empty());
        assert_eq!(kept.replace(1, 'b', 7), ['a']);
        assert_eq!((kept.get(&1), kept.bytes()), (Some('b'), 7));
    }

    #[test]
    fn the_longest_unused_goes() {
        let mut kept = Bounded::new(30);
        for key in 0..3 {
            assert!(kept.keep(key, key, 10).is_empty());
        }
        assert_eq!(kept.get(&0), Some(0));
        assert_eq!(kept.keep(3, 3, 10), [1]);
        assert_eq!(kept.keep(4, 4, 10), [2]);
        assert_eq!(kept.bytes(), 30);
        assert_eq!([0, 1, 2, 3, 4].map(|key| kept.has(&key)), [true, false, false, true, true]);
    }

    #[test]
    fn what_is_longer_than_all_is_kept_alone() {
        let mut kept = Bounded::new(30);
        kept.keep(1, 1, 10);
        assert_eq!(kept.keep(2, 2, 100), [1]);
        assert_eq!(kept.get(&2), Some(2));
        assert_eq!(kept.keep(3, 3, 10), [2]);
        assert_eq!(kept.bytes(), 10);
    }

    #[test]
    fn one_that_is_there_counts_once() {
        let mut kept = Bounded::new(30);
        kept.keep(1, 1, 10);
        kept.keep(1, 2, 10);
        assert_eq!((kept.bytes(), kept.get(&1)), (10, Some(1)));
    }
}
