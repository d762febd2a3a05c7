//! Entries of the table that are on their way to a bucket, and where there is room for them.

use super::group::Slot;

/// Whether a signature may be among some, without a look at each of them.
#[derive(Default)]
pub struct Held([u64; 16]);

impl Held {
    #[inline]
    pub fn insert(&mut self, signature: u16) {
        self.0[usize::from(signature >> 6) % 16] |= 1 << (signature % 64);
    }

    #[inline]
    pub fn may_have(&self, signature: u16) -> bool {
        self.0[usize::from(signature >> 6) % 16] >> (signature % 64) & 1 != 0
    }
}

/// An entry on its way to a bucket that was full, and the one whose place it is going to take.
#[derive(Clone, Copy)]
pub struct InHand {
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

/// Buckets, one after the other and on from the first one, most of which have a free slot.
#[derive(Clone, Copy, Default)]
pub struct Room {
    pub(super) start: u64,
    pub(super) buckets: u64,
}
