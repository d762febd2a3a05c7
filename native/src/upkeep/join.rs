//! The hash join of reconciliation (seed 003, 4.5): which chunks of two sets have one fingerprint.
//!
//! One set is added, the other one streams by. An entry keeps 8 bytes of hash of a fingerprint and
//! 4 bytes for its number, at up to seven eighths of the slots: 14 bytes a chunk. The caller
//! compares the whole fingerprints of a pair before it acts on it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::ids::RecordId;
use crate::format::table_entry::{ENTRY_BYTES, State, TableEntry, entries};

/// Chunks to be merged, each with the one that stays.
pub type Pairs = Vec<(RecordId, RecordId)>;

/// A slot without an entry.
const EMPTY: u32 = u32::MAX;
/// Set in the number of an entry that is part of a pair already.
const TAKEN: u32 = 1 << 31;

/// Keys whose memory is asked for before the first of them is looked at.
const AHEAD: usize = 32;

/// Entries of one container that lie next to each other: the number and the id of the first.
struct Run {
    number: u32,
    id: RecordId,
}

pub struct Join {
    keys: Vec<u64>,
    numbers: Vec<u32>,
    runs: Vec<Run>,
    next_number: u32,
    len: usize,
    capacity: usize,
    /// A key counts where these bits are zero: all of them, or a sample.
    sample: u64,
    /// Of the hash that makes keys of fingerprints.
    key_seed: u64,
}

impl Join {
    /// For up to `capacity` chunks; of all keys one in 2^`sample_bits` counts. As long as
    /// `key_seed` is secret, chunks with equal keys cannot be constructed.
    pub fn new(capacity: usize, sample_bits: u32, key_seed: u64) -> Join {
        let slots = (capacity + capacity / 7 + 8).next_multiple_of(8);
        Join {
            keys: vec![0; slots],
            numbers: vec![EMPTY; slots],
            runs: Vec::new(),
            next_number: 0,
            len: 0,
            capacity,
            sample: (1 << sample_bits.min(32)) - 1,
            key_seed,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.keys.len() * 12 + self.runs.len() * size_of::<Run>()
    }

    /// Add the live entries of a part of a table. `id` is the id of its first entry, `domain` a number
    /// of its own for each domain. False, and nothing added, where there may not be room for them.
    pub fn add(&mut self, table: &[u8], seed: u64, id: RecordId, domain: u64) -> bool {
        let keys = self.keys(table, seed, id, domain);
        let Some(end) = self.next_number.checked_add((table.len() / ENTRY_BYTES) as u32) else {
            return false;
        };
        if self.len + keys.len() > self.capacity || end >= TAKEN {
            return false;
        }
        let first = self.next_number;
        self.runs.push(Run { number: first, id });
        self.next_number = end;
        for batch in keys.chunks(AHEAD) {
            batch.iter().for_each(|&(key, _)| self.prefetch(key));
            for &(key, own) in batch {
                let mut slot = self.slot(key);
                while self.numbers[slot] != EMPTY {
                    slot = self.after(slot);
                }
                self.keys[slot] = key;
                self.numbers[slot] = first + (own.0 - id.0) as u32;
            }
        }
        self.len += keys.len();
        true
    }

    /// Pairs of added chunks and equal chunks of the other set, the live entries of a part of a
    /// table. Each added chunk is found once, and by chunks of its domain alone.
    pub fn probe(&mut self, table: &[u8], seed: u64, id: RecordId, domain: u64) -> Pairs {
        let mut pairs = Pairs::new();
        for batch in self.keys(table, seed, id, domain).chunks(AHEAD) {
            batch.iter().for_each(|&(key, _)| self.prefetch(key));
            for &(key, other) in batch {
                let mut slot = self.slot(key);
                while self.numbers[slot] != EMPTY {
                    if self.keys[slot] == key && self.numbers[slot] & TAKEN == 0 {
                        let own = self.id(self.numbers[slot]);
                        if own != other {
                            self.numbers[slot] |= TAKEN;
                            pairs.push((own, other));
                        }
                    }
                    slot = self.after(slot);
                }
            }
        }
        pairs
    }

    /// Pairs among the added chunks without an equal chunk in the other set. The first one added
    /// stays.
    pub fn finish(&mut self) -> Pairs {
        let mut pairs = Pairs::new();
        // Starts at an empty slot, so that no run of used slots is entered in its middle.
        let start = self.numbers.iter().position(|&number| number == EMPTY).unwrap_or(0);
        for at in (start..self.keys.len()).chain(0..start) {
            if self.numbers[at] & TAKEN != 0 {
                continue; // also where the slot is empty
            }
            // The first added of equal keys comes first from their slot on.
            let key = self.keys[at];
            let winner = self.id(self.numbers[at]);
            let mut slot = self.after(at);
            while self.numbers[slot] != EMPTY {
                if self.keys[slot] == key && self.numbers[slot] & TAKEN == 0 {
                    pairs.push((self.id(self.numbers[slot]), winner));
                    self.numbers[slot] |= TAKEN;
                }
                slot = self.after(slot);
            }
        }
        pairs
    }

    /// Keys and ids of the live entries that count. Each domain has a hash of its own.
    fn keys(&self, table: &[u8], seed: u64, id: RecordId, domain: u64) -> Vec<(u64, RecordId)> {
        let ids = (0..).map(|at| id.plus(at));
        let key_seed = self.key_seed.wrapping_add(domain);
        ids.zip(entries(table))
            .filter_map(|(id, bytes)| {
                let entry = TableEntry::unchecked(bytes);
                if entry.state != State::LIVE {
                    return None;
                }
                let key = xxh3_64_with_seed(&entry.fingerprint, key_seed);
                let counts = key & self.sample == 0 && TableEntry::sound(bytes, seed).is_some();
                counts.then_some((key, id))
            })
            .collect()
    }

    #[inline]
    fn slot(&self, key: u64) -> usize {
        ((u128::from(key) * self.keys.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.keys.len() { 0 } else { slot + 1 }
    }

    fn id(&self, number: u32) -> RecordId {
        let number = number & !TAKEN;
        let run = &self.runs[self.runs.partition_point(|run| run.number <= number) - 1];
        run.id.plus(u64::from(number - run.number))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn prefetch(&self, key: u64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let slot = self.slot(key);
        // SAFETY: hints; the addresses are those of elements.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>((&raw const self.keys[slot]).cast());
            _mm_prefetch::<_MM_HINT_T0>((&raw const self.numbers[slot]).cast());
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    fn prefetch(&self, _: u64) {}
}
