//! A cheap test for data that compression would not shrink.
//!
//! Compression finds skewed bytes or repeats. So the test checks a histogram of samples, each
//! sample alone (a small compressible part of a chunk), and repeats at any distance. It returns
//! "incompressible" only if all three find nothing: a wrong "no" costs a failed attempt, a wrong
//! "yes" costs space.

/// Evenly spread samples for the histogram.
const SAMPLES: usize = 16;
const SAMPLE_BYTES: usize = 256;

/// Below this length, a trial costs no more than the test.
const LENGTH_MIN: usize = 2 * SAMPLES * SAMPLE_BYTES;

/// 256 uniform bytes have 162 ± 6 distinct values; fewer than this means structure.
const DISTINCT_MIN: usize = 140;

/// Chi-square per byte, above the value for random data, that counts as skew. Order-0 entropy is
/// below 8 bits by about 0.72 of it: 0.12 is a saving of 1 %.
const SKEW_MAX: f64 = 0.12;

/// The repeat table has one word per this number of bytes.
const STRIDE: usize = 64;
/// Stretches of `STRIDE` bytes in which every position is looked up.
const STRETCHES: usize = 32;
const TABLE_BITS: u32 = 12;
/// Bits of an entry for a position on the grid; enough for the largest chunk.
const PLACE_MASK: u32 = (1 << 18) - 1;

pub fn incompressible(data: &[u8]) -> bool {
    data.len() >= LENGTH_MIN && !is_skewed(data) && !has_repeats(data)
}

fn is_skewed(data: &[u8]) -> bool {
    let mut counts = [[0u16; 256]; 2];
    // The number of the last sample that had the byte. A bit set would be updated more slowly.
    let mut last_seen = [0u8; 256];
    let step = (data.len() - SAMPLE_BYTES) / (SAMPLES - 1);
    for index in 0..SAMPLES {
        let sample = &data[index * step..][..SAMPLE_BYTES];
        let mark = index as u8 + 1;
        for pair in sample.chunks_exact(2) {
            for (table, &byte) in counts.iter_mut().zip(pair) {
                table[usize::from(byte)] += 1;
                last_seen[usize::from(byte)] = mark;
            }
        }
        if last_seen.iter().filter(|&&seen| seen == mark).count() < DISTINCT_MIN {
            return true;
        }
    }
    let squares: u64 = (0..256)
        .map(|value| u64::from(counts[0][value]) + u64::from(counts[1][value]))
        .map(|count| count * count)
        .sum();
    let total = (SAMPLES * SAMPLE_BYTES) as f64;
    let chi_square_per_byte = 256.0 * squares as f64 / (total * total) - 1.0;
    chi_square_per_byte - 255.0 / total > SKEW_MAX
}

fn word_at(data: &[u8], position: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&data[position..position + 8]);
    u64::from_le_bytes(word)
}

/// Position in the table, and a tag from the bits of an entry that the grid position leaves free.
fn hash(word: u64) -> (usize, u32) {
    let mixed = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> (64 - TABLE_BITS)) as usize, (mixed >> 20) as u32 & !PLACE_MASK)
}

/// Searches for eight bytes that occur twice. The table has the words on the stride's grid. Every
/// position of some stretches is searched in it. So a repeat of two strides or more that covers a
/// stretch is found at any distance.
fn has_repeats(data: &[u8]) -> bool {
    const FREE: u32 = u32::MAX;
    let words = data.len() - 7;
    if words / STRIDE >= PLACE_MASK as usize {
        return true;
    }
    let mut table = [FREE; 1 << TABLE_BITS];
    for place in 0..words.div_ceil(STRIDE) {
        let (slot, tag) = hash(word_at(data, place * STRIDE));
        table[slot] = tag | place as u32;
    }
    let step = (words - STRIDE) / (STRETCHES - 1);
    (0..STRETCHES).any(|index| {
        let start = index * step;
        (start..start + STRIDE).any(|position| {
            let word = word_at(data, position);
            let (slot, tag) = hash(word);
            let entry = table[slot];
            // The tag excludes nearly all other words without reading the data.
            if entry & !PLACE_MASK != tag || entry == FREE {
                return false;
            }
            let other = (entry & PLACE_MASK) as usize * STRIDE;
            other != position && word_at(data, other) == word
        })
    })
}
