//! AVX2: look-ups by nibble with `vpshufb`, 32 positions at a time.

use std::arch::x86_64::*;

use super::gf2::Doubling;
use super::simd::{self, Unit};
use super::stage1::{Candidate, Filter, Tables};

struct Avx2;

impl Avx2 {
    /// Nibbles of both bytes, lowest first.
    #[inline(always)]
    unsafe fn nibbles([low, high]: [__m256i; 2]) -> [__m256i; 4] {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let lower = |v| _mm256_and_si256(v, mask);
            let upper = |v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask);
            [lower(low), upper(low), lower(high), upper(high)]
        }
    }

    #[inline(always)]
    unsafe fn add_products(tables: &[__m256i; 4], nibbles: &[__m256i; 4], now: __m256i) -> __m256i {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let product = |n: usize| _mm256_shuffle_epi8(tables[n], nibbles[n]);
            let left = _mm256_xor_si256(product(0), product(1));
            let right = _mm256_xor_si256(product(2), product(3));
            _mm256_xor_si256(now, _mm256_xor_si256(left, right))
        }
    }
}

impl Unit for Avx2 {
    type Vector = __m256i;
    type Multiplier = [[__m256i; 4]; 2];
    const LANES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: readable by the caller's word.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m256i) {
        // SAFETY: writable by the caller's word.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn multiplier(doubling: &Doubling, k: usize) -> Self::Multiplier {
        doubling.nibbles[k].map(|tables| {
            // SAFETY: each table is 16 bytes; the caller vouches for AVX2.
            tables.map(|table| unsafe {
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()))
            })
        })
    }

    #[inline(always)]
    unsafe fn step(
        multiplier: &Self::Multiplier,
        before: [__m256i; 2],
        now: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let nibbles = Self::nibbles(before);
            [
                Self::add_products(&multiplier[0], &nibbles, now[0]),
                Self::add_products(&multiplier[1], &nibbles, now[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn step_byte<const OUTPUT: usize>(
        multiplier: &Self::Multiplier,
        before: [__m256i; 2],
        now: __m256i,
    ) -> __m256i {
        // SAFETY: the caller vouches for AVX2.
        unsafe { Self::add_products(&multiplier[OUTPUT], &Self::nibbles(before), now) }
    }

    #[inline(always)]
    unsafe fn matches(vector: __m256i, mask: u8, pattern: u8) -> u64 {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let masked = _mm256_and_si256(vector, _mm256_set1_epi8(mask as i8));
            let equal = _mm256_cmpeq_epi8(masked, _mm256_set1_epi8(pattern as i8));
            u64::from(_mm256_movemask_epi8(equal) as u32)
        }
    }
}

/// See [`super::stage1::Scan`]. Panics where the CPU has no AVX2.
pub fn scan(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<Candidate>,
) {
    #[target_feature(enable = "avx2")]
    unsafe fn inner(
        tables: &Tables,
        filter: Filter,
        data: &[u8],
        from: usize,
        to: usize,
        out: &mut Vec<Candidate>,
    ) {
        // SAFETY: AVX2 is enabled here; `scan` has checked the range.
        unsafe { simd::scan::<Avx2>(&tables.doubling, filter, data, from, to, out) }
    }
    assert!(available() && simd::in_range(data, from, to));
    // SAFETY: the CPU has AVX2.
    unsafe { inner(tables, filter, data, from, to, out) }
}

pub fn available() -> bool {
    is_x86_feature_detected!("avx2")
}
