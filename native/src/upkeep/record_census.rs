//! What the tables of one kind of container say, and how often each record is referred to.
//!
//! Nine bytes a record, and an entry of a map for those that lead to others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::format::ids::RecordId;
use crate::format::recipe::Leaf;
use crate::format::table_entry::{EntryBytes, State, TableEntry};
use crate::threads::lock::locked;

/// Where the counting of references stops.
pub const REFERENCES_MAX: u8 = u8::MAX;
/// Steps from a merged record to the one that has its bytes, as readers take them; more are a ring.
pub const FORWARDS_MAX: usize = 64;

/// What is known of a record's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownBytes {
    /// 0 where the bytes are not there: no record is empty.
    pub raw_length: u32,
    /// The start of the fingerprint.
    pub check: u32,
}

impl KnownBytes {
    /// Of a record whose bytes are not there.
    const NONE: KnownBytes = KnownBytes { raw_length: 0, check: 0 };

    pub fn of(entry: &TableEntry) -> KnownBytes {
        KnownBytes { raw_length: entry.raw_length, check: entry.check() }
    }

    pub fn is_there(self) -> bool {
        self != KnownBytes::NONE
    }
}

#[derive(Default)]
struct Container {
    known: Vec<KnownBytes>,
    references: Vec<AtomicU8>,
}

impl Container {
    fn grow(&mut self, count: usize) {
        if count > self.known.len() {
            self.known.resize(count, KnownBytes::NONE);
            self.references.resize_with(count, AtomicU8::default);
        }
    }
}

#[derive(Default)]
pub struct Known {
    containers: BTreeMap<u32, Container>,
    merged: HashMap<RecordId, RecordId>,
    second: HashMap<RecordId, KnownBytes>,
    relied_on: Mutex<HashSet<RecordId>>,
}

impl Known {
    /// Takes in a table. Returns the ordinals of the entries that are not valid, and of records that
    /// lead to others or are quarantined: they are for the caller to take in.
    pub fn add_table(&mut self, number: u32, entries: &[&EntryBytes], seed: u64) -> Vec<u32> {
        let container = self.containers.entry(number).or_default();
        container.grow(entries.len());
        let mut others = Vec::new();
        for (ordinal, entry) in entries.iter().enumerate() {
            match TableEntry::sound(entry, seed) {
                Some(entry) if entry.state.has_bytes() => {
                    container.known[ordinal] = KnownBytes::of(&entry);
                }
                Some(entry) if entry.state == State::TOMBSTONE => {}
                _ => others.push(ordinal as u32),
            }
        }
        others
    }

    /// Sets what is known of a record, and what it leads to, in place of what was known before.
    pub fn set(&mut self, id: RecordId, known: KnownBytes, target: Option<RecordId>) {
        let container = self.containers.entry(id.container()).or_default();
        container.grow(id.place() + 1);
        container.known[id.place()] = known;
        match target {
            Some(target) => self.merged.insert(id, target),
            None => self.merged.remove(&id),
        };
    }

    /// Notes that there is a second copy of a record.
    pub fn set_second(&mut self, id: RecordId, known: KnownBytes) {
        self.second.insert(id, known);
    }

    pub fn count(&self, number: u32) -> usize {
        self.containers.get(&number).map_or(0, |container| container.known.len())
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.containers.keys().copied().collect()
    }

    /// The record that an id leads to.
    pub fn resolve(&self, mut id: RecordId) -> RecordId {
        for _ in 0..FORWARDS_MAX {
            match self.merged.get(&id) {
                Some(&target) => id = target,
                None => break,
            }
        }
        id
    }

    /// What is known of the record itself.
    pub fn own(&self, id: RecordId) -> KnownBytes {
        let known = self.containers.get(&id.container()).map(|container| &container.known);
        known.and_then(|known| known.get(id.place())).copied().unwrap_or(KnownBytes::NONE)
    }

    /// As [`Known::own`], or where its bytes are not there, of its second copy, which is then noted
    /// as relied on.
    pub fn known(&self, id: RecordId) -> KnownBytes {
        let own = self.own(id);
        if own.is_there() {
            return own;
        }
        let Some(&second) = self.second.get(&id) else { return KnownBytes::NONE };
        locked(&self.relied_on).insert(id);
        second
    }

    /// Whether an id leads to a record with these bytes that is there.
    pub fn holds(&self, id: RecordId, bytes: KnownBytes) -> bool {
        self.known(self.resolve(id)) == bytes
    }

    pub fn relied_on(&self) -> Vec<RecordId> {
        locked(&self.relied_on).iter().copied().collect()
    }

    /// Counts a reference to the record that an id leads to.
    pub fn refer(&self, id: RecordId) {
        self.add_references(self.resolve(id), 1);
    }

    pub fn add_references(&self, id: RecordId, count: u8) {
        let Some(container) = self.containers.get(&id.container()) else { return };
        let Some(references) = container.references.get(id.place()) else { return };
        let add = |known: u8| Some(known.saturating_add(count));
        // Never None: the closure always answers.
        let _ = references.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub fn references(&self, id: RecordId) -> u8 {
        let references = self.containers.get(&id.container()).map(|own| &own.references);
        references
            .and_then(|references| references.get(id.place()))
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Ids of the records that are there and whose number of references is wanted.
    pub fn with_references(&self, wanted: impl Fn(u8) -> bool) -> Vec<RecordId> {
        let mut found = Vec::new();
        for (&number, container) in &self.containers {
            let records = container.known.iter().zip(&container.references);
            for (ordinal, (known, references)) in (0..).zip(records) {
                if known.is_there() && wanted(references.load(Ordering::Relaxed)) {
                    found.push(RecordId::new(number, ordinal));
                }
            }
        }
        found
    }
}

/// The rows of a leaf of a recipe whose bytes `chunks` has, each once; None where it is no leaf, or
/// covers less than `covered` bytes, or any of its chunks is not there.
pub fn sound_leaf(payload: &[u8], covered: u64, chunks: &Known) -> Option<Vec<RecordId>> {
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
        if !row.id.is_hole() {
            let bytes = KnownBytes { raw_length: row.length as u32, check: row.check };
            if !chunks.holds(row.id, bytes) {
                return None;
            }
            ids.push(row.id);
        }
    }
    (sum == leaf.length).then_some(ids)
}
