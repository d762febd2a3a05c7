//! What the tables of one kind of container say, and how often each record is referred to.
//!
//! Nine bytes a record, and an entry of a map for those that lead to others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::format::bytes::u32_at;
use crate::format::ids::split;
use crate::format::recipe::Leaf;
use crate::format::table_entry::{
    ENTRY_BYTES, STATE_AT, STATE_LIVE, STATE_ORPHANED, STATE_TOMBSTONE, entry_body,
};

/// Where the counting of references stops.
pub const REFERENCES_MAX: u8 = u8::MAX;
/// Steps from a merged record to the one that has its bytes, as readers take them; more are a ring.
const FORWARDS_MAX: usize = 64;

const RAW_LENGTH_AT: usize = 52;

/// Raw length, and the first four bytes of the fingerprint. No record is empty, so it is never 0.
pub fn word(length: u32, check: u32) -> u64 {
    u64::from(length) << 32 | u64::from(check)
}

#[derive(Default)]
struct Container {
    /// 0 where there is no record whose bytes are there.
    words: Vec<u64>,
    references: Vec<AtomicU8>,
}

impl Container {
    fn grow(&mut self, count: usize) {
        if count > self.words.len() {
            self.words.resize(count, 0);
            self.references.resize_with(count, AtomicU8::default);
        }
    }
}

#[derive(Default)]
pub struct Known {
    containers: BTreeMap<u32, Container>,
    merged: HashMap<u64, u64>,
    second: HashMap<u64, u64>,
    relied_on: Mutex<HashSet<u64>>,
}

impl Known {
    /// Takes in a table. Returns the ordinals of the entries that are not valid, and of records that
    /// lead to others or are quarantined: they are for the caller to take in.
    pub fn add_table(
        &mut self,
        number: u32,
        entries: &[&[u8; ENTRY_BYTES]],
        seed: u64,
    ) -> Vec<u32> {
        let container = self.containers.entry(number).or_default();
        container.grow(entries.len());
        let mut others = Vec::new();
        for (ordinal, entry) in entries.iter().enumerate() {
            match entry_body(entry, seed) {
                Some(said) if matches!(said[STATE_AT], STATE_LIVE | STATE_ORPHANED) => {
                    container.words[ordinal] = word(u32_at(said, RAW_LENGTH_AT), u32_at(said, 0));
                }
                Some(said) if said[STATE_AT] == STATE_TOMBSTONE => {}
                _ => others.push(ordinal as u32),
            }
        }
        others
    }

    /// Sets what is known of a record, and what it leads to, in place of what was known before.
    pub fn set(&mut self, id: u64, word: u64, target: Option<u64>) {
        let (number, ordinal) = split(id);
        let container = self.containers.entry(number).or_default();
        container.grow(ordinal + 1);
        container.words[ordinal] = word;
        match target {
            Some(target) => self.merged.insert(id, target),
            None => self.merged.remove(&id),
        };
    }

    pub fn set_second(&mut self, id: u64, word: u64) {
        self.second.insert(id, word);
    }

    pub fn count(&self, number: u32) -> usize {
        self.containers.get(&number).map_or(0, |container| container.words.len())
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.containers.keys().copied().collect()
    }

    /// The record that an id leads to.
    pub fn resolve(&self, mut id: u64) -> u64 {
        for _ in 0..FORWARDS_MAX {
            match self.merged.get(&id) {
                Some(&target) => id = target,
                None => break,
            }
        }
        id
    }

    /// What is known of the record itself, 0 where its bytes are not there.
    pub fn own_word(&self, id: u64) -> u64 {
        let (number, ordinal) = split(id);
        let words = self.containers.get(&number).map(|container| &container.words);
        words.and_then(|words| words.get(ordinal)).copied().unwrap_or(0)
    }

    /// As [`Known::own_word`], or of its second copy, which is then noted.
    pub fn word(&self, id: u64) -> u64 {
        let own = self.own_word(id);
        if own != 0 {
            return own;
        }
        let Some(&second) = self.second.get(&id) else { return 0 };
        self.relied_on.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
        second
    }

    /// Whether an id leads to a record of this length and check that is there.
    pub fn holds(&self, id: u64, word: u64) -> bool {
        self.word(self.resolve(id)) == word
    }

    pub fn relied_on(&self) -> Vec<u64> {
        self.relied_on.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Counts a reference to the record that an id leads to.
    pub fn refer(&self, id: u64) {
        self.add_references(self.resolve(id), 1);
    }

    pub fn add_references(&self, id: u64, count: u8) {
        let (number, ordinal) = split(id);
        let Some(container) = self.containers.get(&number) else { return };
        let Some(references) = container.references.get(ordinal) else { return };
        let add = |known: u8| Some(known.saturating_add(count));
        // Never None: the closure always answers.
        let _ = references.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub fn references(&self, id: u64) -> u8 {
        let (number, ordinal) = split(id);
        let references = self.containers.get(&number).map(|container| &container.references);
        references
            .and_then(|references| references.get(ordinal))
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Ids of the records that are there, and were referred to so often: `wanted` says.
    pub fn with_references(&self, wanted: impl Fn(u8) -> bool) -> Vec<u64> {
        let mut found = Vec::new();
        for (&number, container) in &self.containers {
            for (ordinal, (&word, references)) in
                container.words.iter().zip(&container.references).enumerate()
            {
                if word != 0 && wanted(references.load(Ordering::Relaxed)) {
                    found.push(u64::from(number) << 32 | ordinal as u64);
                }
            }
        }
        found
    }
}

/// The rows of a leaf of a recipe whose bytes `chunks` has, each once; None where it is no leaf, or
/// covers less than `covered` bytes, or any of its chunks is not there.
pub fn sound_leaf(payload: &[u8], covered: u64, chunks: &Known) -> Option<Vec<u64>> {
    let leaf = Leaf::of(payload)?;
    if leaf.length < covered {
        return None;
    }
    let rows = leaf.rows();
    let mut ids = Vec::with_capacity(rows.len());
    let mut sum = 0u64;
    for row in rows {
        if row.length == 0 {
            return None;
        }
        sum = sum.checked_add(row.length)?;
        if row.id != 0 {
            if !chunks.holds(row.id, word(row.length as u32, row.check)) {
                return None;
            }
            ids.push(row.id);
        }
    }
    (sum == leaf.length).then_some(ids)
}
