//! AVX-512BW, 64 positions at a time: look-ups by nibble with `vpshufb`, or bit matrices with GFNI.
//!
//! Built where the compiler has these intrinsics (Rust 1.89); the crate itself asks for less.
#![allow(clippy::incompatible_msrv)]

use std::arch::x86_64::*;

use super::gf2::Doubling;
use super::simd::{self, Unit};
use super::stage1::{Candidate, Filter, Tables};

/// a ^ b ^ c
const XOR: i32 = 0b1001_0110;

#[inline(always)]
unsafe fn matching_lanes(vector: __m512i, mask: u8, pattern: u8) -> u64 {
    // SAFETY: the caller vouches for AVX-512BW.
    unsafe {
        let masked = _mm512_and_si512(vector, _mm512_set1_epi8(mask as i8));
        _mm512_cmpeq_epi8_mask(masked, _mm512_set1_epi8(pattern as i8))
    }
}

struct Shuffle;

impl Shuffle {
    /// Nibbles of both bytes, lowest first.
    #[inline(always)]
    unsafe fn nibbles([low, high]: [__m512i; 2]) -> [__m512i; 4] {
        // SAFETY: the caller vouches for AVX-512BW.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let lower = |v| _mm512_and_si512(v, mask);
            let upper = |v| _mm512_and_si512(_mm512_srli_epi16::<4>(v), mask);
            [lower(low), upper(low), lower(high), upper(high)]
        }
    }

    #[inline(always)]
    unsafe fn add_products(tables: &[__m512i; 4], nibbles: &[__m512i; 4], now: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512BW.
        unsafe {
            let product = |n: usize| _mm512_shuffle_epi8(tables[n], nibbles[n]);
            let half = _mm512_ternarylogic_epi64::<XOR>(now, product(0), product(1));
            _mm512_ternarylogic_epi64::<XOR>(half, product(2), product(3))
        }
    }
}

impl Unit for Shuffle {
    type Vector = __m512i;
    type Multiplier = [[__m512i; 4]; 2];
    const LANES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: readable by the caller's word.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m512i) {
        // SAFETY: writable by the caller's word.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn multiplier(doubling: &Doubling, k: usize) -> Self::Multiplier {
        doubling.nibbles[k].map(|tables| {
            // SAFETY: each table is 16 bytes; the caller vouches for AVX-512BW.
            tables.map(|table| unsafe {
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()))
            })
        })
    }

    #[inline(always)]
    unsafe fn step(
        multiplier: &Self::Multiplier,
        before: [__m512i; 2],
        now: [__m512i; 2],
    ) -> [__m512i; 2] {
        // SAFETY: the caller vouches for AVX-512BW.
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
        before: [__m512i; 2],
        now: __m512i,
    ) -> __m512i {
        // SAFETY: the caller vouches for AVX-512BW.
        unsafe { Self::add_products(&multiplier[OUTPUT], &Self::nibbles(before), now) }
    }

    #[inline(always)]
    unsafe fn matches(vector: __m512i, mask: u8, pattern: u8) -> u64 {
        // SAFETY: the caller vouches for AVX-512BW.
        unsafe { matching_lanes(vector, mask, pattern) }
    }
}

struct Gfni;

impl Unit for Gfni {
    type Vector = __m512i;
    type Multiplier = [[__m512i; 2]; 2];
    const LANES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: readable by the caller's word.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m512i) {
        // SAFETY: writable by the caller's word.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn multiplier(doubling: &Doubling, k: usize) -> Self::Multiplier {
        doubling.matrices[k].map(|row| {
            // SAFETY: the caller vouches for AVX-512.
            row.map(|matrix| unsafe { _mm512_set1_epi64(matrix as i64) })
        })
    }

    #[inline(always)]
    unsafe fn step(
        multiplier: &Self::Multiplier,
        before: [__m512i; 2],
        now: [__m512i; 2],
    ) -> [__m512i; 2] {
        // SAFETY: the caller vouches for GFNI.
        unsafe {
            [
                Self::step_byte::<0>(multiplier, before, now[0]),
                Self::step_byte::<1>(multiplier, before, now[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn step_byte<const OUTPUT: usize>(
        multiplier: &Self::Multiplier,
        before: [__m512i; 2],
        now: __m512i,
    ) -> __m512i {
        // SAFETY: the caller vouches for GFNI.
        unsafe {
            let product = |input: usize| {
                _mm512_gf2p8affine_epi64_epi8::<0>(before[input], multiplier[OUTPUT][input])
            };
            _mm512_ternarylogic_epi64::<XOR>(now, product(0), product(1))
        }
    }

    #[inline(always)]
    unsafe fn matches(vector: __m512i, mask: u8, pattern: u8) -> u64 {
        // SAFETY: the caller vouches for AVX-512BW.
        unsafe { matching_lanes(vector, mask, pattern) }
    }
}

/// See [`super::stage1::Scan`]. Panics where the CPU has no AVX-512BW.
pub fn scan_shuffle(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<Candidate>,
) {
    #[target_feature(enable = "avx512f,avx512bw,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn inner(
        tables: &Tables,
        filter: Filter,
        data: &[u8],
        from: usize,
        to: usize,
        out: &mut Vec<Candidate>,
    ) {
        // SAFETY: AVX-512BW is enabled here; `scan_shuffle` has checked the range.
        unsafe { simd::scan::<Shuffle>(&tables.doubling, filter, data, from, to, out) }
    }
    assert!(shuffle_available() && simd::in_range(data, from, to));
    // SAFETY: the CPU has AVX-512BW.
    unsafe { inner(tables, filter, data, from, to, out) }
}

/// See [`super::stage1::Scan`]. Panics where the CPU has no GFNI with AVX-512BW.
pub fn scan_gfni(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<Candidate>,
) {
    #[target_feature(enable = "gfni,avx512f,avx512bw,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn inner(
        tables: &Tables,
        filter: Filter,
        data: &[u8],
        from: usize,
        to: usize,
        out: &mut Vec<Candidate>,
    ) {
        // SAFETY: GFNI and AVX-512BW are enabled here; `scan_gfni` has checked the range.
        unsafe { simd::scan::<Gfni>(&tables.doubling, filter, data, from, to, out) }
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
