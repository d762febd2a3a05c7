//! The records of all containers of one kind, from their tables, and the number of references to
//! each.
//!
//! Takes nine bytes a record, and a map entry for each record that leads to another.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::format::ids::{ContainerNumber, FingerprintCheck, RecordId};
use crate::format::recipe::rows_of;
use crate::format::table_entry::{EntryBytes, FORWARDS_MAX, State, TableEntry};
use crate::threads::lock::locked;

/// Length and check of the bytes of a record. The default is for one whose bytes are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownBytes {
    /// 0 where the bytes are not there: no record is empty.
    pub raw_length: u32,
    pub fingerprint_check: FingerprintCheck,
}

impl KnownBytes {
    pub fn of(entry: &TableEntry) -> KnownBytes {
        KnownBytes { raw_length: entry.raw_length, fingerprint_check: entry.fingerprint_check() }
    }

    pub fn is_there(self) -> bool {
        self != KnownBytes::default()
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
            self.known.resize(count, KnownBytes::default());
            self.references.resize_with(count, AtomicU8::default);
        }
    }
}

#[derive(Default)]
pub struct RecordCensus {
    containers: BTreeMap<ContainerNumber, Container>,
    merged: HashMap<RecordId, RecordId>,
    second: HashMap<RecordId, KnownBytes>,
    relied_on: Mutex<HashSet<RecordId>>,
}

impl RecordCensus {
    /// Adds a table. Returns the ordinals of the records that are merged or quarantined.
    pub fn add_table(
        &mut self,
        number: ContainerNumber,
        entries: &[&EntryBytes],
        seed: u64,
    ) -> Vec<u32> {
        let container = self.containers.entry(number).or_default();
        container.grow(entries.len());
        let mut others = Vec::new();
        for (ordinal, entry) in entries.iter().enumerate() {
            match TableEntry::sound(entry, seed) {
                Some(entry) if entry.state.has_bytes() => {
                    container.known[ordinal] = KnownBytes::of(&entry);
                }
                Some(entry) if entry.state == State::MERGED => {
                    self.merged.insert(RecordId::new(number, ordinal as u32), entry.target);
                    others.push(ordinal as u32);
                }
                Some(entry) if entry.state == State::QUARANTINED => others.push(ordinal as u32),
                _ => {}
            }
        }
        others
    }

    /// Replaces the known bytes of a record, and the record that it leads to.
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

    pub fn count(&self, number: ContainerNumber) -> usize {
        self.containers.get(&number).map_or(0, |container| container.known.len())
    }

    pub fn numbers(&self) -> Vec<ContainerNumber> {
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

    /// The known bytes of the record itself.
    pub fn own(&self, id: RecordId) -> KnownBytes {
        let known = self.containers.get(&id.container()).map(|container| &container.known);
        known.and_then(|known| known.get(id.place())).copied().unwrap_or_default()
    }

    /// Like [`RecordCensus::own`]. If the bytes are missing, returns those of the second copy, and notes
    /// the copy as relied on.
    pub fn known(&self, id: RecordId) -> KnownBytes {
        let own = self.own(id);
        if own.is_there() {
            return own;
        }
        let Some(&second) = self.second.get(&id) else { return KnownBytes::default() };
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

/// The ids of the chunks in a leaf. None where the payload is no leaf, covers less than `covered`
/// bytes, or names a chunk whose bytes are not there.
pub fn sound_leaf(payload: &[u8], covered: u64, chunks: &RecordCensus) -> Option<Vec<RecordId>> {
    let (level, length, rows) = rows_of(payload)?;
    if level > 0 || length < covered {
        return None;
    }
    let mut ids = Vec::with_capacity(rows.len());
    let mut sum = 0u64;
    for row in rows {
        if row.length == 0 {
            return None;
        }
        sum = sum.checked_add(row.length)?;
        if !row.id.is_hole() {
            let bytes = KnownBytes {
                raw_length: row.length as u32,
                fingerprint_check: row.fingerprint_check,
            };
            if !chunks.holds(row.id, bytes) {
                return None;
            }
            ids.push(row.id);
        }
    }
    (sum == length).then_some(ids)
}
