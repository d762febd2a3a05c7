//! Exact map from fingerprint to chunk id.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::format::ids::{Fingerprint, RecordId, hash_of};

/// Entries take 40 bytes; with the table's control byte and its free slots about 48 to 90.
#[derive(Default)]
pub struct FingerprintMap(HashTable<(Fingerprint, RecordId)>);

impl FingerprintMap {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, key: &Fingerprint) -> Option<RecordId> {
        self.0.find(hash_of(key), |(known, _)| known == key).map(|&(_, id)| id)
    }

    /// Returns false and changes nothing if the fingerprint is known.
    pub fn insert(&mut self, key: &Fingerprint, id: RecordId) -> bool {
        match self.0.entry(hash_of(key), |(known, _)| known == key, |(known, _)| hash_of(known)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(slot) => {
                slot.insert((*key, id));
                true
            }
        }
    }

    /// Keep the entries with a `wanted` id. Free the memory that is not needed for these entries,
    /// or for `capacity` entries.
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
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Fingerprints in five groups with the same hash, which is the first eight bytes.
    fn fingerprint(number: u64) -> Fingerprint {
        let mut fingerprint = [0; 32];
        fingerprint[..8].copy_from_slice(&(number % 5).to_le_bytes());
        fingerprint[8..16].copy_from_slice(&number.to_le_bytes());
        fingerprint
    }

    #[test]
    fn the_map_is_that_of_the_standard_library_though_hashes_collide() {
        let (mut map, mut model) = (FingerprintMap::default(), HashMap::new());
        for step in 0..2000u64 {
            let number = step * step % 601;
            let is_new = !model.contains_key(&number);
            assert_eq!(map.insert(&fingerprint(number), RecordId(step + 1)), is_new);
            model.entry(number).or_insert(RecordId(step + 1));
            if step % 500 == 499 {
                map.retain(0, |id| id.0 % 3 != 0);
                model.retain(|_, id| id.0 % 3 != 0);
            }
            assert_eq!(map.len(), model.len());
        }
        for number in 0..700 {
            assert_eq!(map.get(&fingerprint(number)), model.get(&number).copied());
        }
    }
}
