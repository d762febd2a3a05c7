//! Entries of the table that have no slot yet, and the buckets with free slots.

use super::group::Slot;

/// A set of signatures that may have false positives, for a quick test.
#[derive(Default)]
pub struct SignatureFilter([u64; 16]);

impl SignatureFilter {
    #[inline]
    pub fn insert(&mut self, signature: u16) {
        self.0[usize::from(signature >> 6) % 16] |= 1 << (signature % 64);
    }

    #[inline]
    pub fn may_have(&self, signature: u16) -> bool {
        self.0[usize::from(signature >> 6) % 16] >> (signature % 64) & 1 != 0
    }
}

/// An entry without a slot, its full bucket, and the entry that it will displace.
#[derive(Clone, Copy)]
pub struct DisplacedEntry {
    pub signature: u16,
    pub number: u32,
    pub bucket: u64,
    pub(super) victim: Victim,
}

#[derive(Clone, Copy)]
pub(super) struct Victim {
    pub(super) slot: Slot,
    pub(super) signature: u16,
    /// Its other bucket.
    pub(super) target: u64,
}

/// A run of buckets that mostly have a free slot. It may wrap from the last bucket to the first.
#[derive(Clone, Copy, Default)]
pub struct Room {
    pub(super) start: u64,
    pub(super) buckets: u64,
}
