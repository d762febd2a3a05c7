//! How many bytes of each recipe node are needed: columns of little-endian u64, in memory and in a
//! file. Items after the end of a column count as zeros.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::format::bytes::u64s;
use crate::format::ids::{ContainerNumber, RecordId};
use crate::format::table_entry::{TableEntry, entries};

/// A bit for each item of `now`, set where it is more than that of `before`, the first in the
/// lowest bit.
pub fn more_than(now: &[u8], before: &[u8]) -> Vec<u8> {
    let mut bits = vec![0u8; (now.len() / 8).div_ceil(8)];
    let before = u64s(before).chain(std::iter::repeat(0));
    for (at, (now, before)) in u64s(now).zip(before).enumerate() {
        bits[at / 8] |= u8::from(now > before) << (at % 8);
    }
    bits
}

/// The larger one of each item of `one` and of `other`.
pub fn longest(one: &[u8], other: &[u8]) -> Vec<u8> {
    let other = u64s(other).chain(std::iter::repeat(0));
    u64s(one).zip(other).flat_map(|(one, other)| one.max(other).to_le_bytes()).collect()
}

/// A digest of the fingerprints of the entries of a table with a length that is not 0.
pub fn digest_needed(table: &[u8], lengths: &[u8], seed: u64) -> u64 {
    let mut digest = Xxh3::with_seed(seed);
    for (entry, length) in entries(table).zip(u64s(lengths)) {
        if length > 0 {
            digest.update(&TableEntry::unchecked(entry).fingerprint);
        }
    }
    digest.digest()
}

#[derive(Default)]
struct Column {
    lengths: Vec<u64>,
    fresh: Vec<u8>,
}

/// How many bytes of each node are needed, and which nodes are fresh: more of them is needed than
/// when they were last taken.
#[derive(Default)]
pub struct Needs(BTreeMap<ContainerNumber, Column>);

impl Needs {
    /// Containers with so many nodes each, none of them needed.
    pub fn of(counts: impl IntoIterator<Item = (ContainerNumber, usize)>) -> Needs {
        let column =
            |count: usize| Column { lengths: vec![0; count], fresh: vec![0; count.div_ceil(8)] };
        Needs(counts.into_iter().map(|(number, count)| (number, column(count))).collect())
    }

    /// Note that at least the first `length` bytes of a node are needed. Ids of no node are
    /// ignored.
    pub fn need(&mut self, id: RecordId, length: u64) {
        let ordinal = id.place();
        let Some(own) = self.0.get_mut(&id.container()) else {
            return;
        };
        if let Some(known) = own.lengths.get_mut(ordinal).filter(|known| length > **known) {
            *known = length;
            own.fresh[ordinal / 8] |= 1 << (ordinal % 8);
        }
    }

    pub fn needed(&self, id: RecordId) -> u64 {
        self.0
            .get(&id.container())
            .and_then(|own| own.lengths.get(id.place()))
            .copied()
            .unwrap_or(0)
    }

    pub fn lengths(&self, number: ContainerNumber) -> &[u64] {
        self.0.get(&number).map_or(&[], |own| &own.lengths)
    }

    pub fn fresh(&self, number: ContainerNumber) -> &[u8] {
        self.0.get(&number).map_or(&[], |own| &own.fresh)
    }

    /// Replace the lengths and fresh nodes of a container. Missing items are zeros.
    pub fn put(&mut self, number: ContainerNumber, lengths: &[u8], fresh: &[u8]) {
        if let Some(own) = self.0.get_mut(&number) {
            let given = u64s(lengths).chain(std::iter::repeat(0));
            own.lengths.iter_mut().zip(given).for_each(|(own, given)| *own = given);
            let given = fresh.iter().copied().chain(std::iter::repeat(0));
            own.fresh.iter_mut().zip(given).for_each(|(own, given)| *own = given);
        }
    }

    /// The fresh nodes from `first`, a multiple of 8, to `end`, each with the number of bytes that
    /// are needed. They are fresh again when more of them is needed.
    pub fn take_fresh(
        &mut self,
        number: ContainerNumber,
        first: usize,
        end: usize,
    ) -> Vec<(u32, u64)> {
        let Some(own) = self.0.get_mut(&number) else {
            return Vec::new();
        };
        let (first, end) = (first / 8, end.div_ceil(8).min(own.fresh.len()));
        let mut taken = Vec::new();
        for (at, byte) in own.fresh.iter_mut().enumerate().take(end).skip(first) {
            let fresh = std::mem::take(byte);
            let places = (0..8).filter(|bit| fresh >> bit & 1 == 1).map(|bit| at * 8 + bit);
            taken.extend(places.map(|place| (place as u32, own.lengths[place])));
        }
        taken
    }
}
