//! The slots of the table: buckets of eight, and the memory that they are in.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

pub const SLOTS: usize = 8;
pub const BUCKET_BYTES: usize = SLOTS * 6;

/// Where a page of memory is this large, a look-up misses one cache less on its way to a bucket.
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub struct Bucket {
    /// 0 where a slot is free.
    pub signatures: [u16; SLOTS],
    pub numbers: [u32; SLOTS],
}

impl Bucket {
    /// A bit for each slot with this signature.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub fn matches(&self, signature: u16) -> u32 {
        use std::arch::x86_64::{
            _mm_cmpeq_epi16, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
            _mm_setzero_si128,
        };
        // SAFETY: SSE2 is part of x86-64; the signatures are 16 bytes, as aligned as the bucket.
        unsafe {
            let own = _mm_load_si128(self.signatures.as_ptr().cast());
            let equal = _mm_cmpeq_epi16(own, _mm_set1_epi16(signature as i16));
            _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u32
        }
    }

    /// A bit for each slot with this signature.
    #[cfg(not(target_arch = "x86_64"))]
    #[inline]
    pub fn matches(&self, signature: u16) -> u32 {
        let mut mask = 0;
        for (at, &own) in self.signatures.iter().enumerate() {
            mask |= u32::from(own == signature) << at;
        }
        mask
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

/// A bucket for each one of a group, in huge pages where it is large enough.
pub struct Plane {
    buckets: NonNull<Bucket>,
    count: usize,
}

// SAFETY: a plane owns its buckets, which are plain values.
unsafe impl Send for Plane {}
// SAFETY: as above; a shared plane can only be read.
unsafe impl Sync for Plane {}

impl Plane {
    /// `count` empty buckets, at least one.
    pub fn new(count: usize) -> Plane {
        let layout = Plane::layout(count);
        // SAFETY: a plane has at least one bucket, so the layout is not empty.
        let memory = unsafe { alloc(layout) };
        let Some(buckets) = NonNull::new(memory.cast::<Bucket>()) else {
            handle_alloc_error(layout)
        };
        if layout.align() == HUGE_PAGE_BYTES {
            // SAFETY: a hint about memory that was just allocated; where it fails, nothing is lost.
            unsafe { libc::madvise(memory.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        // SAFETY: the memory is as long as the layout says, and zeros are empty buckets.
        unsafe { memory.write_bytes(0, layout.size()) };
        Plane { buckets, count }
    }

    fn layout(count: usize) -> Layout {
        assert!(count > 0);
        let bytes = count * BUCKET_BYTES;
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { align_of::<Bucket>() };
        // The product of a count of 2 to the 17 at most: far below the limit.
        Layout::from_size_align(bytes, align).unwrap_or_else(|_| unreachable!())
    }

    /// How many slots are free.
    pub fn free(&self) -> usize {
        self.iter().map(|bucket| bucket.matches(0).count_ones() as usize).sum()
    }
}

impl Deref for Plane {
    type Target = [Bucket];

    fn deref(&self) -> &[Bucket] {
        // SAFETY: the memory is the plane's own, and all of it was written.
        unsafe { std::slice::from_raw_parts(self.buckets.as_ptr(), self.count) }
    }
}

impl DerefMut for Plane {
    fn deref_mut(&mut self) -> &mut [Bucket] {
        // SAFETY: as for `deref`, and nobody else has a reference.
        unsafe { std::slice::from_raw_parts_mut(self.buckets.as_ptr(), self.count) }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this very layout.
        unsafe { dealloc(self.buckets.as_ptr().cast(), Plane::layout(self.count)) }
    }
}
