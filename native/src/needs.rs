//! How many bytes of each node of a recipe are needed: columns of little-endian u64, as they lie in
//! memory and in a file. Behind the end of a column are zeros.

use xxhash_rust::xxh3::Xxh3;

use crate::seal::ENTRY_BYTES;

const FINGERPRINT_BYTES: usize = 32;

fn items(column: &[u8]) -> impl Iterator<Item = u64> {
    column
        .chunks_exact(8)
        .filter_map(|item| item.first_chunk())
        .map(|item| u64::from_le_bytes(*item))
}

/// A bit for each item of `now`, set where it is more than that of `before`, the first in the
/// lowest bit.
pub fn more_than(now: &[u8], before: &[u8]) -> Vec<u8> {
    let mut bits = vec![0u8; (now.len() / 8).div_ceil(8)];
    let before = items(before).chain(std::iter::repeat(0));
    for (at, (now, before)) in items(now).zip(before).enumerate() {
        bits[at / 8] |= u8::from(now > before) << (at % 8);
    }
    bits
}

/// For each item of `one` the larger of it and that of `other`.
pub fn longest(one: &[u8], other: &[u8]) -> Vec<u8> {
    let other = items(other).chain(std::iter::repeat(0));
    items(one).zip(other).flat_map(|(one, other)| one.max(other).to_le_bytes()).collect()
}

/// A digest of the fingerprints of those entries of a redirection table of which any is needed.
pub fn digest_needed(entries: &[u8], lengths: &[u8], seed: u64) -> u64 {
    let mut digest = Xxh3::with_seed(seed);
    for (entry, length) in entries.chunks_exact(ENTRY_BYTES).zip(items(lengths)) {
        if length > 0 {
            digest.update(&entry[..FINGERPRINT_BYTES]);
        }
    }
    digest.digest()
}
