//! The positions of the bits of a hash.

/// One cache line of bits.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

impl Line {
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: only a hint, with the address of a reference.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(self).cast()) };
        }
    }
}

/// A bijection that makes every bit depend on every other: the finalizer of SplitMix64.
#[inline]
pub fn mix(hash: u64) -> u64 {
    let mut mixed = hash.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
