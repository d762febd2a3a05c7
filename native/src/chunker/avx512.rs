//! AVX-512BW, 64 streams at a time: look-ups by nibble with `vpshufb`, or bit matrices with GFNI.
//!
//! Built if the compiler has these intrinsics (Rust 1.89); the crate itself requires an older one.
#![allow(clippy::incompatible_msrv)]

use std::arch::x86_64::*;

use super::gf2::Step;
use super::simd::{self, Unit};
use super::stage1::{CutCandidate, Filter, Tables};

/// a ^ b ^ c
const XOR: i32 = 0b1001_0110;

/// The common part of the two ways to multiply.
macro_rules! common {
    () => {
        type Vector = __m512i;
        /// Masks and patterns, of low and high bytes.
        type Filter = [[__m512i; 2]; 2];
        const GROUPS: usize = 4;

        #[inline(always)]
        unsafe fn zero() -> __m512i {
            // SAFETY: the caller guarantees AVX-512.
            unsafe { _mm512_setzero_si512() }
        }

        #[inline(always)]
        unsafe fn gather(from: *const u8, stride: usize) -> __m512i {
            // SAFETY: the caller guarantees that it is readable.
            unsafe {
                let group = |n: usize| _mm_loadu_si128(from.add(n * stride).cast());
                let one = _mm512_castsi128_si512(group(0));
                let two = _mm512_inserti32x4::<1>(one, group(1));
                let three = _mm512_inserti32x4::<2>(two, group(2));
                _mm512_inserti32x4::<3>(three, group(3))
            }
        }

        #[inline(always)]
        unsafe fn store(to: *mut u8, vector: __m512i) {
            // SAFETY: the caller guarantees that it is writable.
            unsafe { _mm512_storeu_si512(to.cast(), vector) }
        }

        #[inline(always)]
        fn prefetch(address: *const u8) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        }

        #[inline(always)]
        unsafe fn interleave(a: __m512i, b: __m512i) -> [__m512i; 2] {
            // SAFETY: the caller guarantees AVX-512BW.
            unsafe { [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)] }
        }

        #[inline(always)]
        unsafe fn filter(filter: Filter) -> Self::Filter {
            [filter.mask, filter.pattern].map(|both| {
                // SAFETY: the caller guarantees AVX-512.
                both.to_le_bytes().map(|byte| unsafe { _mm512_set1_epi8(byte as i8) })
            })
        }

        #[inline(always)]
        unsafe fn matches([mask, pattern]: &Self::Filter, value: [__m512i; 2]) -> u64 {
            // SAFETY: the caller guarantees AVX-512BW.
            unsafe {
                /// (a ^ b) & c
                const DIFFERENCE: i32 = 0b0010_1000;
                let different = |n: usize| {
                    _mm512_ternarylogic_epi64::<DIFFERENCE>(value[n], pattern[n], mask[n])
                };
                let any = _mm512_or_si512(different(0), different(1));
                _mm512_testn_epi8_mask(any, any)
            }
        }
    };
}

struct Shuffle;

impl Shuffle {
    #[inline(always)]
    unsafe fn add_products(tables: &[__m512i; 4], nibbles: &[__m512i; 4], now: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512BW.
        unsafe {
            let product = |n: usize| _mm512_shuffle_epi8(tables[n], nibbles[n]);
            let half = _mm512_ternarylogic_epi64::<XOR>(now, product(0), product(1));
            _mm512_ternarylogic_epi64::<XOR>(half, product(2), product(3))
        }
    }
}

impl Unit for Shuffle {
    type Multiplier = [[__m512i; 4]; 2];
    common!();

    #[inline(always)]
    unsafe fn multiplier(step: &Step) -> Self::Multiplier {
        step.nibbles.map(|tables| {
            // SAFETY: each table is 16 bytes; the caller guarantees AVX-512BW.
            tables.map(|table| unsafe {
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()))
            })
        })
    }

    #[inline(always)]
    unsafe fn step(
        multiplier: &Self::Multiplier,
        [leaving, high]: [__m512i; 2],
        now: [__m512i; 2],
    ) -> [__m512i; 2] {
        // SAFETY: the caller guarantees AVX-512BW.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let lower = |v| _mm512_and_si512(v, mask);
            let upper = |v| _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask);
            let nibbles = [lower(leaving), upper(leaving), lower(high), upper(high)];
            [
                Self::add_products(&multiplier[0], &nibbles, now[0]),
                Self::add_products(&multiplier[1], &nibbles, now[1]),
            ]
        }
    }
}

struct Gfni;

impl Unit for Gfni {
    type Multiplier = [[__m512i; 2]; 2];
    common!();

    #[inline(always)]
    unsafe fn multiplier(step: &Step) -> Self::Multiplier {
        step.matrices.map(|row| {
            // SAFETY: the caller guarantees AVX-512.
            row.map(|matrix| unsafe { _mm512_set1_epi64(matrix as i64) })
        })
    }

    #[inline(always)]
    unsafe fn step(
        multiplier: &Self::Multiplier,
        spent: [__m512i; 2],
        now: [__m512i; 2],
    ) -> [__m512i; 2] {
        // SAFETY: the caller guarantees GFNI.
        unsafe {
            let sum = |output: usize| {
                let product = |input: usize| {
                    _mm512_gf2p8affine_epi64_epi8::<0>(spent[input], multiplier[output][input])
                };
                _mm512_ternarylogic_epi64::<XOR>(now[output], product(0), product(1))
            };
            [sum(0), sum(1)]
        }
    }
}

/// See [`super::stage1::Scan`]. Panics if the CPU has no AVX-512BW.
pub fn scan_shuffle(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<CutCandidate>,
) {
    #[target_feature(enable = "avx512f,avx512bw,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn inner(
        tables: &Tables,
        filter: Filter,
        data: &[u8],
        from: usize,
        to: usize,
        out: &mut Vec<CutCandidate>,
    ) {
        // SAFETY: AVX-512BW is enabled here; `scan_shuffle` has checked the range.
        unsafe { simd::scan::<Shuffle>(tables, filter, data, from, to, out) }
    }
    assert!(shuffle_available() && simd::in_range(data, from, to));
    // SAFETY: the CPU has AVX-512BW.
    unsafe { inner(tables, filter, data, from, to, out) }
}

/// See [`super::stage1::Scan`]. Panics if the CPU has no GFNI with AVX-512BW.
pub fn scan_gfni(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<CutCandidate>,
) {
    #[target_feature(enable = "gfni,avx512f,avx512bw,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn inner(
        tables: &Tables,
        filter: Filter,
        data: &[u8],
        from: usize,
        to: usize,
        out: &mut Vec<CutCandidate>,
    ) {
        // SAFETY: GFNI and AVX-512BW are enabled here; `scan_gfni` has checked the range.
        unsafe { simd::scan::<Gfni>(tables, filter, data, from, to, out) }
    }
    assert!(gfni_available() && simd::in_range(data, from, to));
    // SAFETY: the CPU has GFNI and AVX-512BW.
    unsafe { inner(tables, filter, data, from, to, out) }
}

pub fn shuffle_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

pub fn gfni_available() -> bool {
    shuffle_available() && is_x86_feature_detected!("gfni")
}
