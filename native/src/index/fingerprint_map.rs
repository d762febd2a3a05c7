//! Exact map from fingerprint to chunk id.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::format::ids::{Fingerprint, RecordId, hash_of};

/// Entries are 40 bytes; with the table's control byte and its free slots about 48 to 90.
#[derive(Default)]
pub struct FingerprintMap(HashTable<(Fingerprint, RecordId)>);

impl FingerprintMap {
    pub fn with_capacity(capacity: usize) -> FingerprintMap {
        FingerprintMap(HashTable::with_capacity(capacity))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, key: &Fingerprint) -> Option<RecordId> {
        self.0.find(hash_of(key), |(known, _)| known == key).map(|&(_, id)| id)
    }

    /// False, and nothing changed, where the fingerprint is known.
    pub fn insert(&mut self, key: &Fingerprint, id: RecordId) -> bool {
        match self.0.entry(hash_of(key), |(known, _)| known == key, |(known, _)| hash_of(known)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(slot) => {
                slot.insert((*key, id));
                true
            }
        }
    }

    /// Keep the entries whose id is wanted, and free the memory that is not needed for them, or for
    /// `capacity` entries.
    pub fn retain(&mut self, capacity: usize, mut wanted: impl FnMut(RecordId) -> bool) {
        self.0.retain(|&mut (_, id)| wanted(id));
        self.0.shrink_to(capacity, |(known, _)| hash_of(known));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Fingerprint, RecordId)> {
        self.0.iter().map(|(known, id)| (known, *id))
    }

    /// Bytes of RAM.
    pub fn bytes(&self) -> usize {
        self.0.allocation_size()
    }

    pub fn remove(&mut self, key: &Fingerprint) -> bool {
        match self.0.find_entry(hash_of(key), |(known, _)| known == key) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }
}
