//! The attribute of a stub (docs/format.md, "Stub"); `dedupd/format/stub.py` says the same in Python.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::bytes::{u32_at, u64_at};

pub const STUB_FORMAT: u8 = 1;
pub const STUB_BYTES: usize = 48;
/// Of a fingerprint in a stub.
pub const DIGEST_BYTES: usize = 16;
pub const CHECK_AT: std::ops::Range<usize> = 4..8;
pub const FLAGS_AT: usize = 1;
pub const COVERED_AT: usize = 32;
pub const COMMITTING: u8 = 1;
/// The stub names a chunk, and no recipe.
pub const DIRECT: u8 = 4;

/// What the attribute of a stub says, but for the ranges that are local.
pub struct StubHead {
    pub flags: u8,
    pub local_count: u16,
    pub recipe: u64,
    pub digest: [u8; DIGEST_BYTES],
    pub covered: u64,
}

impl StubHead {
    /// The start of the fingerprint that the stub names, as recipes keep it.
    pub fn check(&self) -> u32 {
        u32_at(&self.digest, 0)
    }
}

/// What a sound attribute says; None where it is not that of a stub of this volume.
pub fn stub_head(value: &[u8], seed: u64) -> Option<StubHead> {
    const RANGE_BYTES: usize = 16;
    let (head, ranges) = value.split_at_checked(STUB_BYTES)?;
    let local_count = u16::from_le_bytes([head[2], head[3]]);
    if head[0] != STUB_FORMAT || ranges.len() != usize::from(local_count) * RANGE_BYTES {
        return None;
    }
    let mut blank = value.to_vec();
    blank[CHECK_AT].fill(0);
    let is_sound = u32_at(head, CHECK_AT.start) == xxh3_64_with_seed(&blank, seed) as u32;
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(&head[16..COVERED_AT]);
    let (recipe, covered) = (u64_at(head, 8), u64_at(head, COVERED_AT));
    is_sound.then_some(StubHead { flags: head[FLAGS_AT], local_count, recipe, digest, covered })
}

/// Whether `value` is the sound attribute of a stub of `size` bytes in the store, all of them, and
/// in the midst of nothing.
pub fn is_settled_stub(value: &[u8], size: i64, seed: u64) -> bool {
    stub_head(value, seed).is_some_and(|stub| {
        stub.local_count == 0
            && stub.flags & !DIRECT == 0
            && i64::try_from(stub.covered).is_ok_and(|covered| covered >= size)
    })
}
