//! AVX2: look-ups by nibble with `vpshufb`, 32 streams at a time.

use std::arch::x86_64::*;

use super::gf2::Step;
use super::simd::{self, Unit};
use super::stage1::{CutCandidate, Filter, Tables};

struct Avx2;

impl Avx2 {
    #[inline(always)]
    unsafe fn add_products(tables: &[__m256i; 4], nibbles: &[__m256i; 4], now: __m256i) -> __m256i {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let product = |n: usize| _mm256_shuffle_epi8(tables[n], nibbles[n]);
            let left = _mm256_xor_si256(product(0), product(1));
            let right = _mm256_xor_si256(product(2), product(3));
            _mm256_xor_si256(_mm256_xor_si256(now, left), right)
        }
    }
}

impl Unit for Avx2 {
    type Vector = __m256i;
    type Multiplier = [[__m256i; 4]; 2];
    /// Masks and patterns, of low and high bytes.
    type Filter = [[__m256i; 2]; 2];
    const GROUPS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: the caller guarantees AVX2.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn gather(from: *const u8, stride: usize) -> __m256i {
        // SAFETY: the caller guarantees that it is readable.
        unsafe { _mm256_loadu2_m128i(from.add(stride).cast(), from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m256i) {
        // SAFETY: the caller guarantees that it is writable.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn interleave(a: __m256i, b: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller guarantees AVX2.
        unsafe { [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)] }
    }

    #[inline(always)]
    unsafe fn multiplier(step: &Step) -> Self::Multiplier {
        step.nibbles.map(|tables| {
            // SAFETY: each table is 16 bytes; the caller guarantees AVX2.
            tables.map(|table| unsafe {
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()))
            })
        })
    }

    #[inline(always)]
    unsafe fn step(
        multiplier: &Self::Multiplier,
        [leaving, high]: [__m256i; 2],
        now: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let lower = |v| _mm256_and_si256(v, mask);
            let upper = |v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask);
            let nibbles = [lower(leaving), upper(leaving), lower(high), upper(high)];
            [
                Self::add_products(&multiplier[0], &nibbles, now[0]),
                Self::add_products(&multiplier[1], &nibbles, now[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn filter(filter: Filter) -> Self::Filter {
        [filter.mask, filter.pattern].map(|both| {
            // SAFETY: the caller guarantees AVX2.
            both.to_le_bytes().map(|byte| unsafe { _mm256_set1_epi8(byte as i8) })
        })
    }

    #[inline(always)]
    unsafe fn matches([mask, pattern]: &Self::Filter, value: [__m256i; 2]) -> u64 {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let equal =
                |n: usize| _mm256_cmpeq_epi8(_mm256_and_si256(value[n], mask[n]), pattern[n]);
            u64::from(_mm256_movemask_epi8(_mm256_and_si256(equal(0), equal(1))) as u32)
        }
    }
}

/// See [`super::stage1::Scan`]. Panics if the CPU has no AVX2.
pub fn scan(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<CutCandidate>,
) {
    #[target_feature(enable = "avx2")]
    unsafe fn inner(
        tables: &Tables,
        filter: Filter,
        data: &[u8],
        from: usize,
        to: usize,
        out: &mut Vec<CutCandidate>,
    ) {
        // SAFETY: AVX2 is enabled here; `scan` has checked the range.
        unsafe { simd::scan::<Avx2>(tables, filter, data, from, to, out) }
    }
    assert!(available() && simd::in_range(data, from, to));
    // SAFETY: the CPU has AVX2.
    unsafe { inner(tables, filter, data, from, to, out) }
}

pub fn available() -> bool {
    is_x86_feature_detected!("avx2")
}
