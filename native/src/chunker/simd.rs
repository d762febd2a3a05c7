//! Stage 1 in the lanes of a vector unit.
//!
//! A block of positions is split into one stream per byte of a vector. Each stream is a stretch of
//! the data, and the rolling loop runs over all streams at once: lane n of a vector belongs to
//! stream n. A step is two multiplications by constants: by x^8, which moves the high byte out at
//! the top, and of the byte that leaves the window. A constant times a byte is a look-up per
//! nibble, or a bit matrix, on entire vectors. Bytes of the same offset in all streams have to meet
//! in one vector, so the bytes of 16 steps are transposed at a time.
//!
//! Streams start with an empty window 64 bytes before their first position.

use std::mem::MaybeUninit;

use super::gf2::{Step, WINDOW};
use super::scalar;
use super::stage1::{CutCandidate, Filter, Tables};

/// One vector unit. All methods need its instructions, which callers guarantee.
pub trait Unit {
    type Vector: Copy;
    /// The constants of a step, prepared for use.
    type Multiplier: Copy;
    /// The operands of `matches`, prepared for use.
    type Filter: Copy;
    /// Number of 16-byte pieces in a vector.
    const GROUPS: usize;

    /// # Safety
    /// The unit's instructions are available.
    unsafe fn zero() -> Self::Vector;
    /// 16 bytes from each of `GROUPS` places, `stride` bytes apart.
    ///
    /// # Safety
    /// The bytes are readable.
    unsafe fn gather(from: *const u8, stride: usize) -> Self::Vector;
    /// # Safety
    /// `LANES_MAX` bytes are writable at `to`.
    unsafe fn store(to: *mut u8, vector: Self::Vector);
    /// Prefetches the cache line of an address, which need not be valid.
    fn prefetch(address: *const u8);
    /// Bytes of `a` and `b` alternating, in each group: its lower half, and its upper half.
    ///
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn interleave(a: Self::Vector, b: Self::Vector) -> [Self::Vector; 2];
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn multiplier(step: &Step) -> Self::Multiplier;
    /// Low and high bytes of the next fingerprint: `spent` is (leaving byte, high byte before),
    /// `now` is (entering byte, low byte before).
    ///
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn step(
        multiplier: &Self::Multiplier,
        spent: [Self::Vector; 2],
        now: [Self::Vector; 2],
    ) -> [Self::Vector; 2];
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn filter(filter: Filter) -> Self::Filter;
    /// One bit per lane: set if the fingerprint passes the filter.
    ///
    /// # Safety
    /// The unit's instructions are available.
    unsafe fn matches(filter: &Self::Filter, value: [Self::Vector; 2]) -> u64;
}

/// Number of steps that are transposed together: the bytes of a group.
const STEPS: usize = 16;
const LANES_MAX: usize = 64;

/// Positions per scan. Each stream has to warm up over 64 bytes, which is a quarter of its scan in
/// a large block, and four times its scan in a small one. But scanning positions after a cut is
/// wasted work. The sizes are constants, so that the places of the streams are constants too.
pub const BLOCK: usize = 16 << 10;
pub const MEDIUM: usize = 4 << 10;
const SMALL: usize = 1 << 10;

/// The rolling loop scans fewer positions than this.
const VECTOR_POSITIONS_MIN: usize = 96;

/// Asserts the conditions of every stage 1 for its range.
pub fn in_range(data: &[u8], from: usize, to: usize) -> bool {
    WINDOW - 1 <= from && from <= to && to <= data.len()
}

/// Appends the candidates at positions `from..to` of `data` in order.
///
/// # Safety
/// The unit's instructions are available, and `63 <= from <= to <= data.len()`.
#[inline(always)]
pub unsafe fn scan<U: Unit>(
    tables: &Tables,
    filter: Filter,
    data: &[u8],
    from: usize,
    to: usize,
    out: &mut Vec<CutCandidate>,
) {
    let mut hits = Hits::new();
    let mut at = from;
    if at == WINDOW - 1 && at < to {
        // Streams start one byte before their first window.
        scalar::scan(tables, filter, data, at, at + 1, out);
        at += 1;
    }
    while to - at >= SMALL {
        // SAFETY: data reaches from 64 bytes before `at` to the block's end.
        let positions = unsafe {
            let first = data.as_ptr().add(at);
            match to - at {
                BLOCK.. => block::<U, BLOCK>(&tables.step, filter, first, &mut hits),
                MEDIUM.. => block::<U, MEDIUM>(&tables.step, filter, first, &mut hits),
                _ => block::<U, SMALL>(&tables.step, filter, first, &mut hits),
            }
        };
        hits.drain(at, at, out);
        at += positions;
    }
    if to - at >= VECTOR_POSITIONS_MIN && to >= WINDOW + SMALL {
        // The last block overlaps the one before: positions before `at` are already known.
        let start = to - SMALL;
        // SAFETY: as above.
        unsafe {
            block::<U, SMALL>(&tables.step, filter, data.as_ptr().add(start), &mut hits);
        }
        hits.drain(start, at, out);
    } else {
        scalar::scan(tables, filter, data, at, to, out);
    }
}

/// Transposed bytes of all streams, in the window and entering it: a ring with one more batch of
/// steps than the window has.
#[repr(C, align(64))]
struct Recent<V>([[V; STEPS]; BATCHES]);

const BATCHES: usize = WINDOW / STEPS + 1;

/// Finds the candidates among `POSITIONS` positions from `first` on; returns their number.
///
/// # Safety
/// The unit's instructions are available. `POSITIONS` is a multiple of lanes times `STEPS`, and at
/// most `BLOCK`. Data is readable from 64 bytes before `first` to `POSITIONS` after it.
#[inline(always)]
unsafe fn block<U: Unit, const POSITIONS: usize>(
    step: &Step,
    filter: Filter,
    first: *const u8,
    hits: &mut Hits,
) -> usize {
    let lanes = 16 * U::GROUPS;
    let stride = POSITIONS / lanes;
    // SAFETY: the last stream starts at (lanes - 1)·stride, and is read to `stride` beyond. A batch
    // of `recent` is filled before it is used.
    unsafe {
        let multiplier = U::multiplier(step);
        let filter = U::filter(filter);
        let mut recent = MaybeUninit::<Recent<U::Vector>>::uninit();
        let recent = (&raw mut (*recent.as_mut_ptr()).0).cast::<[U::Vector; STEPS]>();
        let window = first.sub(WINDOW);
        let none = U::zero();
        let mut state = [none; 2];
        for batch in 0..BATCHES - 1 {
            let bytes = recent.add(batch);
            transpose::<U>(window.add(batch * STEPS), stride, bytes);
            for turn in 0..STEPS {
                state = U::step(&multiplier, [none, state[1]], [(*bytes)[turn], state[0]]);
            }
        }
        let mut newest = BATCHES - 1;
        let mut offset = 0;
        while offset < stride {
            let oldest = if newest + 1 == BATCHES { 0 } else { newest + 1 };
            let (entering, leaving) = (recent.add(newest), recent.add(oldest));
            transpose::<U>(first.add(offset), stride, entering);
            // Prefetch the next block, a part in each round.
            for line in 0..U::GROUPS * STEPS / 4 {
                U::prefetch(first.wrapping_add(POSITIONS + offset * lanes + 64 * line));
            }
            for turn in 0..STEPS {
                let spent = [(*leaving)[turn], state[1]];
                state = U::step(&multiplier, spent, [(*entering)[turn], state[0]]);
                let found = U::matches(&filter, state);
                if found != 0 {
                    let mut values = [[0; LANES_MAX]; 2];
                    U::store(values[0].as_mut_ptr(), state[0]);
                    U::store(values[1].as_mut_ptr(), state[1]);
                    hits.add(found, &values, offset + turn, stride);
                }
            }
            newest = oldest;
            offset += STEPS;
        }
    }
    POSITIONS
}

/// The next 16 bytes of each stream, one vector per offset. Lane n belongs to stream n: row r of
/// group g comes from stream 16·g + r.
///
/// # Safety
/// The unit's instructions are available; all streams are readable, and `out` is writable.
#[inline(always)]
unsafe fn transpose<U: Unit>(first: *const u8, stride: usize, out: *mut [U::Vector; STEPS]) {
    // Interleaving rows r and r + 8 for all r rotates the eight bits of (row, column) by one. Four
    // rounds exchange rows and columns. Two rounds use four rows at a time. SAFETY: the caller
    // guarantees it.
    unsafe {
        let row = |row: usize| U::gather(first.add(row * stride), 16 * stride);
        let a = two_rounds::<U>([row(0), row(4), row(8), row(12)]);
        let b = two_rounds::<U>([row(1), row(5), row(9), row(13)]);
        let c = two_rounds::<U>([row(2), row(6), row(10), row(14)]);
        let d = two_rounds::<U>([row(3), row(7), row(11), row(15)]);
        [(*out)[0], (*out)[1], (*out)[2], (*out)[3]] = two_rounds::<U>([a[0], b[0], c[0], d[0]]);
        [(*out)[4], (*out)[5], (*out)[6], (*out)[7]] = two_rounds::<U>([a[1], b[1], c[1], d[1]]);
        [(*out)[8], (*out)[9], (*out)[10], (*out)[11]] = two_rounds::<U>([a[2], b[2], c[2], d[2]]);
        [(*out)[12], (*out)[13], (*out)[14], (*out)[15]] =
            two_rounds::<U>([a[3], b[3], c[3], d[3]]);
    }
}

/// # Safety
/// The unit's instructions are available.
#[inline(always)]
unsafe fn two_rounds<U: Unit>([a, b, c, d]: [U::Vector; 4]) -> [U::Vector; 4] {
    // SAFETY: the caller guarantees it.
    unsafe {
        let [a, c] = U::interleave(a, c);
        let [b, d] = U::interleave(b, d);
        let [first, second] = U::interleave(a, b);
        let [third, fourth] = U::interleave(c, d);
        [first, second, third, fourth]
    }
}

/// Candidates of a block: streams find them in parallel, but the caller needs them in order.
struct Hits {
    /// One bit per word of `positions` that has a bit.
    words: [u64; BLOCK / 64 / 64],
    /// One bit per position.
    positions: [u64; BLOCK / 64],
    values: [MaybeUninit<u16>; BLOCK],
}

impl Hits {
    fn new() -> Hits {
        Hits {
            words: [0; BLOCK / 64 / 64],
            positions: [0; BLOCK / 64],
            values: [const { MaybeUninit::uninit() }; BLOCK],
        }
    }

    /// Adds the candidates of `lanes` at `offset` of each stream.
    #[cold]
    #[inline(never)]
    fn add(&mut self, lanes: u64, bytes: &[[u8; LANES_MAX]; 2], offset: usize, stride: usize) {
        for lane in ones(lanes) {
            let position = lane * stride + offset;
            let word = position / 64;
            self.words[word / 64] |= 1 << (word % 64);
            self.positions[word] |= 1 << (position % 64);
            self.values[position].write(u16::from_le_bytes([bytes[0][lane], bytes[1][lane]]));
        }
    }

    /// Moves to `out` the candidates in the block at `start`, from position `from` on.
    fn drain(&mut self, start: usize, from: usize, out: &mut Vec<CutCandidate>) {
        for index in 0..self.words.len() {
            for word in ones(std::mem::take(&mut self.words[index])).map(|bit| 64 * index + bit) {
                for bit in ones(std::mem::take(&mut self.positions[word])) {
                    let position = 64 * word + bit;
                    if start + position >= from {
                        // SAFETY: `add` has written the values of all positions with a bit.
                        let value = unsafe { self.values[position].assume_init() };
                        out.push(CutCandidate { position: start + position, value });
                    }
                }
            }
        }
    }
}

/// Positions of the bits that are set, from the lowest.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (word != 0).then_some(word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::super::gf2::Field;
    use super::*;

    /// `gf2p8affineqb` as Intel's manual defines it, on plain bytes.
    struct EmulatedGfni;

    fn affine(matrix: u64, bytes: [u8; 64]) -> [u8; 64] {
        let rows = matrix.to_le_bytes();
        bytes.map(|byte| {
            (0..8).fold(0, |out, i| out | (((rows[7 - i] & byte).count_ones() & 1) as u8) << i)
        })
    }

    impl Unit for EmulatedGfni {
        type Vector = [u8; 64];
        type Multiplier = [[u64; 2]; 2];
        type Filter = Filter;
        const GROUPS: usize = 4;

        unsafe fn zero() -> [u8; 64] {
            [0; 64]
        }
        unsafe fn gather(from: *const u8, stride: usize) -> [u8; 64] {
            // SAFETY: as for the trait: all bytes are readable.
            std::array::from_fn(|lane| unsafe { *from.add(lane / 16 * stride + lane % 16) })
        }
        unsafe fn store(to: *mut u8, vector: [u8; 64]) {
            // SAFETY: as for the trait: `to` has room.
            unsafe { to.cast::<[u8; 64]>().write_unaligned(vector) }
        }
        fn prefetch(_address: *const u8) {}
        unsafe fn interleave(a: [u8; 64], b: [u8; 64]) -> [[u8; 64]; 2] {
            [0, 8].map(|half| {
                std::array::from_fn(|lane| {
                    let source = if lane % 2 == 0 { a } else { b };
                    source[lane / 16 * 16 + half + lane % 16 / 2]
                })
            })
        }
        unsafe fn multiplier(step: &Step) -> [[u64; 2]; 2] {
            step.matrices
        }
        unsafe fn step(
            multiplier: &[[u64; 2]; 2],
            spent: [[u8; 64]; 2],
            now: [[u8; 64]; 2],
        ) -> [[u8; 64]; 2] {
            std::array::from_fn(|output| {
                let products: [_; 2] =
                    std::array::from_fn(|i| affine(multiplier[output][i], spent[i]));
                std::array::from_fn(|lane| {
                    now[output][lane] ^ products[0][lane] ^ products[1][lane]
                })
            })
        }
        unsafe fn filter(filter: Filter) -> Filter {
            filter
        }
        unsafe fn matches(filter: &Filter, [low, high]: [[u8; 64]; 2]) -> u64 {
            let value = |lane: usize| u16::from_le_bytes([low[lane], high[lane]]);
            (0..64).fold(0, |out, lane| out | u64::from(filter.matches(value(lane))) << lane)
        }
    }

    #[test]
    fn emulated_gfni_agrees_with_the_rolling_loop() {
        let data = super::super::noise::noise(40_000);
        for polynomial in [0x16d43, 0x1002d, 0x1172d] {
            let tables = Tables::new(Field::new(polynomial).unwrap());
            for (bits, pattern) in [(2, 3), (8, 0x6b), (12, 0xb6b)] {
                let filter = Filter::new(bits, pattern);
                let ranges =
                    [(63, 40_000), (63, 64), (63, 63), (100, 100), (77, 5001), (4000, 12_000)];
                for (from, to) in ranges {
                    let (mut expected, mut found) = (Vec::new(), Vec::new());
                    scalar::scan(&tables, filter, &data, from, to, &mut expected);
                    // SAFETY: it needs no CPU feature.
                    unsafe { scan::<EmulatedGfni>(&tables, filter, &data, from, to, &mut found) };
                    assert_eq!(expected, found);
                }
            }
        }
    }
}
