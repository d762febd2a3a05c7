//! Buckets of the table that grow together. A bucket has eight slots, and eight more for each
//! further plane.
//!
//! A bucket is one piece of memory: first the signatures of all planes, which every look-up reads,
//! in one cache line for up to four planes; then their record numbers. So another plane requires a
//! copy of the group.

use super::memory::{Memory, Plain};

pub const SLOTS: usize = 8;

/// Bytes of a bucket per plane.
pub const BUCKET_BYTES: usize = SLOTS * 6;

/// Eight signatures, 0 for a free slot, or four record numbers.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub struct Quad([u32; 4]);

/// Quads of a bucket per plane; the first ones have signatures, the others numbers.
const QUADS: usize = 3;

// SAFETY: an array of integers.
unsafe impl Plain for Quad {}

impl Quad {
    /// A bit for each slot with this signature.
    #[inline]
    pub fn matches(&self, signature: u16) -> u32 {
        self.within(signature, 0)
    }

    /// A bit for each free slot.
    #[inline]
    pub fn free(&self) -> u32 {
        self.matches(0)
    }

    /// A bit for each slot whose signature is `first` or one of the next `more`, wrapping at 0.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub fn within(&self, first: u16, more: u16) -> u32 {
        use std::arch::x86_64::{
            _mm_cmpeq_epi16, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
            _mm_setzero_si128, _mm_sub_epi16, _mm_subs_epu16,
        };
        // SAFETY: SSE2 is part of x86-64; a quad has 16 bytes, and their alignment.
        unsafe {
            let own = _mm_load_si128(self.0.as_ptr().cast());
            let above = _mm_sub_epi16(own, _mm_set1_epi16(first as i16));
            let beyond = _mm_subs_epu16(above, _mm_set1_epi16(more as i16));
            let is_within = _mm_cmpeq_epi16(beyond, _mm_setzero_si128());
            _mm_movemask_epi8(_mm_packs_epi16(is_within, _mm_setzero_si128())) as u32
        }
    }

    /// A bit for each slot whose signature is `first` or one of the next `more`, wrapping at 0.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    pub fn within(&self, first: u16, more: u16) -> u32 {
        let is_within = |at: &usize| self.signature(*at).wrapping_sub(first) <= more;
        (0..SLOTS).filter(is_within).map(|at| 1 << at).sum()
    }

    #[inline]
    pub fn signature(&self, at: usize) -> u16 {
        (self.0[at / 2] >> (at % 2 * 16)) as u16
    }

    #[inline]
    fn set_signature(&mut self, at: usize, signature: u16) {
        let shift = at % 2 * 16;
        self.0[at / 2] = self.0[at / 2] & !(0xFFFF << shift) | u32::from(signature) << shift;
    }
}

/// Positions of the bits of a mask.
pub fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (at < 32).then_some(at)
    })
}

/// A slot of a bucket.
#[derive(Clone, Copy)]
pub struct Slot {
    pub plane: usize,
    pub at: usize,
}

pub struct Group {
    buckets: usize,
    planes: usize,
    quads: Memory<Quad>,
}

impl Group {
    /// Empty buckets with one plane or more.
    pub fn new(buckets: usize, planes: usize) -> Group {
        Group { buckets, planes, quads: Memory::new(buckets * planes * QUADS) }
    }

    pub fn buckets(&self) -> usize {
        self.buckets
    }

    #[inline]
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// The signatures of a bucket, plane by plane.
    #[inline]
    pub fn signatures(&self, bucket: usize) -> &[Quad] {
        &self.quads[bucket * self.planes * QUADS..][..self.planes]
    }

    /// The quad with the record number of a slot.
    #[inline]
    fn place(&self, bucket: usize, slot: Slot) -> usize {
        (bucket * QUADS + 1) * self.planes + 2 * slot.plane + slot.at / 4
    }

    #[inline]
    pub fn number(&self, bucket: usize, slot: Slot) -> u32 {
        self.quads[self.place(bucket, slot)].0[slot.at % 4]
    }

    /// Signature and record number of a slot; the signature is 0 if the slot is free.
    #[inline]
    pub fn entry(&self, bucket: usize, slot: Slot) -> (u16, u32) {
        let signature = self.signatures(bucket)[slot.plane].signature(slot.at);
        (signature, self.number(bucket, slot))
    }

    #[inline]
    pub fn set(&mut self, bucket: usize, slot: Slot, signature: u16, number: u32) {
        let place = self.place(bucket, slot);
        self.quads[place].0[slot.at % 4] = number;
        self.quads[bucket * self.planes * QUADS + slot.plane].set_signature(slot.at, signature);
    }

    /// A free slot of a bucket, and the number of its free slots.
    #[inline]
    pub fn room(&self, bucket: usize) -> Option<(Slot, u32)> {
        let (mut slot, mut count) = (None, 0);
        for (plane, own) in self.signatures(bucket).iter().enumerate() {
            let free = own.free();
            if free != 0 {
                slot = Some(Slot { plane, at: free.trailing_zeros() as usize });
                count += free.count_ones();
            }
        }
        slot.map(|slot| (slot, count))
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        let rooms = (0..self.buckets).filter_map(|bucket| self.room(bucket));
        rooms.map(|(_, count)| count as usize).sum()
    }

    /// Prefetch the part of a bucket that a look-up needs.
    #[inline]
    pub fn prefetch(&self, bucket: usize) {
        let signatures = self.signatures(bucket);
        prefetch(&signatures[0]);
        if let [_, _, .., last] = signatures {
            prefetch(last);
        }
    }

    /// Prefetch the record number of a slot.
    #[inline]
    pub fn prefetch_number(&self, bucket: usize, slot: Slot) {
        prefetch(&self.quads[self.place(bucket, slot)]);
    }

    /// Eight more slots for each bucket.
    pub fn add_plane(&mut self) {
        let mut wider = Group::new(self.buckets, self.planes + 1);
        let (old, new) = (self.planes * QUADS, wider.planes * QUADS);
        let buckets = self.quads.chunks_exact(old).zip(wider.quads.chunks_exact_mut(new));
        for (old, new) in buckets {
            let (signatures, numbers) = old.split_at(self.planes);
            new[..self.planes].copy_from_slice(signatures);
            new[self.planes + 1..][..numbers.len()].copy_from_slice(numbers);
        }
        *self = wider;
    }
}

/// Prefetch the cache line of a value.
#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch<T>(of: &T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: only a hint, with the address of a reference.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(of).cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch<T>(_: &T) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_of_a_range_are_found_around_zero_too() {
        let mut own = Quad::default();
        for (at, signature) in [0, 1, 9, 10, 11, 12, 65_534, 65_535].into_iter().enumerate() {
            own.set_signature(at, signature);
        }
        assert_eq!(own.matches(10), 1 << 3);
        assert_eq!(own.free(), 1);
        assert_eq!(own.within(9, 2), 0b1_1100);
        assert_eq!(own.within(65_535, 2), 0b1000_0011);
        assert_eq!(own.within(0, 65_535), 0xFF);
    }

    #[test]
    fn a_plane_more_changes_no_slot() {
        let mut group = Group::new(64, 1);
        let slots: Vec<(usize, Slot)> =
            (0..512).filter(|n| n % 3 > 0).map(|n| (n / 8, Slot { plane: 0, at: n % 8 })).collect();
        for (n, &(bucket, slot)) in slots.iter().enumerate() {
            group.set(bucket, slot, n as u16 + 1, n as u32 * 70_000);
        }
        for planes in 2..6 {
            group.add_plane();
            assert_eq!((group.planes(), group.free()), (planes, 512 * planes - slots.len()));
            for (n, &(bucket, slot)) in slots.iter().enumerate() {
                assert_eq!(group.entry(bucket, slot), (n as u16 + 1, n as u32 * 70_000));
            }
        }
    }
}
