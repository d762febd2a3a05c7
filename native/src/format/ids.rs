//! Names of records and of their bytes: ids, fingerprints, checksums (docs/design/format.md,
//! "Ids").

use crate::format::bytes::Field;

/// The number of a container, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerNumber(pub u32);

/// Names a record: the number of its container in the upper 32 bits, its ordinal in the lower 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

impl RecordId {
    /// Means zeros: container numbers start at 1.
    pub const HOLE: RecordId = RecordId(0);

    #[inline]
    pub const fn new(container: ContainerNumber, ordinal: u32) -> RecordId {
        RecordId((container.0 as u64) << 32 | ordinal as u64)
    }

    #[inline]
    pub const fn container(self) -> ContainerNumber {
        ContainerNumber((self.0 >> 32) as u32)
    }

    #[inline]
    pub const fn ordinal(self) -> u32 {
        self.0 as u32
    }

    /// The ordinal, as the index in a list of all records of the container.
    #[inline]
    pub const fn place(self) -> usize {
        self.ordinal() as usize
    }

    /// The id of the record `count` ordinals later.
    #[inline]
    pub const fn plus(self, count: u64) -> RecordId {
        RecordId(self.0 + count)
    }

    #[inline]
    pub const fn is_hole(self) -> bool {
        self.0 == 0
    }
}

/// XXH3-64 of a stored payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub u64);

pub const FINGERPRINT_BYTES: usize = 32;

/// BLAKE3 or SHA-256 of the bytes of a chunk.
pub type Fingerprint = [u8; FINGERPRINT_BYTES];

/// Size of the half of its recipe's fingerprint that a stub has.
pub const DIGEST_BYTES: usize = 16;

/// The first four bytes of a fingerprint, which a recipe has for each chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FingerprintCheck(pub u32);

impl FingerprintCheck {
    /// Accepts a fingerprint, or the first half of one.
    #[inline]
    pub fn of(fingerprint: &[u8]) -> FingerprintCheck {
        FingerprintCheck(Field::<4>::at(0).u32(fingerprint))
    }
}

/// The hash of a fingerprint is its first 8 bytes.
#[inline]
pub fn hash_of(fingerprint: &Fingerprint) -> u64 {
    Field::<8>::at(0).u64(fingerprint)
}

/// A chunk as a recipe names it. If a part of the store was restored from an older copy, an id can
/// refer to other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkKey {
    pub id: RecordId,
    pub length: u32,
    pub check: FingerprintCheck,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_id_of_no_container_is_a_hole() {
        assert!(RecordId::HOLE.is_hole());
        assert!(!RecordId::new(ContainerNumber(1), 0).is_hole());
    }

    #[test]
    fn parts_of_a_fingerprint_are_its_first_bytes() {
        let fingerprint: Fingerprint = std::array::from_fn(|at| at as u8 + 1);
        assert_eq!(FingerprintCheck::of(&fingerprint), FingerprintCheck(0x0403_0201));
        assert_eq!(hash_of(&fingerprint), 0x0807_0605_0403_0201);
    }
}
