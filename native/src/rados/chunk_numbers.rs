//! Numbers of chunks in this process, which are their names in the caches of a mount.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use crate::format::ids::Fingerprint;
use crate::threads::lock::locked;

struct NumberedChunk {
    fingerprint: Fingerprint,
    users: u32,
    /// The turn in which it lost its last user.
    idle_since: u64,
}

#[derive(Default)]
struct State {
    /// The last number that was assigned. 0 is the hole.
    last: u64,
    numbers: HashMap<Fingerprint, u64>,
    known: HashMap<u64, NumberedChunk>,
    /// Chunks that lost their last user, with the turn: the longest idle first. Some are used
    /// again.
    idle: VecDeque<(u64, u64)>,
    idle_count: usize,
    turn: u64,
}

/// Maps fingerprints to numbers and back, for the chunks of open recipes, and of some that were
/// open recently. A number never gets another chunk, because caches outlive the recipes.
pub struct ChunkNumbers {
    state: Mutex<State>,
    idle_max: usize,
}

impl ChunkNumbers {
    pub fn new(idle_max: usize) -> ChunkNumbers {
        ChunkNumbers { state: Mutex::default(), idle_max }
    }

    /// Returns a number for each, the same for equal ones, until `give_back` was called as often.
    pub fn take<'a>(&self, fingerprints: impl Iterator<Item = &'a Fingerprint>) -> Vec<u64> {
        let mut state = locked(&self.state);
        fingerprints.map(|fingerprint| state.take(fingerprint)).collect()
    }

    pub fn give_back(&self, numbers: impl Iterator<Item = u64>) {
        let mut state = locked(&self.state);
        for number in numbers {
            state.give_back(number);
        }
        state.forget(self.idle_max);
    }

    /// The chunk with a number. None if no open recipe has it.
    pub fn fingerprint(&self, number: u64) -> Option<Fingerprint> {
        locked(&self.state).known.get(&number).map(|known| known.fingerprint)
    }

    pub fn count(&self) -> usize {
        locked(&self.state).known.len()
    }
}

impl State {
    fn take(&mut self, fingerprint: &Fingerprint) -> u64 {
        if let Some(&number) = self.numbers.get(fingerprint) {
            if let Some(known) = self.known.get_mut(&number) {
                self.idle_count -= usize::from(known.users == 0);
                known.users += 1;
            }
            return number;
        }
        self.last += 1;
        self.numbers.insert(*fingerprint, self.last);
        let known = NumberedChunk { fingerprint: *fingerprint, users: 1, idle_since: 0 };
        self.known.insert(self.last, known);
        self.last
    }

    fn give_back(&mut self, number: u64) {
        let Some(known) = self.known.get_mut(&number).filter(|known| known.users > 0) else {
            return;
        };
        known.users -= 1;
        if known.users == 0 {
            self.turn += 1;
            known.idle_since = self.turn;
            self.idle.push_back((number, self.turn));
            self.idle_count += 1;
        }
    }

    fn forget(&mut self, idle_max: usize) {
        while self.idle_count > idle_max {
            let Some(oldest) = self.idle.pop_front() else { return };
            if self.is_idle(oldest) {
                self.idle_count -= 1;
                if let Some(known) = self.known.remove(&oldest.0) {
                    self.numbers.remove(&known.fingerprint);
                }
            }
        }
        if self.idle.len() > 2 * idle_max + 64 {
            let mut idle = std::mem::take(&mut self.idle);
            idle.retain(|&one| self.is_idle(one));
            self.idle = idle;
        }
    }

    fn is_idle(&self, (number, turn): (u64, u64)) -> bool {
        self.known.get(&number).is_some_and(|known| known.users == 0 && known.idle_since == turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(numbers: &ChunkNumbers, names: &[u8]) -> Vec<u64> {
        let names: Vec<Fingerprint> = names.iter().map(|&name| [name; 32]).collect();
        numbers.take(names.iter())
    }

    #[test]
    fn a_number_is_never_another_chunk_s() {
        let numbers = ChunkNumbers::new(2);
        assert_eq!(take(&numbers, &[1, 2, 1, 3]), [1, 2, 1, 3]);
        numbers.give_back([1].into_iter());
        assert_eq!(numbers.fingerprint(1), Some([1; 32]));
        numbers.give_back([2, 1, 3].into_iter());
        assert_eq!(numbers.fingerprint(2), None);
        assert_eq!(take(&numbers, &[1, 2, 3]), [1, 4, 3]);
        assert_eq!(numbers.count(), 3);
    }

    #[test]
    fn what_is_taken_and_given_back_all_the_time_leaves_nothing() {
        let numbers = ChunkNumbers::new(1);
        for _ in 0..10_000 {
            let taken = take(&numbers, &[1]);
            numbers.give_back(taken.into_iter());
        }
        assert!(locked(&numbers.state).idle.len() < 100);
        assert_eq!(numbers.fingerprint(1), Some([1; 32]));
    }
}
