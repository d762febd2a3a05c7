//! Stage 1 by doubling, for any vector unit.
//!
//! The fingerprint of a window of 2w bytes is F(i) + x^(8w)·F(i-w) of the window of w bytes. All
//! positions of a block go through the five doublings together. A block's fingerprints are held as
//! two planes, one of low bytes and one of high bytes, so that multiplying by a constant is a
//! look-up per nibble, or a bit matrix per byte, on whole vectors.
//!
//! Each doubling needs the window's length more of history than the next. So the first one starts
//! 60 positions before the block, and each pass writes its result in place, shifted down by the
//! history that it used up: a plane is always read at and above the place where it is written.

use std::mem::MaybeUninit;

use super::gf2::{DOUBLINGS, Doubling, WINDOW};
use super::stage1::{Candidate, Filter};

/// One vector unit. All methods need its instructions: callers vouch for them.
pub trait Unit {
    type Vector: Copy;
    /// Multiplication by the constant of one doubling, ready for use.
    type Multiplier: Copy;
    const LANES: usize;

    /// # Safety
    /// `LANES` bytes are readable at `from`.
    unsafe fn load(from: *const u8) -> Self::Vector;
    /// # Safety
    /// `LANES` bytes are writable at `to`.
    unsafe fn store(to: *mut u8, vector: Self::Vector);
    /// Asks for the cache line of an address, which need not be valid.
    fn prefetch(address: *const u8);
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn multiplier(doubling: &Doubling, k: usize) -> Self::Multiplier;
    /// Both bytes of `now + multiplier·before`; arguments are (low bytes, high bytes).
    ///
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn step(
        multiplier: &Self::Multiplier,
        before: [Self::Vector; 2],
        now: [Self::Vector; 2],
    ) -> [Self::Vector; 2];
    /// Byte `OUTPUT` alone of what `step` computes.
    ///
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn step_byte<const OUTPUT: usize>(
        multiplier: &Self::Multiplier,
        before: [Self::Vector; 2],
        now: Self::Vector,
    ) -> Self::Vector;
    /// Bit per lane: `vector & mask == pattern`.
    ///
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn matches(vector: Self::Vector, mask: u8, pattern: u8) -> u64;
}

/// Positions per block plus history: small enough that planes and data stay in L1.
const PLANE: usize = 4096;

/// The first doubling, from 2 to 4 bytes, starts this far before the block.
const HISTORY: usize = WINDOW - 4;

/// The longest vector, and the slack that lets the last vector of a pass run over.
const LANES_MAX: usize = 64;
const LANES_MIN: usize = 32;

/// Positions that one block decides.
pub const BLOCK: usize = PLANE - LANES_MAX;

/// A pass reads its plane up to half a window and a vector beyond what it writes.
const PLANE_ROOM: usize = PLANE + 2 * LANES_MAX;

#[repr(C, align(64))]
struct Planes {
    low: [u8; PLANE_ROOM],
    high: [u8; PLANE_ROOM],
}

/// What every stage 1 demands of its range.
pub fn in_range(data: &[u8], from: usize, to: usize) -> bool {
    WINDOW - 1 <= from && from <= to && to <= data.len()
}

/// Appends the candidates at positions `from..to` of `data` in order.
///
/// # Safety
/// The unit's instructions are available, and `63 <= from <= to <= data.len()`.
#[inline(always)]
pub unsafe fn scan<U: Unit>(
    doubling: &Doubling,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<Candidate>,
) {
    let mut planes = MaybeUninit::<Planes>::uninit();
    let mut at = from;
    while at < to {
        let positions = (to - at).min(BLOCK);
        let window = at + 1 - WINDOW;
        let next = data.as_ptr().wrapping_add(at + positions);
        // The first pass reads whole vectors from three bytes after the window's start.
        let reads = 3 + (positions + HISTORY).next_multiple_of(U::LANES);
        if let Some(source) = data.get(window..window + reads) {
            // SAFETY: `source` has the bytes that the passes read; `planes` is filled by them.
            unsafe {
                passes::<U>(doubling, source.as_ptr(), planes.as_mut_ptr(), positions, next);
                survivors::<U>(doubling, filter, planes.as_ptr(), at, positions, out);
            }
        } else {
            let mut padded = [0u8; PLANE_ROOM];
            let source = &data[window..at + positions];
            padded[..source.len()].copy_from_slice(source);
            // SAFETY: as above; `reads` is below PLANE_ROOM.
            unsafe {
                passes::<U>(doubling, padded.as_ptr(), planes.as_mut_ptr(), positions, next);
                survivors::<U>(doubling, filter, planes.as_ptr(), at, positions, out);
            }
        }
        at += positions;
    }
}

/// All doublings but the last: leaves the fingerprints of 32-byte windows in `planes`, beginning
/// 32 positions before the block. Meanwhile it fetches the block at `next`: only the first pass
/// reads the source, too fast for the memory's own read-ahead, and the others leave it idle.
///
/// # Safety
/// As for `scan`; `source` has the bytes that `scan` counted, its first is that of the first window.
#[inline(always)]
unsafe fn passes<U: Unit>(
    doubling: &Doubling,
    source: *const u8,
    planes: *mut Planes,
    positions: usize,
    next: *const u8,
) {
    // SAFETY: pass k reads below positions + HISTORY + LANES_MAX, which fits PLANE_ROOM. Beyond the
    // first pass's last vector these bytes belong to no position that counts, but they must not be
    // uninitialised; so that pass is followed by a vector of zeros.
    unsafe {
        let low = (&raw mut (*planes).low).cast::<u8>();
        let high = (&raw mut (*planes).high).cast::<u8>();
        let multiplier = U::multiplier(doubling, 0);
        let count = positions + HISTORY;
        let mut index = 0;
        while index < count {
            let byte = |back: usize| U::load(source.add(index + 3 - back));
            let [l, h] = U::step(&multiplier, [byte(2), byte(3)], [byte(0), byte(1)]);
            U::store(low.add(index), l);
            U::store(high.add(index), h);
            index += U::LANES;
        }
        low.add(index).write_bytes(0, U::LANES);
        high.add(index).write_bytes(0, U::LANES);
        for k in 1..DOUBLINGS - 1 {
            let multiplier = U::multiplier(doubling, k);
            let window = 2 << k;
            let count = positions + WINDOW - 2 * window;
            let mut index = 0;
            while index < count {
                if k == 1 {
                    U::prefetch(next.wrapping_add(index));
                }
                let plane = |from: *mut u8, back: usize| U::load(from.add(index + window - back));
                let before = [plane(low, window), plane(high, window)];
                let [l, h] = U::step(&multiplier, before, [plane(low, 0), plane(high, 0)]);
                U::store(low.add(index), l);
                U::store(high.add(index), h);
                index += U::LANES;
            }
        }
    }
}

/// The last doubling: its low byte for all positions; its high byte only where the low one matches.
///
/// # Safety
/// As for `passes`, which has filled `planes`.
#[inline(always)]
unsafe fn survivors<U: Unit>(
    doubling: &Doubling,
    filter: Filter,
    planes: *const Planes,
    at: usize,
    positions: usize,
    out: &mut Vec<Candidate>,
) {
    const WINDOW_BEFORE: usize = WINDOW / 2;
    let [mask_low, mask_high] = filter.mask.to_le_bytes();
    let [pattern_low, pattern_high] = filter.pattern.to_le_bytes();
    let mut hits = [const { MaybeUninit::<(u16, u64)>::uninit() }; PLANE / LANES_MIN];
    let mut hit_count = 0;
    // SAFETY: indices as in `passes`; the first `hit_count` hits are written.
    unsafe {
        let low = (&raw const (*planes).low).cast::<u8>();
        let high = (&raw const (*planes).high).cast::<u8>();
        let multiplier = U::multiplier(doubling, DOUBLINGS - 1);
        let mut index = 0;
        while index < positions {
            let before = [U::load(low.add(index)), U::load(high.add(index))];
            let now = U::load(low.add(index + WINDOW_BEFORE));
            let value = U::step_byte::<0>(&multiplier, before, now);
            let lanes = U::matches(value, mask_low, pattern_low);
            // One vector in four has a hit: branching here would cost more than it saves.
            hits[hit_count].write((index as u16, lanes));
            hit_count += usize::from(lanes != 0);
            index += U::LANES;
        }
        let mut bytes = [[0u8; LANES_MAX]; 2];
        for hit in &hits[..hit_count] {
            let (index, lanes) = hit.assume_init();
            let index = usize::from(index);
            let before = [U::load(low.add(index)), U::load(high.add(index))];
            let now = [low, high].map(|plane| U::load(plane.add(index + WINDOW_BEFORE)));
            let value_high = U::step_byte::<1>(&multiplier, before, now[1]);
            let mut lanes = lanes & U::matches(value_high, mask_high, pattern_high);
            if lanes == 0 {
                continue;
            }
            let value_low = U::step_byte::<0>(&multiplier, before, now[0]);
            U::store(bytes[0].as_mut_ptr(), value_low);
            U::store(bytes[1].as_mut_ptr(), value_high);
            while lanes != 0 {
                let lane = lanes.trailing_zeros() as usize;
                lanes &= lanes - 1;
                if index + lane < positions {
                    let value = u16::from_le_bytes([bytes[0][lane], bytes[1][lane]]);
                    out.push(Candidate { position: at + index + lane, value });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage1::Tables;
    use super::super::{gf2::Field, scalar};
    use super::*;

    /// `gf2p8affineqb` as Intel's manual defines it, on plain bytes.
    struct EmulatedGfni;

    fn affine_byte(matrix: u64, byte: u8) -> u8 {
        let rows = matrix.to_le_bytes();
        (0..8).fold(0, |out, i| out | (((rows[7 - i] & byte).count_ones() & 1) as u8) << i)
    }

    impl Unit for EmulatedGfni {
        type Vector = [u8; 64];
        type Multiplier = [[u64; 2]; 2];
        const LANES: usize = 64;

        unsafe fn load(from: *const u8) -> [u8; 64] {
            unsafe { from.cast::<[u8; 64]>().read_unaligned() }
        }
        unsafe fn store(to: *mut u8, vector: [u8; 64]) {
            unsafe { to.cast::<[u8; 64]>().write_unaligned(vector) }
        }
        fn prefetch(_address: *const u8) {}
        unsafe fn multiplier(doubling: &Doubling, k: usize) -> [[u64; 2]; 2] {
            doubling.matrices[k]
        }
        unsafe fn step(
            multiplier: &[[u64; 2]; 2],
            before: [[u8; 64]; 2],
            now: [[u8; 64]; 2],
        ) -> [[u8; 64]; 2] {
            unsafe {
                [
                    Self::step_byte::<0>(multiplier, before, now[0]),
                    Self::step_byte::<1>(multiplier, before, now[1]),
                ]
            }
        }
        unsafe fn step_byte<const OUTPUT: usize>(
            multiplier: &[[u64; 2]; 2],
            before: [[u8; 64]; 2],
            now: [u8; 64],
        ) -> [u8; 64] {
            std::array::from_fn(|lane| {
                now[lane]
                    ^ affine_byte(multiplier[OUTPUT][0], before[0][lane])
                    ^ affine_byte(multiplier[OUTPUT][1], before[1][lane])
            })
        }
        unsafe fn matches(vector: [u8; 64], mask: u8, pattern: u8) -> u64 {
            (0..64).fold(0, |out, i| out | u64::from(vector[i] & mask == pattern) << i)
        }
    }

    #[test]
    fn emulated_gfni_agrees_with_the_rolling_loop() {
        let data = super::super::select::noise(20_000);
        for polynomial in [0x16d43, 0x1002d, 0x1172d] {
            let tables = Tables::new(Field::new(polynomial).unwrap());
            for (bits, pattern) in [(2, 3), (8, 0x6b), (12, 0xb6b)] {
                let filter = Filter::new(bits, pattern);
                for (from, to) in [(63, 20_000), (63, 64), (100, 100), (77, 5001), (4000, 12_000)] {
                    let (mut expected, mut found) = (Vec::new(), Vec::new());
                    scalar::scan(&tables, filter, &data, from, to, &mut expected);
                    unsafe {
                        scan::<EmulatedGfni>(&tables.doubling, filter, &data, from, to, &mut found)
                    };
                    assert_eq!(expected, found);
                }
            }
        }
    }
}
