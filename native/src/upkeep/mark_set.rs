//! Sets of records, with a bit for each record.

use std::collections::{BTreeMap, BTreeSet};

use crate::fingerprint::Algorithm;
use crate::format::ids::{ContainerNumber, FINGERPRINT_BYTES, Fingerprint, RecordId};

/// Ids of no record that a set keeps.
const STRAYS_MAX: usize = 100;

#[derive(Clone, Default)]
struct Bits {
    count: usize,
    bits: Vec<u8>,
}

#[derive(Clone, Default)]
pub struct Marks {
    containers: BTreeMap<ContainerNumber, Bits>,
    strays: BTreeSet<RecordId>,
}

impl Marks {
    /// Containers with these numbers of records, none of them marked.
    pub fn of(counts: impl IntoIterator<Item = (ContainerNumber, usize)>) -> Marks {
        let bits = |count: usize| Bits { count, bits: vec![0; count.div_ceil(8)] };
        let counts = counts.into_iter().map(|(number, count)| (number, bits(count)));
        Marks { containers: counts.collect(), strays: BTreeSet::new() }
    }

    /// Some of the ids that were to be marked and belong to no record.
    pub fn strays(&self) -> impl Iterator<Item = RecordId> {
        self.strays.iter().copied()
    }

    pub fn knows(&self, id: RecordId) -> bool {
        let (number, ordinal) = (id.container(), id.place());
        self.containers.get(&number).is_some_and(|own| ordinal < own.count)
    }

    pub fn contains(&self, id: RecordId) -> bool {
        let (number, ordinal) = (id.container(), id.place());
        let own = self.containers.get(&number).filter(|own| ordinal < own.count);
        own.is_some_and(|own| own.bits[ordinal / 8] >> (ordinal % 8) & 1 == 1)
    }

    /// Marks a record. False, and nothing marked, where there is none.
    pub fn set(&mut self, id: RecordId) -> bool {
        let (number, ordinal) = (id.container(), id.place());
        let Some(own) = self.containers.get_mut(&number).filter(|own| ordinal < own.count) else {
            return false;
        };
        own.bits[ordinal / 8] |= 1 << (ordinal % 8);
        true
    }

    /// Marks what a stub, a recipe or an entry names: a record, or a hole. Returns whether it was a
    /// record. Any other id is a stray.
    pub fn mark(&mut self, id: RecordId) -> bool {
        let is_record = self.set(id);
        if !is_record && !id.is_hole() && self.strays.len() < STRAYS_MAX {
            self.strays.insert(id);
        }
        is_record
    }

    /// Mark the records whose bit is set in `bits`, in the form of [`Marks::bits`]. False, and
    /// nothing marked, where a bit is set that belongs to no record.
    pub fn merge(&mut self, number: ContainerNumber, bits: &[u8]) -> bool {
        let Some(own) = self.containers.get_mut(&number) else {
            return bits.iter().all(|&byte| byte == 0);
        };
        let (whole, rest) = (own.count / 8, own.count % 8);
        let beyond = bits.get(whole).map_or(0, |&byte| byte >> rest);
        if beyond != 0 || bits.iter().skip(whole + 1).any(|&byte| byte != 0) {
            return false;
        }
        for (own, &byte) in own.bits.iter_mut().zip(bits) {
            *own |= byte;
        }
        true
    }

    /// Mark the records that are marked in another set, which has no other containers.
    pub fn include(&mut self, other: &Marks) {
        for (&number, of) in &other.containers {
            self.merge(number, &of.bits);
        }
        self.strays.extend(&other.strays);
    }

    /// The lowest ordinal in the lowest bit.
    pub fn bits(&self, number: ContainerNumber) -> &[u8] {
        self.containers.get(&number).map_or(&[], |own| &own.bits)
    }

    pub fn count(&self) -> u64 {
        let ones =
            |own: &Bits| own.bits.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        self.containers.values().map(ones).sum::<u64>()
    }

    /// The same for the same marks.
    pub fn digest(&self) -> Fingerprint {
        digest(self.containers.iter().map(|(&number, own)| (number, own.bits.as_slice())))
    }
}

/// A digest of a column of each container.
pub fn digest<T: AsRef<[u8]>>(columns: impl Iterator<Item = (ContainerNumber, T)>) -> Fingerprint {
    let mut parts = Vec::new();
    for (number, column) in columns {
        parts.extend(number.0.to_le_bytes());
        parts.extend::<[u8; FINGERPRINT_BYTES]>(Algorithm::Blake3.digest(column.as_ref()));
    }
    Algorithm::Blake3.digest(&parts)
}
